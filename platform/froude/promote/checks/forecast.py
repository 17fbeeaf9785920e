"""Checks of the forecast: does the law hold for each size, and is its interval narrow and earned?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from froude import laws
from froude.promote.case import Case
from froude.promote.fits import PRIOR, Fits
from froude.promote.gate import Finding, Rule
from froude.promote.ladder import shape
from froude.promote.ladder.regret import corrected

if TYPE_CHECKING:
    from froude.promote.planned import Planned

#: Level of the interval in which the law of the other sizes must see a size.
OFF_LEVEL = 0.99


class Certificate(NamedTuple):
    """Whether the law vouches for the forecast's interval, and what it says against that."""

    certified: bool
    reasons: Sequence[str] = ()


def sizes_off(fits: Fits) -> list[str]:
    """The size that the law of all others misses most, if most of its runs lie outside the interval at OFF_LEVEL."""
    law, rows = fits.loss, corrected(fits.rows["loss_law"].filter(pl.col("status") == "finished"))
    assert law is not None
    worst, name = 0.0, ""
    for (size,), own in rows.group_by("params", maintain_order=True):
        rest = laws.loss_law(rows.filter(pl.col("params") != size), prior=law.prior or PRIOR, groups="trial")
        if not math.isfinite(rest.E):
            continue
        misses = []
        for row in own.iter_rows(named=True):
            seen = rest.predict(params=row["params"], tokens=row["tokens"], level=OFF_LEVEL)
            bound = seen.high - seen.loss if row["loss"] > seen.loss else seen.loss - seen.low
            misses.append(abs(row["loss"] - seen.loss) / max(bound, 1e-12))
        miss = float(np.median(misses))
        if miss > max(worst, 1.0):
            worst, name = miss, f"{size:,}"
    return [name] if name else []


def certificate(case: Case) -> Certificate:
    """What the forecast says of itself, or, where there is none, the law."""
    if case.forecast is not None:
        return Certificate(case.forecast.certified, case.forecast.reasons)
    assert case.fits.loss is not None
    return Certificate(False, case.fits.loss.reasons)


def foreseen(plan: Planned) -> Certificate | None:
    """What is uncertified already: a target off its ladder, but for a batch that a stage is to measure."""
    ladder = plan.ladder
    if not ladder.height:
        return None
    if any(stage.role == "critical_batch" for stage in plan.space.stages):
        ladder = ladder.with_columns(batch=pl.lit(None))
    reasons = shape.doubts(ladder, plan.target, cost=plan.cost)
    return Certificate(False, reasons) if reasons else None


def _agree(off: Sequence[str], _: float) -> Finding:
    return Finding(not off, f"off: {', '.join(off)} parameters" if off else "true of all")


def _narrow(half_width: float, bound: float) -> Finding:
    return Finding(half_width <= bound, f"{100 * half_width:.1f}% half-width")


def _certified(found: Certificate, _: float) -> Finding:
    reasons = "; ".join(found.reasons) or "no reason"
    return Finding(found.certified, "certified" if found.certified else f"not ({reasons})")


SIZES_AGREE = Rule(
    "sizes_agree",
    asks="sizes that the law of the other sizes predicts",
    remedy="look at that size's runs (rate, data, stability) and repeat it",
    measure=lambda case: sizes_off(case.fits),
    find=_agree,
)
FORECAST_INTERVAL = Rule(
    "forecast_interval",
    asks="<= {percent:g}% of the loss",
    remedy="add proxies or seeds to stage `loss_law`",
    measure=lambda case: case.forecast.half_width if case.forecast else math.nan,
    find=_narrow,
    bound=0.05,
)
FORECAST_CERTIFIED = Rule(
    "forecast_certified",
    asks="a certified interval",
    remedy="add sizes and horizons to stage `loss_law`: `froude plan --next` says which",
    measure=certificate,
    find=_certified,
    foresee=foreseen,
)
