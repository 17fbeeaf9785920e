"""Learning-rate schedules: one value each, which a run names; shares of the peak as functions of tokens seen.

Every schedule is evaluated at the middle of a batch, so that neither the first nor the last step has rate zero and a
change of batch, of world size or an interruption leaves the curve as it was. A new one is a `Spec` in the registry.

Along with the rate go beta2, where the batch is ramped, and the weight decay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from froude.schedules.phases import Phases
from froude.section import ConfigError, listing

Tail = Literal["sqrt", "linear", "cosine", "exponential"]
RampRate = Literal["sqrt", "constant"]
#: Settings that only some schedules read.
OF_SOME = ("decay_fraction", "tail", "floor", "cycles")
#: What a ramp may make of beta2.
BETA2 = 0.9, 0.9999


class Settings(Protocol):
    """A run's table `schedule`."""

    @property
    def name(self) -> str: ...

    @property
    def warmup_tokens(self) -> int: ...

    @property
    def decay_fraction(self) -> float: ...

    @property
    def tail(self) -> Tail: ...

    @property
    def floor(self) -> float: ...

    @property
    def cycles(self) -> int: ...

    @property
    def ramp_rate(self) -> RampRate: ...

    @property
    def weight_decay_to(self) -> float: ...

    def unlike(self, *keys: str) -> list[str]: ...


class Corpus(Protocol):
    """A run's table `data`."""

    @property
    def common(self) -> float: ...


class Widths(Protocol):
    """What a schedule may know of a run's model."""

    @property
    def width(self) -> int: ...

    @property
    def base_width(self) -> int: ...


class Planned(Protocol):
    """What a schedule may go by of a run; batch and length in tokens."""

    @property
    def tokens(self) -> int: ...

    @property
    def batch(self) -> int: ...

    @property
    def steps(self) -> int: ...

    @property
    def phases(self) -> Phases: ...

    @property
    def schedule(self) -> Settings: ...

    @property
    def model(self) -> Widths: ...

    @property
    def data(self) -> Corpus: ...


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One schedule.

    `share(run, tokens)` is the share of the peak, above 0 and at most 1, after that many tokens; the linear warmup is
    multiplied onto it. `trunk(run)` is up to how many tokens that does not depend on the run's length: runs that
    differ in nothing else can be branches off one trunk until there. Without it, each is trained alone.
    `reads(settings)` are those of `OF_SOME` that it goes by. `cycle(run, tokens)` is how often it has begun anew by
    then, which raises the loss by design.
    """

    name: str
    share: Callable[[Planned, float], float]
    trunk: Callable[[Planned], float] | None = None
    reads: Callable[[Settings], Sequence[str]] = lambda settings: OF_SOME
    cycle: Callable[[Planned, float], int] = lambda run, tokens: 0

    @property
    def has_tail(self) -> bool:
        """Whether it ends in a tail, of a length that may be chosen."""
        return self.trunk is not None


def _done(run: Planned, tokens: float) -> float:
    """How much of what follows the warmup is done, from 0 to 1."""
    warmup = run.schedule.warmup_tokens
    return min(1.0, max(0.0, (tokens - warmup) / max(1.0, run.tokens - warmup)))


def _half_wave(floor: float, x: float) -> float:
    """From 1 at x = 0 to the floor at x = 1, as a cosine falls."""
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * x))


def _tail(schedule: Settings, x: float) -> float:
    """Share of the peak left at x in [0, 1] of the decay; 1 - sqrt from Hägele et al. 2405.18392."""
    match schedule.tail:
        case "sqrt":
            return 1.0 - math.sqrt(x)
        case "linear":
            return 1.0 - x
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * x))
        case "exponential":
            return float(schedule.floor**x)


def _decay_start(run: Planned) -> float:
    """Tokens seen when the tail of a WSD run begins; never before the end of the warmup."""
    return max(run.tokens * (1.0 - run.schedule.decay_fraction), float(run.schedule.warmup_tokens))


def _wsd(run: Planned, tokens: float) -> float:
    start = _decay_start(run)
    return 1.0 if tokens <= start else _tail(run.schedule, min(1.0, (tokens - start) / (run.tokens - start)))


def _read_by_wsd(settings: Settings) -> tuple[str, ...]:
    return ("decay_fraction", "tail", *(["floor"] if settings.tail == "exponential" else []))


def _none(settings: Settings) -> tuple[str, ...]:
    return ()


def _inverse_sqrt(run: Planned, tokens: float) -> float:
    return min(1.0, math.sqrt(max(run.schedule.warmup_tokens, run.batch) / tokens))


def _noam(run: Planned, tokens: float) -> float:
    """Vaswani et al. 1706.03762, relative to the base width's peak."""
    return _inverse_sqrt(run, tokens) / math.sqrt(run.model.width / run.model.base_width)


def _multi_step(run: Planned, tokens: float) -> float:
    """DeepSeek LLM 2401.02954: 1, then .316 from 80% of the tokens, .1 from 90%."""
    done = tokens / run.tokens
    return 1.0 if done < 0.8 else 0.316 if done < 0.9 else 0.1


def _cycles(run: Planned, tokens: float) -> float:
    """How many of the cycles, which are equally long, are done."""
    return min(_done(run, tokens), 1.0 - 1e-12) * run.schedule.cycles


def _restarts(run: Planned, tokens: float) -> float:
    """Loshchilov & Hutter 1608.03983."""
    return _half_wave(run.schedule.floor, _cycles(run, tokens) % 1.0)


#: By name, in the order in which they are told.
SCHEDULES: dict[str, Spec] = {
    each.name: each
    for each in (
        Spec(name="constant", share=lambda run, tokens: 1.0, reads=_none),
        Spec(name="linear", share=lambda run, tokens: 1.0 - _done(run, tokens), reads=_none),
        Spec(
            name="cosine",
            share=lambda run, tokens: _half_wave(run.schedule.floor, _done(run, tokens)),
            reads=lambda settings: ("floor",),
        ),
        Spec(name="wsd", share=_wsd, trunk=_decay_start, reads=_read_by_wsd),
        Spec(name="inverse_sqrt", share=_inverse_sqrt, reads=_none),
        Spec(name="noam", share=_noam, reads=_none),
        Spec(name="multi_step", share=_multi_step, reads=_none),
        Spec(
            name="restarts",
            share=_restarts,
            reads=lambda settings: ("floor", "cycles"),
            cycle=lambda run, tokens: int(_cycles(run, tokens)),
        ),
    )
}


def refuse_idle(settings: Settings, named: Collection[str]) -> None:
    """ConfigError for one of these settings that the schedule does nothing with, if not at its default."""
    read = SCHEDULES[settings.name].reads(settings)
    for key in settings.unlike(*OF_SOME):
        if key in named and key not in read:
            others = [f'"{name}"' for name, spec in SCHEDULES.items() if key in spec.reads(settings)]
            others += ['"wsd" of tail "exponential"'] if key == "floor" else []
            tail = f' and tail "{settings.tail}"' if "tail" in read else ""
            raise ConfigError(
                f'`schedule.{key}` must be left out with schedule "{settings.name}"{tail}, which does nothing with it, '
                f"but got {getattr(settings, key)!r}; leave it out, or use {listing(others)}"
            )


def multiplier(run: Planned, tokens: float) -> float:
    """Share of the peak learning rate after `tokens` tokens; linear warmup times the schedule's own share."""
    warmup = run.schedule.warmup_tokens
    ramp = min(1.0, tokens / warmup) if warmup else 1.0
    return ramp * SCHEDULES[run.schedule.name].share(run, tokens)


def at_step(run: Planned, step: int) -> float:
    """Share of the peak rate that the update from `step` to `step + 1` has; above 1 where a ramp has raised it.

    The rate goes with the root of the batch, which suits Adam (Malladi et al. 2205.10287), or stays.
    """
    factor = run.phases.factor_at(step) if run.schedule.ramp_rate == "sqrt" else 1
    return multiplier(run, run.phases.middle_of(step)) * math.sqrt(factor)


def cycle_at(run: Planned, step: int) -> int:
    """How often the schedule has begun anew by the update from `step` to `step + 1`."""
    return SCHEDULES[run.schedule.name].cycle(run, run.phases.middle_of(step))


def beta2_at(run: Planned, step: int, beta2: float) -> float:
    """An optimizer's beta2 in a step: of the same half-life in tokens at a larger batch (Marek et al. 2507.07101).

    It stays in [0.9, 0.9999], and a ramp never raises it. At the run's first batch it is what it was, to the bit.
    """
    factor = run.phases.factor_at(step)
    low, high = BETA2
    return beta2 if factor == 1 else min(beta2, max(low, min(beta2**factor, high)))


def weight_decay_at(run: Planned, step: int) -> float:
    """Share of the weight decay in a step: from 1 at the start it falls to `weight_decay_to` as a cosine falls."""
    return _half_wave(run.schedule.weight_decay_to, run.phases.middle_of(step) / run.tokens)


def has_trunk(run: Planned) -> bool:
    """Whether runs that differ in length only can be branches off one trunk."""
    return SCHEDULES[run.schedule.name].trunk is not None and run.schedule.weight_decay_to == 1


def branch_step(run: Planned) -> int:
    """First step whose rate, decay or data depend on the run's length; 0 without a trunk."""
    trunk = SCHEDULES[run.schedule.name].trunk
    if trunk is None or not has_trunk(run):
        return 0
    alike = run.phases.step_at(round(run.data.common * run.tokens))
    return min(run.steps, run.phases.first_from(trunk(run)), alike)


def branch_steps(runs: Sequence[Planned]) -> list[int]:
    """The step at which each branch of a trial leaves the trunk, sorted by tokens; 0 for a run alone."""
    return [branch_step(run) for run in runs] if len(runs) > 1 else [0] * len(runs)


def trial_steps(runs: Sequence[Planned]) -> int:
    """Optimizer steps of a trial: the trunk's once, and those of each branch's tail."""
    starts = branch_steps(runs)
    return starts[-1] + sum(run.steps - start for run, start in zip(runs, starts, strict=True))


def trial_tokens(runs: Sequence[Planned]) -> int:
    """Tokens of those steps."""
    starts = [run.phases.tokens_at(start) for run, start in zip(runs, branch_steps(runs), strict=True)]
    return starts[-1] + sum(run.tokens - start for run, start in zip(runs, starts, strict=True))
