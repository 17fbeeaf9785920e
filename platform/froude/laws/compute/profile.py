"""The losses at one compute budget over the size: a smoothing spline in ln params, and where it is least."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import RBFInterpolator

from froude.laws.stats.frames import Array, Sample
from froude.laws.stats.results import Status

SAME_BUDGET = math.log(1.05)  # runs whose compute differs by less from the next one's belong to one budget
ROUNDED = math.log(1.025)  # of a budget: so little may be rounding, of runs' steps or of what was logged
WIDEST = math.log(1.5)  # of a budget; within 1.35 losses that are brought to one compute show no bias
MIN_SIZES = 3
MIN_TESTED = 5  # sizes that a budget needs to say how smooth its curve is
SMOOTHNESS = 10.0 ** np.arange(-6, 5.5, 0.5)  # in (ln params)^5; the largest makes a parabola
MAX_SIZES = 60  # of one budget; closer ones are averaged


@dataclass(frozen=True, eq=False)
class Budget:
    """One budget: ln of its distinct sizes, the weighted mean ln loss of each, and its rows.

    `weight` is a size's, over the mean of all sizes; `place` is each row's size, `share` its share in the mean. `apart`
    is ln compute of each row above the budget's, and `gained` what that does to its ln loss, which the means are
    without.
    """

    flops: float
    size: Array
    log_loss: Array
    weight: Array
    rows: NDArray[np.intp]
    place: NDArray[np.intp]
    share: Array
    apart: Array
    gained: Array

    @property
    def wide(self) -> bool:
        """Whether its runs form a chain over so much compute that they are of no one budget."""
        return bool(np.ptp(self.apart) > WIDEST)

    def smoother(self, smoothness: float) -> RBFInterpolator:
        """Return the spline's response to each mean: evaluated at ln sizes it gives points × sizes."""
        return RBFInterpolator(
            self.size[:, None],
            np.eye(self.size.size),
            kernel="quintic",
            degree=2,
            smoothing=smoothness / self.weight,
        )


@dataclass(frozen=True, eq=False)
class Minimum:
    """A budget's spline: values and leverages at the sizes, and its minimum: where, how low, how each mean moves it."""

    fitted: Array
    leverage: Array
    log_size: float
    log_loss: float
    response: Array
    status: Status


def budgets_of(sample: Sample) -> list[Budget]:
    """Return the budgets of a sample with flops, params and loss, ascending.

    Where a budget is wider than ROUNDED its rows are brought to the compute of its middle one, by how the least loss
    goes with compute from budget to budget. At the best size a run's loss goes with its own tokens in the same way
    (the envelope theorem).
    """
    log_c, log_n, y = (np.log(sample[name]) for name in ("flops", "params", "loss"))
    weight = sample.weights
    order = np.argsort(log_c, kind="stable")
    found = []
    for rows in (
        np.split(order, np.flatnonzero(np.diff(log_c[order]) > SAME_BUDGET) + 1) if order.size else ()
    ):
        width = max(float(np.ptp(log_n[rows])), 1e-9)
        _, place = np.unique(
            np.round((log_n[rows] - log_n[rows].min()) / width * MAX_SIZES), return_inverse=True
        )
        total = np.asarray(np.bincount(place, weight[rows]), dtype=np.float64)
        size, loss = (np.bincount(place, weight[rows] * values[rows]) / total for values in (log_n, y))
        flops = float(np.sort(sample["flops"][rows])[rows.size // 2])
        share, apart = weight[rows] / total[place], log_c[rows] - math.log(flops)
        found.append(Budget(flops, size, loss, total, rows, place, share, apart, np.zeros(rows.size)))
    mean = float(np.mean(np.concatenate([budget.weight for budget in found]))) if found else 1.0
    return _at_one_compute([replace(budget, weight=budget.weight / mean) for budget in found])


def _at_one_compute(budgets: list[Budget]) -> list[Budget]:
    """Bring the means to their budget's compute, by how the least loss goes with compute from budget to budget."""
    known = [budget for budget in budgets if not budget.wide]
    if len(known) < 2:
        return budgets
    x = np.log([budget.flops for budget in known])
    slope = float(np.polyfit(x, [budget.log_loss.min() for budget in known], 1)[0])
    moved = []
    for budget in budgets:
        gained = slope * budget.apart * (np.ptp(budget.apart) > ROUNDED)
        mean = np.bincount(budget.place, budget.share * gained)
        moved.append(replace(budget, log_loss=budget.log_loss - mean, gained=gained))
    return moved


def smoothness_of(budgets: Sequence[Budget]) -> float:
    """Return the smoothness with the least median error of predicting a size from its budget's others."""
    tested = [budget for budget in budgets if budget.size.size >= MIN_TESTED]
    if not tested:
        return float(SMOOTHNESS[-1])

    def error(smoothness: float) -> float:
        left_out = []
        for budget in tested:
            hat = budget.smoother(smoothness)(budget.size[:, None])
            left = np.maximum(1 - np.diag(hat), 1e-9)
            left_out.append((budget.log_loss - hat @ budget.log_loss) / left)
        return float(np.median(np.abs(np.concatenate(left_out))))

    return float(min(SMOOTHNESS, key=lambda value: error(float(value))))


def minimum(budget: Budget, smoothness: float) -> Minimum | None:
    """Return the spline's minimum, None with fewer than MIN_SIZES sizes, or where it is no budget."""
    x, y = budget.size, budget.log_loss
    if x.size < MIN_SIZES or budget.wide:
        return None
    smoother = budget.smoother(smoothness)
    hat = smoother(x[:, None])
    fitted, leverage, best = hat @ y, np.diag(hat), int(y.argmin())

    def at(index: int, status: Status) -> Minimum:
        return Minimum(fitted, leverage, float(x[index]), float(y[index]), np.zeros(x.size), status)

    if np.ptp(y) <= 1e-12:
        return at(best, "flat")
    if best in (0, x.size - 1):
        return at(best, "edge")
    fine = np.unique(np.concatenate([np.linspace(a, b, 40) for a, b in pairwise(x)]))
    values = smoother(fine[:, None]) @ y
    i = int(values.argmin())
    if i in (0, fine.size - 1):
        return at(0 if i == 0 else x.size - 1, "edge")
    # One Newton step from the best of the fine points, with differences of the spline itself.
    step = float(fine[i + 1] - fine[i - 1]) / 4
    low, middle, high = smoother(fine[i] + step * np.array([[-1.0], [0.0], [1.0]]))
    slope, bend = (high - low) / (2 * step), (high - 2 * middle + low) / step**2
    curvature = float(bend @ y)
    if not curvature > 0:
        return at(best, "not_convex")
    log_size = float(np.clip(fine[i] - (slope @ y) / curvature, fine[i - 1], fine[i + 1]))
    log_loss = float((smoother(np.array([[log_size]])) @ y).item())
    return Minimum(fitted, leverage, log_size, log_loss, -slope / curvature, "ok")
