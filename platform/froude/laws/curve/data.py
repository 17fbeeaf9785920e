"""Learning-rate schedules and smoothed loss curves: what the curve laws are fitted to."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.signal import lfilter

from froude.laws.stats.frames import Array, Mask, Sample

POINTS = (
    200  # of each run's curve, log-spaced in steps after the warmup (Tissue et al. 2408.11029 thin likewise)
)
NODES = 128  # a schedule's falls are summed in at most this many places
BLOCKS = 10  # pieces of a curve whose residuals go together
MAX_STEPS = 10_000_000
ALONE = 5.0  # times the changes next to it; a 1-sqrt decay begins 2.4 times as steeply as it goes on


@dataclass(frozen=True, eq=False)
class Schedule:
    """Learning rates of steps 1, 2, …; the warmup is what comes before the first step at the highest rate."""

    rate: Array

    @cached_property
    def peak(self) -> float:
        """The highest rate."""
        return float(self.rate.max())

    @cached_property
    def warm(self) -> int:
        """How many steps come before the first at the highest rate."""
        return int(np.argmax(self.rate >= self.peak * (1 - 1e-9)))

    @cached_property
    def area(self) -> Array:
        """S1 after each step: the sum of the rates, the warmup's included."""
        return np.cumsum(self.rate)

    def area_at(self, step: Array) -> Array:
        """S1 after the steps given, which may lie between whole ones."""
        return np.interp(step, np.arange(1, self.rate.size + 1), self.area)

    @cached_property
    def falls(self) -> Array:
        """By how much the rate fell before each step; zero during the warmup."""
        falls = -np.diff(self.rate, prepend=self.rate[0])
        falls[: self.warm + 1] = 0.0
        return np.asarray(falls)

    def annealed(self, decay: float) -> Array:
        """S2 after each step: the sum of m_i = decay · m_(i-1) + rate_(i-1) - rate_i (2408.11029, eq. 1)."""
        return np.cumsum(lfilter([1.0], [1.0, -decay], self.falls))

    @cached_property
    def nodes(self) -> tuple[Array, Array, Array]:
        """The falls, the rates after them and the areas before them, summed in at most NODES places."""
        at = np.flatnonzero(self.falls)
        before = self.area[at] - self.rate[at]
        if at.size <= NODES:
            return np.asarray(self.falls[at]), self.rate[at], before
        bins = np.arange(at.size) * NODES // at.size
        weight = np.abs(self.falls[at])
        total = np.bincount(bins, weight)
        rate, start = (np.bincount(bins, weight * values) / total for values in (self.rate[at], before))
        return np.asarray(np.bincount(bins, self.falls[at]), dtype=np.float64), rate, start


def schedule_of(rates: Sequence[float] | Array | pl.Series) -> Schedule:
    """Read a schedule; ValueError unless it holds finite rates >= 0, one of them above 0, and is not too long."""
    rule = "lr_schedule must be a learning rate >= 0 for each step from step 1"
    try:
        values = np.array(rates, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{rule}, but got {type(rates).__name__}.") from None
    if values.ndim != 1 or not 0 < values.size <= MAX_STEPS:
        raise ValueError(f"{rule}, up to {MAX_STEPS:,}, but got an array of shape {values.shape}.")
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if bad.size or not values.max() > 0:
        at = int(bad[0]) if bad.size else 0
        raise ValueError(f"{rule}, not all 0, but step {at + 1} has {float(values[at])!r}.")
    return Schedule(values)


@dataclass(frozen=True, eq=False)
class Curve:
    """One run after its warmup, smoothed to at most POINTS log-spaced means: steps, areas S1, losses."""

    step: Array
    area: Array
    loss: Array

    @classmethod
    def of(cls, schedule: Schedule, step: Array, loss: Array) -> "Curve":
        """Average the losses (ascending in step) over log-spaced stretches."""
        edges = np.geomspace(step[0], step[-1] + 0.5, POINTS + 1)
        _, bins = np.unique(np.searchsorted(edges, step, side="right"), return_inverse=True)
        count = np.bincount(bins)
        at = np.bincount(bins, step) / count
        return cls(at, schedule.area_at(at), np.bincount(bins, loss) / count)

    @property
    def blocks(self) -> NDArray[np.intp]:
        """The tenth of its length, in ln step, in which each point lies."""
        return tenth(self.step, float(self.step[0]), float(self.step[-1]))


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One run: its schedule, floor, rows after the warmup (indices among those used), their steps, and the curve."""

    schedule: Schedule
    floor: int
    rows: NDArray[np.intp]
    step: Array
    curve: Curve


def runs_of(
    sample: Sample, floors: NDArray[np.intp], floor: str | None
) -> tuple[tuple[Trajectory, ...], Mask]:
    """Return the runs of a sample grouped by run, and a mask of the used rows that belong to a warmup.

    ValueError as `laws.curve.annealing` says.
    """
    step, lr, loss = sample["step"], sample["lr"], sample["loss"]
    if step.size and (np.any(step != np.floor(step)) or step.max() > MAX_STEPS):
        raise ValueError(
            f"Column 'step' must count optimizer steps in whole numbers up to {MAX_STEPS:,}, but goes up to"
            f" {float(step.max()):g}, or has fractions. Tokens are not steps."
        )
    order = np.lexsort((step, sample.groups))
    runs, warm = [], np.zeros(step.size, dtype=bool)
    for rows in np.split(order, np.flatnonzero(np.diff(sample.groups[order])) + 1) if step.size else ():
        at = step[rows]
        if np.any(np.diff(at) == 0):
            twice = float(at[np.flatnonzero(np.diff(at) == 0)[0]])
            raise ValueError(
                f"Column 'step' must not repeat within a run, but step {twice:g} does. Keep one attempt or "
                "seed per run."
            )
        if np.any(floors[rows] != floors[rows[0]]):
            raise ValueError(f"Column {floor!r} must be the same in all rows of a run.")
        if not lr[rows].max() > 0:
            raise ValueError(
                "Column 'lr' must be above 0 somewhere in each run. Leave out runs that never learned."
            )
        schedule = Schedule(rates(at, lr[rows]))
        late = at > schedule.warm
        warm[rows[~late]] = True
        kept = rows[late]
        if not kept.size:  # it ended before it had learned
            continue
        curve = Curve.of(schedule, step[kept], loss[kept])
        runs.append(Trajectory(schedule, int(floors[rows[0]]), kept, step[kept], curve))
    # Rows of warmups leave the sample: indices count what stays.
    place = np.cumsum(~warm) - 1
    return tuple(Trajectory(r.schedule, r.floor, place[r.rows], r.step, r.curve) for r in runs), warm


def rates(step: Array, lr: Array) -> Array:
    """Return the rate of every step up to the last row, of rows ascending in step: interpolated, except for lone jumps.

    A change after the peak that is ALONE times as steep as both its neighbours is a step of the schedule: the rate of
    the row after it holds from the row before on. A ramp there would spread what falls at once over rates between.
    """
    every = np.arange(1, max(step[-1], 1) + 1)
    between = np.interp(every, step, lr)
    steep = np.abs(np.diff(lr) / np.diff(step))
    if steep.size < 3:
        return between
    beside = np.pad(steep, 1, mode="edge")
    jump = steep > ALONE * np.maximum(beside[:-2], beside[2:])
    jump[: lr.argmax()] = False  # a warmup is a ramp, however few rows it has
    after = np.searchsorted(step, every)
    return np.where(np.append(False, jump)[after], lr[after], between)


def progress(step: Array, first: float, last: float) -> Array:
    """Return how many tenths of the way from `first` to `last`, in ln step, each step lies on."""
    share = np.log(np.maximum(step, first) / first) / max(float(np.log(last / first)), 1e-12)
    return np.asarray(np.clip(share * BLOCKS, 0, BLOCKS))


def tenth(step: Array, first: float, last: float) -> NDArray[np.intp]:
    """Return in which tenth of that way each step lies, from 0."""
    return np.asarray(np.minimum(progress(step, first, last), BLOCKS - 1), dtype=np.intp)


def mean_squares(values: Array, tenths: NDArray[np.intp]) -> Array:
    """Return the mean square in each tenth; where a tenth has no value, that of all."""
    count = np.bincount(tenths, minlength=BLOCKS)
    total = np.bincount(tenths, values**2, BLOCKS)
    return np.where(count > 0, total / np.maximum(count, 1), total.sum() / count.sum())
