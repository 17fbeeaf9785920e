"""Checks of how far the target lies beyond the largest proxy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from froude.promote.choice.rate import batch_step, exponent
from froude.promote.fits import Fits
from froude.promote.gate import Finding, Rule

if TYPE_CHECKING:
    from froude.promote.case import Case
    from froude.promote.planned import Planned


def times(value: float) -> str:
    """A ratio in words."""
    return f"{value:.3g}×" if math.isfinite(value) else "no such trial" if value > 0 else "unknown"


def _reach(axis: str, bound: float) -> Rule[float]:
    return Rule(
        f"extrapolation_{axis}",
        asks=f"<= {{bound:.3g}}× the largest proxy's {axis}",
        remedy="add larger proxies to stage `loss_law`",
        measure=lambda case: case.ratios[axis],
        find=lambda ratio, bound: Finding(ratio <= bound, times(ratio)),
        bound=bound,
        foresee=lambda plan: plan.reach.get(axis),
    )


#: By axis. These bound recklessness, and promise nothing.
EXTRAPOLATION: Mapping[str, Rule[float]] = {
    axis: _reach(axis, bound) for axis, bound in (("params", 30.0), ("tokens", 30.0), ("compute", 100.0))
}


class BatchReach(NamedTuple):
    """The target's batch over the largest proxy's, and over that of the rates, from which only a rule leads to it."""

    ladder: float
    rates: float


def _planned_batch(plan: Planned) -> BatchReach | None:
    if "batch" not in plan.reach:
        return None
    far = batch_step(plan.grid, plan.target) if plan.grid.height else 0.0
    return BatchReach(plan.reach["batch"], 1.0 if plan.batch_exponent else math.exp(far))


def _near(reach: BatchReach, bound: float) -> Finding:
    def inside(ratio: float) -> bool:
        return 1 / bound <= ratio <= bound

    value = times(reach.ladder)
    if inside(reach.rates):
        return Finding(inside(reach.ladder), value)
    remedy = (
        "sweep the rates of stage `lr_transfer` at a nearer batch, or measure how they go with it (Exponents)"
    )
    return Finding(False, f"{value}; {times(reach.rates)} that of stage `lr_transfer`", remedy)


def rates_batch(fits: Fits) -> int | None:
    """The batch of the rates, in tokens; None without any, or where it is measured how the best one goes with it."""
    grid = fits.rows.get(f"lr_transfer_{fits.target.parametrization}")
    if grid is None or exponent(fits, "lr_batch")[2] == "measured":
        return None
    return round(fits.target.batch / math.exp(batch_step(grid, fits.target)))


def _measured(case: Case) -> BatchReach:
    rates = rates_batch(case.fits)
    return BatchReach(case.ratios["batch"], case.target.batch / rates if rates else 1.0)


BATCH = Rule(
    "extrapolation_batch",
    asks="within {bound:.3g}× of the batch of the largest proxy and of the rates, up or down",
    remedy="add proxies of a nearer batch to stage `loss_law`",
    measure=_measured,
    find=_near,
    bound=4.0,  # beyond it the square-root rule between batch and rate is not to be relied on
    foresee=_planned_batch,
)
