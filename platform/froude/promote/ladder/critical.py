"""The critical batches of a study: one for each loss to which a stage of the role critical_batch counts steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import polars as pl

from froude import laws
from froude.laws import CriticalBatch
from froude.promote.ladder.rates import RAMPED

ROLE = "critical_batch"


class Critical(NamedTuple):
    """The rows of the law, its loss in their unit, the law, and those of all losses, the highest first."""

    rows: pl.DataFrame
    goal: float
    law: CriticalBatch
    horizons: tuple[CriticalBatch, ...]


def critical(counted: pl.DataFrame, stages: Mapping[str, Mapping[str, Any]]) -> Critical | None:
    """Fit the critical batch at each loss; the law is that of the lowest, which takes the most tokens, with a fit."""
    ran = set(counted["stage"].unique())
    goals = {name: float(s["target_loss"]) for name, s in stages.items() if s["role"] == ROLE and name in ran}
    found = []
    for goal in sorted(set(goals.values()), reverse=True):
        names = [name for name, each in goals.items() if each == goal]
        rows = counted.filter(pl.col("stage").is_in(names)).filter(~RAMPED)
        if rows.height:
            found.append((rows, goal, laws.critical_batch(laws.steps_to_target(rows, goal))))
    if not found:
        return None
    fitted = [each for each in found if each[-1].status == "ok"]
    return Critical(*(fitted or found)[-1], tuple(law for _, _, law in found))
