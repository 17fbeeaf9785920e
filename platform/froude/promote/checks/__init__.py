"""Every check of the promotion gate, a file a subject; a new one is a `Rule` there, and a line in RULES.

What they look at is in `case` (a study) and `planned` (a search space before its sweep).
"""

from __future__ import annotations

from typing import Any

from froude.config import Run
from froude.promote.case import Case
from froude.promote.checks import batch, coordinates, drift, forecast, rates, reach, rows
from froude.promote.gate import PRODUCTION, Check, Profile, Rule

#: In the table's order.
RULES: tuple[Rule[Any], ...] = (
    rows.TRIALS_FAILED,
    rows.LARGEST_FINISHED,
    rows.ONE_PRECISION,
    rows.VALIDATION_LEAK,
    rows.SEEDS,
    rows.UNSTABLE_PROXIES,
    rates.LR_EDGE,
    rates.LR_POINTS,
    rates.LR_FLAT,
    rates.LR_CONVEX,
    rates.LR_ONE_MINIMUM,
    rates.LR_INTERVAL,
    drift.LR_TRANSFERS,
    rates.DIVERGED_NEAR_OPTIMUM,
    batch.BATCH_EDGE,
    *reach.EXTRAPOLATION.values(),
    reach.BATCH,
    forecast.SIZES_AGREE,
    forecast.FORECAST_INTERVAL,
    forecast.FORECAST_CERTIFIED,
    batch.BATCH_BELOW_CRITICAL,
)


def rules(target: Run) -> tuple[Rule[Any], ...]:
    """The rules for such a target, in the table's order."""
    return (*RULES, coordinates.COORDINATES) if coordinates.asked_of(target) else RULES


def table(case: Case, profile: Profile = PRODUCTION) -> tuple[Check, ...]:
    """Every check on this case by the profile's bounds, none overridden yet."""
    return tuple(rule.judge(rule.measure(case), profile.bound(rule)) for rule in rules(case.target))
