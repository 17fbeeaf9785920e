"""Checks of the learning rate: is the best one inside the grid, alone, well placed, far from divergence?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from froude.laws import LrTransfer
from froude.promote.case import Case
from froude.promote.checks.reach import times
from froude.promote.gate import Finding, Rule
from froude.promote.ladder.rates import best_rate

if TYPE_CHECKING:
    from froude.promote.planned import Planned

#: The text for the best rate where the curves have none, and what to do first.
NO_RATE = "unknown: there is no best rate"
FIRST = "first correct what `lr_edge`, `lr_points` and the other `lr_` checks refuse"


class Curves(NamedTuple):
    """The status of each width's U-curve, that of their joint fit, and its reasons."""

    widths: Mapping[int, str]
    joint: str
    reasons: tuple[str, ...] = ()


class Rates(NamedTuple):
    """For each width how many rates can be fitted, and which cannot, with why."""

    fitted: Mapping[int, int]
    left_out: Mapping[int, str] = {}


def _by_width(case: Case, column: str) -> dict[int, Any]:
    return {int(width): value for width, value in case.transfer.curves.select("width", column).iter_rows()}


def _no_curve(name: str, status: str, asks: str, remedy: str) -> Rule[Curves]:
    """A rule against curves of this status."""

    def find(curves: Curves, _: float) -> Finding:
        where = [f"width {width}" for width, its in curves.widths.items() if its == status]
        if curves.joint == status:
            # Where widths have that status, they are its reason.
            why = "; ".join(curves.reasons) if not where else ""
            where.append(f"joint fit ({why})" if why else "joint fit")
        return Finding(not where, f"`{status}` at {', '.join(where)}" if where else "true of all")

    def measure(case: Case) -> Curves:
        return Curves(_by_width(case, "status"), case.transfer.status, case.transfer.reasons)

    return Rule(name, asks, remedy, measure, find)


LR_EDGE = _no_curve(
    "lr_edge", "edge", "an optimum inside the grid", "extend the rates of stage `lr_transfer`"
)
LR_FLAT = _no_curve(
    "lr_flat", "flat", "a loss that depends on the rate", "widen the grid of rates or add seeds"
)
LR_CONVEX = _no_curve(
    "lr_convex",
    "not_convex",
    "convex curves of the loss over ln rate, which one joint fit describes",
    "add seeds, or rates nearer to the best",
)


def _planned_rates(plan: Planned) -> Rates | None:
    counted = plan.grid.group_by("width").agg(pl.col("lr").n_unique())
    return Rates({int(width): int(n) for width, n in counted.iter_rows()}) if counted.height else None


def _enough(rates: Rates, bound: float) -> Finding:
    fewest, width = min(((n, width) for width, n in rates.fitted.items()), default=(0, None))
    at = "" if width is None else f" at width {width}"
    without = rates.left_out.get(width or 0)
    value = f"{fewest} fitted rates{at}, the fewest" + (f"; left out: {without}" if without else "")
    remedy = f"{LR_POINTS.remedy}, nearer to the best" if without else ""
    return Finding(fewest >= bound, value, remedy)


LR_POINTS = Rule(
    "lr_points",
    asks=">= {bound:g} rates per size",
    remedy="add rates to stage `lr_transfer`",
    measure=lambda case: Rates(_by_width(case, "rates"), _by_width(case, "left_out")),
    find=_enough,
    bound=7,  # a cubic through a U-curve needs six, and one may diverge
    foresee=_planned_rates,
)


def bumps(law: LrTransfer) -> dict[int, float]:
    """By how much the mean loss rises between two lower ones over the rates, by size; 0 where it may be noise.

    Noise is the pooled scatter of seeds, where there are at least two repeated rates, else that of the residuals
    (1.4826 MAD); four of its standard deviations are no rise.
    """
    rows = law.rows.filter(pl.col("fitted").is_not_null()).with_columns(pl.col("loss").cast(pl.Float64))
    points = (
        rows.group_by(law.over, "lr")
        .agg(pl.col("loss").mean(), pl.len().alias("runs"), squares=pl.col("loss").var() * (pl.len() - 1))
        .sort(law.over, "lr")
    )
    spare = int((points["runs"] - 1).sum())
    if spare >= 2:
        noise = math.sqrt(float(points["squares"].fill_null(0.0).sum()) / spare)
    else:
        noise = 1.4826 * float(rows["residual"].abs().median() or 0.0)  # type: ignore[arg-type]
    found = {}
    for size, curve in points.group_by(law.over, maintain_order=True):
        loss = curve["loss"].to_numpy()
        rise = 0.0
        if loss.size >= 3:
            before, after = np.minimum.accumulate(loss)[:-2], np.minimum.accumulate(loss[::-1])[::-1][2:]
            rise = float((loss[1:-1] - np.maximum(before, after)).max())
        runs = float(curve["runs"].min())  # type: ignore[arg-type]
        found[int(size[0])] = rise if rise > 4 * noise / math.sqrt(runs) else 0.0
    return found


def _one_minimum(bumps: Mapping[int, float], bound: float) -> Finding:
    found = [f"a rise of {bump:.3f} at width {width}" for width, bump in bumps.items() if bump > bound]
    return Finding(not found, ", ".join(found) or "true of all")


LR_ONE_MINIMUM = Rule(
    "lr_one_minimum",
    asks="a loss that rises by <= {bound:g} nats between two minima over the rates",
    remedy="add seeds and rates there: the runs between the minima may be unstable",
    measure=lambda case: bumps(case.transfer),
    find=_one_minimum,
    bound=0.02,  # nats: seven times what half an octave costs
)


def half_width(case: Case) -> float:
    """Half the width of the pooled optimum's 95% interval in ln lr, NaN without an optimum."""
    return math.log(case.rate.high / case.rate.low) / 2 if case.rate else math.nan


def _narrow(value: float, bound: float) -> Finding:
    if math.isnan(value):
        return Finding(False, NO_RATE, FIRST)
    return Finding(value <= bound, f"{value:.2f} in ln rate, half-width")


LR_INTERVAL = Rule(
    "lr_interval",
    asks="<= {bound:g} in ln rate, half-width",
    remedy="add rates",
    measure=half_width,
    find=_narrow,
    bound=0.35,  # half an octave, which costs about 0.003 nats at a curvature of 0.046
)


def nearest_diverged(case: Case) -> float:
    """The least ratio (>= 1) between the best rate of stage lr_transfer and one that diverged at the same width.

    Infinite if none did, NaN without a rate. The promoted one may be of another horizon and batch.
    """
    if case.rate is None:
        return math.nan
    stays, found = case.target.width_rules.transfers, math.inf
    diverged = case.grid.filter(pl.col("status") == "diverged").select("width", "lr").unique()
    for width, lr in diverged.iter_rows():
        best = best_rate(case.transfer, width, stays=stays)
        assert best is not None  # there is a line, since there is a rate
        found = min(found, max(lr / best.value, best.value / lr))
    return found


def _far(ratio: float, bound: float) -> Finding:
    return Finding(ratio > bound, times(ratio), FIRST if math.isnan(ratio) else "")


DIVERGED_NEAR_OPTIMUM = Rule(
    "diverged_near_optimum",
    asks="> {bound:.3g}× between the best rate of stage `lr_transfer` and one that diverged",
    remedy="clip harder, lengthen the warmup, or promote a lower rate",
    measure=nearest_diverged,
    find=_far,
    bound=2.0,
)
