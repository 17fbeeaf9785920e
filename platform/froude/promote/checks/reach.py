"""Checks of how far the target lies beyond the largest proxy."""

from __future__ import annotations

import math
from collections.abc import Mapping

from froude.promote.gate import Finding, Rule


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


BATCH = Rule(
    "extrapolation_batch",
    asks="within {bound:.3g}× of the largest proxy's batch, up or down",
    remedy="add proxies of a nearer batch to stage `loss_law`",
    measure=lambda case: case.ratios["batch"],
    find=lambda ratio, bound: Finding(1 / bound <= ratio <= bound, times(ratio)),
    bound=4.0,  # beyond it the square-root rule between batch and rate is not to be relied on
    foresee=lambda plan: plan.reach.get("batch"),
)
#: By axis. Those before the batch's bound recklessness, and promise nothing.
EXTRAPOLATION: Mapping[str, Rule[float]] = {
    **{axis: _reach(axis, bound) for axis, bound in (("params", 30.0), ("tokens", 30.0), ("compute", 100.0))},
    "batch": BATCH,
}
