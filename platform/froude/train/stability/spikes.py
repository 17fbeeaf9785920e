"""What to do when the loss or the gradient spikes: decided by their numbers alone, so alike on every rank and replay.

The spike policy, rung by rung: warn; leave out an update whose gradient is an outlier; ease off, at half the rate and
with gradients clipped to their usual norm, where one batch after another spikes; go back and leave out the batches
around the spike; do that at a lower rate and a tighter clip; stop for a person. Steps count updates, batches
what was drawn from the data: a batch that is left out is no step, and a run always makes all of its steps. Where the
batch is ramped a step takes several, and all numbers of batches below are numbers of steps' worth of them.

A bad batch is over with the next. Where different batches in a row spike, the weights or the rate are at fault: leaving
the next out changes neither, and going back repeats hundreds of steps for what a few careful ones may mend.

Going back and leaving out 200 to 500 batches is PaLM's (Chowdhery et al. 2022, arXiv:2204.02311, section 5.1), leaving
out single updates OLMo's; outliers are measured in median absolute deviations, which one outlier in the window barely
moves.

Other data, or a rate that begins anew, make another loss usual by design. So with the first batch of a mixture's phase,
and with the first step of a restart's cycle, measuring begins anew, and what was not over by then is: a spike that was
watched, an average that climbed, easing off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal

from froude import schedules
from froude.config import Run

WINDOW, ACTIVE = 128, 64  # accepted steps that an outlier is measured against, and how many that takes
WARN, SPIKE = 5.0, 6.0  # deviations
WARNINGS = 3  # in a row are a spike
RISE = 0.05  # nats per token that a spike of the loss is above the median, at least
#: And a spike of the gradient's norm, in its log: small batches have tails, but do no harm.
STEEP = math.log(1.5)
FLOOR = 1e-3  # least MAD, in nats per token and in the log of the norm
RECOVERY = 200  # steps after which a loss that has not come back calls for a rollback
SKIPS, SKIPS_WITHIN = 3, 1000  # this many updates left out within this many steps call for one too
#: Outliers in a row, and steps of a loss that has not come back, from which on a run eases off; the factor on its rate.
IN_ROW, LINGERING, EASE = 3, 20, 0.5
#: Steps in a row without a spike that end it, and steps after which an outlier calls for a rollback.
CALM, PATIENCE = 10, 50
BACK, AHEAD = 100, 200  # batches left out before and after the spike's
RECURRENCE = 2000  # steps within which the next spike climbs a rung
LOWER, TIGHTEN = 0.7, 0.5  # factors of rate and clip from there on
ROLLBACKS, ROLLBACK_SHARE = 3, 0.1  # this many within a tenth of the run: stop
#: A slow climb, in nats over the least average, for that share of the run.
CLIMB, CLIMB_SHARE, EMA = 0.5, 1e-3, 0.98

Action = Literal["update", "skip", "rollback", "stop"]
#: Asked with (loss, gradient norm) between the backward pass and the update.
Judge = Callable[[float, float], "Decision"]


@dataclass(frozen=True)
class Decision:
    """What becomes of a step's gradient; the factors are of the schedule's rate and of the bound on the norm.

    `bound` is another on the norm, which holds as well.
    """

    action: Action = "update"
    why: str = ""
    lr_factor: float = 1.0
    clip_factor: float = 1.0
    bound: float = math.inf


@dataclass(frozen=True)
class Place:
    """The step that a batch was, or would have been, counted from 1; and the batch, or its first one, from 0."""

    step: int
    batch: int


@dataclass(frozen=True)
class Rollback:
    """To before `spike`; the batches from `first` up to `last` are left out; `lowered`: the rate from there on."""

    spike: Place
    first: int
    last: int
    lowered: bool


class Detector:
    """How far a value lies above the median of those accepted before, in units of 1.4826 MAD."""

    def __init__(self, values: Sequence[float] = ()) -> None:
        self.values = list(values)

    def deviation(self, value: float) -> float:
        if len(self.values) < ACTIVE:
            return 0.0
        middle = median(self.values)
        spread = max(FLOOR, median(abs(v - middle) for v in self.values))
        return (value - middle) / (1.4826 * spread)

    def rise(self, value: float) -> float:
        return value - median(self.values) if self.values else 0.0

    def accept(self, value: float) -> None:
        self.values = [*self.values[1 - WINDOW :], value]


class SpikePolicy:
    """The policy of one run, from its state in a checkpoint; `left_out` are batches (first, last) that it never sees.

    Where `run.stability` is off it counts batches and stops at a loss that is not finite.
    """

    def __init__(
        self, run: Run, state: Mapping[str, Any] | None = None, left_out: Sequence[tuple[int, int]] = ()
    ) -> None:
        self.run = run
        self.rollbacks: list[Rollback] = []
        self.left_out = list(left_out)
        self.events: list[dict[str, Any]] = []
        self.rewind(state or {})
        for row in (state or {}).get("rollbacks", ()):
            self.rollbacks.append(Rollback(**{**row, "spike": Place(*row["spike"])}))

    def rewind(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state, knowing what led back to it."""
        self.batch: int = state.get("batch", 0)
        self.loss, self.gradient = Detector(state.get("loss", ())), Detector(state.get("gradient", ()))
        self.warnings: int = state.get("warnings", 0)
        self.average: float | None = state.get("average")
        self.least: float | None = state.get("least")
        self.climbing: int = state.get("climbing", 0)
        self.skips = [Place(*place) for place in state.get("skips", ())]
        self.watched = Place(*state["watched"]) if state.get("watched") else None
        self.in_row: int = state.get("in_row", 0)  # outliers
        #: Since when, now or the last time.
        self.eased = Place(*state["eased"]) if state.get("eased") else None
        self.calm: int | None = state.get("calm")  # steps without a spike while it eases off, else None
        self.stretch: tuple[int, int] = tuple(state.get("stretch", (0, 0)))

    def state(self) -> dict[str, Any]:
        """All that the next decision depends on, as JSON."""
        return {
            "batch": self.batch,
            "loss": self.loss.values,
            "gradient": self.gradient.values,
            "warnings": self.warnings,
            "average": self.average,
            "least": self.least,
            "climbing": self.climbing,
            "skips": [[place.step, place.batch] for place in self.skips],
            "watched": [self.watched.step, self.watched.batch] if self.watched else None,
            "in_row": self.in_row,
            "eased": [self.eased.step, self.eased.batch] if self.eased else None,
            "calm": self.calm,
            "stretch": list(self.stretch),
            "rollbacks": [
                {**vars(each), "spike": list(vars(each.spike).values())} for each in self.rollbacks
            ],
        }

    def leave_out(self, step: int) -> range:
        """The batches that are to be passed over now, before those of `step` (from 1) are drawn.

        A step that has one of them in its middle would be torn, so all from its first on are passed over.
        """
        first, taken = self.batch, self.run.phases.factor_at(step - 1)
        for start, end in sorted([*((r.first, r.last) for r in self.rollbacks), *self.left_out]):
            if start < self.batch + taken and self.batch < end:
                self.rollbacks = [
                    replace(r, first=min(start, self.batch)) if (r.first, r.last) == (start, end) else r
                    for r in self.rollbacks
                ]
                self.batch = end
        return range(first, self.batch)

    def judge(self, step: int, loss: float, norm: float) -> Decision:
        """What to do with the gradient of the present batch, drawn for `step` (from 1); then the next batch is present.

        `loss` in nats per token, `norm` before clipping; the same on all ranks.
        """
        here = Place(step, self.batch)
        finite = math.isfinite(loss) and math.isfinite(norm)
        if self.run.stability == "off":
            if not finite:
                return self._stop(here, "the loss or the gradient is not finite")
            self.batch += self.run.phases.factor_at(step - 1)
            return Decision()
        if (stretch := self._stretch_of(here)) != self.stretch:
            self._begin(stretch)
        gradient = math.log(max(norm, 1e-30)) if finite else math.nan
        above, steep = self.loss.deviation(loss), self.gradient.deviation(gradient)
        warming = self.run.phases.tokens_at(step - 1) < self.run.schedule.warmup_tokens
        if finite and warming:
            above = steep = 0.0  # what changes fast is not yet a spike
        self.warnings = self.warnings + 1 if max(above, steep) > WARN else 0
        spike = (above > SPIKE and self.loss.rise(loss) >= RISE) or (
            above > WARN and self.warnings >= WARNINGS
        )
        outlier = not finite or (steep > SPIKE and self.gradient.rise(gradient) >= STEEP)
        if self.watched and finite and above <= WARN:
            self.watched = None
        if spike and self.watched is None:
            self.watched = here
        if finite and not spike:
            self._track(loss, warming)
        seen = f"loss {loss:.4f}, gradient norm {norm:.4g}"
        if finite:
            seen = f"loss {loss:.4f} ({above:+.1f} deviations), gradient norm {norm:.4g} ({steep:+.1f})"
        self._ease(here, finite, outlier, seen)
        if self.watched and step - self.watched.step >= RECOVERY:
            return self._back(self.watched, here, f"the loss has not come back in {RECOVERY} steps; {seen}")
        if outlier:
            return self._outlying(here, finite, seen)
        if self.climbing > CLIMB_SHARE * self.run.steps:
            return self._back(here, here, f"the average loss is {CLIMB} above its least; {seen}")
        if max(above, steep) > WARN:
            self._note("spike" if spike else "warn", here, seen)
        if not spike:
            self.loss.accept(loss)
            self.gradient.accept(gradient)
        return self._decide("update", here, "")

    def _stretch_of(self, here: Place) -> tuple[int, int]:
        """The mixture's phase that the step's last window is of, and the schedule's cycle that the step is in."""
        run = self.run
        window = (here.batch + run.phases.factor_at(here.step - 1)) * run.batch - run.model.context
        phase = sum(each.tokens(run.tokens) <= window for each in run.data.phases)
        return phase, schedules.cycle_at(run, here.step - 1)

    def _begin(self, stretch: tuple[int, int]) -> None:
        """Measure anew; updates left out and rollbacks still count, since a spike is a spike in any stretch."""
        self.stretch = stretch
        self.loss, self.gradient = Detector(), Detector()
        self.warnings = self.climbing = self.in_row = 0
        self.average = self.least = self.watched = self.calm = None

    def _ease(self, here: Place, finite: bool, outlier: bool, seen: str) -> None:
        """Begin to ease off, go on, or end it: `calm` says which."""
        self.in_row = self.in_row + 1 if outlier and finite else 0
        lingers = self.watched is not None and here.step - self.watched.step >= LINGERING
        lately = self.eased is not None and here.step - self.eased.step <= RECURRENCE
        if finite and (lingers or self.in_row >= IN_ROW) and not lately:
            self.eased, self.calm = here, 0
            why = f"{IN_ROW} outliers in a row"
            if lingers:
                why = f"the loss has not come back in {LINGERING} steps"
            self._note("ease", here, f"{why}; {seen}")
        elif self.calm is not None:
            self.calm = 0 if outlier or self.watched else self.calm + 1
            self.calm = None if self.calm >= CALM else self.calm

    def _outlying(self, here: Place, finite: bool, seen: str) -> Decision:
        """What becomes of a gradient that is an outlier."""
        if finite and self.eased and self.calm is not None:
            since = here.step - self.eased.step
            if since >= PATIENCE:
                spike = self.eased if since <= RECOVERY else here  # of before, not all may have been kept
                return self._back(spike, here, f"{PATIENCE} steps at half the rate did not help; {seen}")
            return self._decide("update", here, "")
        since = self.eased.batch if self.eased else -1  # those before were not their batches' fault
        recent = [p for p in (*self.skips, here) if p.step > here.step - SKIPS_WITHIN and p.batch > since]
        if len(recent) >= SKIPS:
            return self._back(here, here, f"{SKIPS} updates left out within {SKIPS_WITHIN} steps; {seen}")
        self.skips.append(here)
        return self._decide("skip", here, seen)

    def _track(self, loss: float, warming: bool) -> None:
        self.average = loss if self.average is None else EMA * self.average + (1 - EMA) * loss
        # After a restart the loss rises for a while.
        settles = self.stretch != (0, 0) and len(self.loss.values) < ACTIVE
        self.least = self.average if self.least is None or settles else min(self.least, self.average)
        self.climbing = self.climbing + 1 if not warming and self.average > self.least + CLIMB else 0

    def _decide(self, action: Action, here: Place, why: str) -> Decision:
        self.batch += self.run.phases.factor_at(here.step - 1)
        if action != "update":
            self._note(action, here, why)
        return replace(self.softened(here.batch), action=action, why=why)

    def softened(self, batch: int) -> Decision:
        """An update on a batch, at the rate and the bounds that the policy now allows it."""
        lowered = sum(each.lowered and each.first <= batch for each in self.rollbacks)
        if self.calm is None:
            return Decision(lr_factor=LOWER**lowered, clip_factor=TIGHTEN**lowered)
        usual = math.exp(median(self.gradient.values))
        return Decision(lr_factor=LOWER**lowered * EASE, clip_factor=TIGHTEN**lowered, bound=usual)

    def _back(self, spike: Place, here: Place, why: str) -> Decision:
        recent = [r for r in self.rollbacks if spike.step - r.spike.step <= RECURRENCE]
        share = ROLLBACK_SHARE * self.run.steps
        if sum(spike.step - r.spike.step <= share for r in self.rollbacks) >= ROLLBACKS:
            return self._stop(here, f"{ROLLBACKS} rollbacks within a tenth of the run; {why}")
        if any(r.lowered for r in recent):
            return self._stop(here, f"it spiked again at a lower rate; {why}")
        taken = self.run.phases.factor_at(spike.step - 1)
        first, last = max(0, spike.batch - BACK * taken), spike.batch + AHEAD * taken
        self.rollbacks.append(Rollback(spike, first, last, lowered=bool(recent)))
        self._note(
            "lower" if recent else "rollback", here, f"batches {first} to {last - 1} are left out: {why}"
        )
        return Decision("rollback", why)

    @property
    def back_to(self) -> int:
        """The latest step at which the last rollback may go on: before the first batch that it leaves out."""
        last, phases = self.rollbacks[-1], self.run.phases
        tokens = phases.tokens_at(last.spike.step - 1) - (last.spike.batch - last.first) * self.run.batch
        return phases.step_at(max(0, tokens))

    def _stop(self, here: Place, why: str) -> Decision:
        self._note("stop", here, why)
        return Decision("stop", why)

    def _note(self, action: str, here: Place, why: str) -> None:
        self.events.append({"step": here.step, "batch": here.batch, "action": action, "why": why})


def reach(run: Run) -> int:
    """By how many of the steps that a run has made one rollback takes it back, at most; 0 where it never goes back.

    A spike is at most RECOVERY steps old by then. BACK steps' worth of batches before it are more steps where a ramp's
    were smaller.
    """
    factors = [phase.factor for phase in run.phases]
    return RECOVERY + math.ceil(BACK * max(factors) / min(factors)) if run.stability == "ladder" else 0


def sentence(event: Mapping[str, Any]) -> str:
    """An event in words for a person who watches; empty for events that change nothing."""
    said = {
        "skip": "batch {batch} is left out at step {step}: {why}",
        "ease": "from step {step} on at half the rate, until it is calm: {why}",
        "rollback": "back to before step {step}: {why}",
        "lower": "back to before step {step}, and on at a lower rate: {why}",
    }
    return said.get(event["action"], "").format(**event)


def policy_batches(run: Run, state: Mapping[str, Any]) -> set[int]:
    """The batches that a run with this state in its last checkpoint has left out."""
    found: set[int] = set()
    for step, batch in state.get("skips", ()):
        found |= set(range(batch, batch + run.phases.factor_at(step - 1)))
    for each in state.get("rollbacks", ()):
        found |= set(range(each["first"], min(each["last"], state["batch"])))
    return found
