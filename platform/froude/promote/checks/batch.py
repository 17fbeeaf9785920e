"""Checks of the target's batch against the critical one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from froude.laws.batch.growth import growth, middle_at
from froude.promote.case import Case
from froude.promote.gate import Finding, Rule

#: Status of a study without trials that measure a critical batch.
NO_STAGE = "no such stage"


class Batches(NamedTuple):
    """The target's last batch and the critical one at its horizon, in tokens (NaN without one); its fit's status."""

    batch: int
    critical: float
    status: str
    reasons: Sequence[str] = ()

    @property
    def known(self) -> bool:
        return math.isfinite(self.critical)


def batches(case: Case) -> Batches:
    """What the study says of the target's batch."""
    law = case.fits.critical
    if law is None:
        return Batches(case.target.phases.last, math.nan, NO_STAGE)
    # The loss of the stage is one that small runs reach: a longer run may have larger batches at its end.
    critical = middle_at(law, case.target.tokens, growth(case.fits.horizons))
    return Batches(case.target.phases.last, critical, law.status, law.reasons)


def _inside(found: Batches, _: float) -> Finding:
    if found.status in ("edge", "at_bound"):
        return Finding(False, f"`{found.status}`: {'; '.join(found.reasons)}")
    return Finding(True, "true") if found.known else _unmeasured(found)


def _below(found: Batches, _: float) -> Finding:
    if found.status == NO_STAGE:
        return _unmeasured(found)
    if not found.known:
        value = f"{found.batch} tokens against an unknown critical batch ({found.status})"
        return Finding(False, value, kind="warn")
    # Batch over critical batch is E / E_min - 1, the share of tokens that a loss takes beyond the least.
    price = (
        f"this batch needs {100 * (found.batch / found.critical):.0f}% more tokens to reach a loss than a small one: "
        "the price of its parallelism"
    )
    value = f"{found.batch} against {found.critical:.0f} tokens at the target's horizon"
    return Finding(found.batch <= found.critical, value, price, kind="warn")


def _unmeasured(found: Batches) -> Finding:
    why = (
        "no trials of the role critical_batch"
        if found.status == NO_STAGE
        else f"no critical batch (`{found.status}`)"
    )
    remedy = "to find out, sweep a stage of that role, or one with more batch sizes"
    return Finding(False, f"not measured: {why}", remedy, kind="unmeasured")


BATCH_EDGE = Rule(
    "batch_edge",
    asks="a critical batch inside the batches tried",
    remedy="add batch sizes to stage `critical_batch` on that side",
    measure=batches,
    find=_inside,
)
BATCH_BELOW_CRITICAL = Rule(
    "batch_below_critical",
    asks="at most the critical batch",
    remedy="add batch sizes to stage `critical_batch`",
    measure=batches,
    find=_below,
)
