"""Checks of how far the target lies beyond the largest proxy."""

from __future__ import annotations

import math
from collections.abc import Mapping

from froude.promote.gate import Finding, Rule


def times(value: float) -> str:
    """A ratio in words."""
    return f"{value:.3g}×" if math.isfinite(value) else "no such trial" if value > 0 else "unknown"


def _reach(axis: str, bound: float) -> Rule[float]:
    def find(ratio: float, bound: float) -> Finding:
        within = 1 / bound <= ratio <= bound if axis == "batch" else ratio <= bound
        return Finding(within, times(ratio))

    return Rule(
        f"extrapolation_{axis}",
        asks=f"<= {{bound:.3g}}× the largest proxy's {axis}",
        remedy="add larger proxies to stage `loss_law`",
        measure=lambda case: case.ratios[axis],
        find=find,
        bound=bound,
        foresee=lambda plan: plan.reach.get(axis),
    )


EXTRAPOLATION: Mapping[str, Rule[float]] = {
    axis: _reach(axis, bound)
    for axis, bound in (
        ("params", 30.0),  # this, and the next two, bound recklessness, and promise nothing
        ("tokens", 30.0),
        ("compute", 100.0),
        ("batch", 4.0),  # beyond it the square-root rule between batch and rate is not to be relied on
    )
}
