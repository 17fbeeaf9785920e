"""Phases of a run: how large its batches are, and when. The one place that turns tokens into steps and back.

A ramp changes how much of the data one step takes, never their order: a step of a phase takes the next `factor` of the
run's batches, as one. So batches, which are numbered from 0 and have `batch` tokens each, stay what they are in a run
without a ramp.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from froude.section import ConfigError

#: Pairs (tokens, factor).
Ramp = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Phase:
    """From `step` (from 0) on, which is after `tokens` tokens, a step takes `factor` batches."""

    step: int
    tokens: int
    factor: int


@dataclass(frozen=True)
class Phases:
    """Those of a run of `tokens` tokens; `batch` in tokens. Steps count from 0: `step` is the one that follows `step`
    updates. Beyond the run's end the last phase goes on.
    """

    batch: int
    tokens: int
    ramp: Ramp = ()

    def __iter__(self) -> Iterator[Phase]:
        phase = Phase(0, 0, 1)
        yield phase
        for tokens, factor in self.ramp:
            steps = (tokens - phase.tokens) // (phase.factor * self.batch)
            yield (phase := Phase(phase.step + steps, tokens, factor))

    @property
    def steps(self) -> int:
        return self.step_at(self.tokens)

    @property
    def mean(self) -> int:
        """Tokens of a step on average, rounded to whole tokens."""
        return round(self.tokens / self.steps)

    @property
    def largest(self) -> int:
        """Tokens of the largest step."""
        return self.batch * max(phase.factor for phase in self)

    @property
    def last(self) -> int:
        """Tokens of the last step."""
        return self.batch_at(self.steps - 1)

    def factor_at(self, step: int) -> int:
        """How many batches a step takes."""
        return self._of(step).factor

    def batch_at(self, step: int) -> int:
        """Tokens of a step."""
        return self.factor_at(step) * self.batch

    def tokens_at(self, step: int) -> int:
        """Tokens seen before a step, which is after `step` updates."""
        phase = self._of(step)
        return phase.tokens + (step - phase.step) * phase.factor * self.batch

    def middle_of(self, step: int) -> float:
        """Tokens seen in the middle of a step: there its schedule is evaluated."""
        return self.tokens_at(step) + self.batch_at(step) / 2

    def step_at(self, tokens: int) -> int:
        """Whole steps in the first `tokens` tokens."""
        phase = self._at(tokens)
        return phase.step + (tokens - phase.tokens) // (phase.factor * self.batch)

    def first_from(self, tokens: float) -> int:
        """The first step whose middle is not before `tokens` tokens."""
        phase = self._at(tokens)
        return phase.step + math.ceil((tokens - phase.tokens) / (phase.factor * self.batch) - 0.5)

    def check(self) -> None:
        """ConfigError unless each phase, and so the run, has whole steps, at least one."""
        last = self.ramp[-1][0] if self.ramp else 0
        if last >= self.tokens:
            raise ConfigError(
                f"`schedule.ramp` must change the batch before the run's end at {self.tokens} tokens, but got a change "
                f"at {last}; leave it out, or lengthen the run"
            )
        phases = [*self]
        for phase, end in zip(phases, [*(p.tokens for p in phases[1:]), self.tokens], strict=True):
            size = phase.factor * self.batch
            if (end - phase.tokens) % size:
                below = end - (end - phase.tokens) % size
                above = below + size if end == self.tokens or below + size < self.tokens else 0
                near = " or ".join(str(each) for each in (below, above) if each > phase.tokens)
                near = near or f"an earlier change, or more tokens than {self.tokens}"
                what = "`tokens` must end" if end == self.tokens else "`schedule.ramp` must change"
                rule = f"{what} after whole batches of {size} tokens from {phase.tokens} on"
                if not self.ramp:
                    rule = f"`tokens` must be a multiple of `batch` = {size} tokens"
                raise ConfigError(f"{rule}, but got {end}; use {near}")

    def __str__(self) -> str:
        """The first batch, and those that follow, as in `768 tokens, 1,536 from 76,800 on`."""
        more = (f", {p.factor * self.batch:,} from {p.tokens:,} on" for p in self if p.tokens)
        return f"{self.batch:,} tokens{''.join(more)}"

    def _of(self, step: int) -> Phase:
        return [phase for phase in self if phase.step <= max(0, step)][-1]

    def _at(self, tokens: float) -> Phase:
        return [phase for phase in self if phase.tokens <= max(0, tokens)][-1]


def whole_steps(tokens: float, batch: int, ramp: Ramp = ()) -> int:
    """Tokens rounded to the nearest whole number of steps, at least one, at the batch with which a run ends."""
    start, factor = ramp[-1] if ramp else (0, 1)
    return start + max(1, round((tokens - start) / (factor * batch))) * factor * batch
