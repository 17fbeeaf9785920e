"""The small immutable values that every fitted law hands out."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import polars as pl

Status = Literal["ok", "edge", "flat", "not_convex", "too_few_points", "prior_driven", "at_bound"]


@dataclass(frozen=True)
class Estimate:
    """A fitted number with its standard error and interval.

    `low` and `high` are at 95%, or at the level asked for where the method takes one. All four share the
    unit of `value`; they are NaN where the law's status says that there is no fit.
    """

    value: float
    se: float
    low: float
    high: float


@dataclass(frozen=True)
class Prediction:
    """A loss forecast, in nats per token.

    `low` and `high` bound the loss of one new run at `level`. `certified` is True only if the interval was
    calibrated on held-out larger runs and the target is within reach; otherwise `reasons` says why not.
    `extrapolation` is the target over the largest fitted value, for `params`, `tokens`, `flops`
    (6·params·tokens) and, where one was given, `batch`. `comparator` is what published exponents make of the same rows,
    `compute_line` a line in compute (`froude.laws.comparator`); NaN where they have no fit. `noise` is the standard
    deviation of such a run's own loss, relative: the floor under any forecast's error.
    """

    loss: float
    low: float
    high: float
    level: float
    certified: bool
    reasons: tuple[str, ...]
    extrapolation: Mapping[str, float] = field(default_factory=dict)
    comparator: float = math.nan
    compute_line: float = math.nan
    noise: float = math.nan

    @property
    def half_width(self) -> float:
        """Half the interval as a proportion of the loss."""
        return (self.high - self.low) / 2 / self.loss


@dataclass(frozen=True)
class Allocation:
    """A split of a compute budget: parameters and training tokens, with 6·params·tokens equal to the budget."""

    params: float
    tokens: float


NO_ESTIMATE = Estimate(math.nan, math.nan, math.nan, math.nan)


def table_of(estimates: Mapping[str, Estimate]) -> pl.DataFrame:
    """Return `parameter, value, se, low, high`, a row for each estimate."""
    rows = [(name, e.value, e.se, e.low, e.high) for name, e in estimates.items()]
    numbers = dict.fromkeys(("value", "se", "low", "high"), pl.Float64)
    return pl.DataFrame(rows, schema={"parameter": pl.String, **numbers}, orient="row")


def positive(name: str, value: object) -> float:
    """Return `value` as a float, or raise ValueError naming `name` unless it is a positive finite number."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise ValueError(f"{name} must be a positive finite number, but got {value!r}.")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a positive finite number, but got {value!r}.") from None
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name} must be a positive finite number, but got {value!r}.")
    return number


def open_unit(name: str, value: object) -> float:
    """Return `value` as a float strictly between 0 and 1, or raise ValueError naming `name`."""
    try:
        number = positive(name, value)
    except ValueError:
        number = math.inf
    if not number < 1:
        raise ValueError(f"{name} must lie strictly between 0 and 1, but got {value!r}.")
    return number
