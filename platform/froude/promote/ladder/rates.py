"""The rows that a study's learning-rate transfer is fitted to, and the best rate that it gives a run."""

from __future__ import annotations

import math

import polars as pl

from froude.config import Run
from froude.laws import Estimate, LrTransfer

#: Rows of runs that ramped their batch, and so have none to measure a law of the batch, or of steps, at.
RAMPED = pl.col("batch_final").is_not_null() & pl.col("batch_final").ne_missing(pl.col("batch"))


def transfer_rows(rows: pl.DataFrame, parametrization: str, base_width: int) -> pl.DataFrame:
    """Rows of one parametrization; runs at the base width, where all are the same, count for each."""
    return rows.filter((pl.col("parametrization") == parametrization) | (pl.col("width") == base_width))


def one_curve_a_width(rows: pl.DataFrame) -> pl.DataFrame:
    """For each width the rates at one depth and horizon: that of most widths, and of several such the longest.

    The others show how the optimum moves with depth and horizon (`froude.laws.lr.drift`).
    """
    place = ["depth", "tokens"]
    ranked = (
        rows.with_columns(_widths=pl.col("width").n_unique().over(place))
        .select("width", "_widths", *place)
        .unique()
        .sort("_widths", "tokens", "depth", descending=True, nulls_last=True)
    )
    first = ranked.unique("width", keep="first").select("width", *place)
    return rows.join(first, on=["width", *place], how="semi", nulls_equal=True, maintain_order="left")


def peak_lr(law: LrTransfer, target: Run) -> Estimate | None:
    """The rate for the target, None if there is none."""
    return best_rate(law, target.model.width, stays=target.width_rules.transfers)


def best_rate(law: LrTransfer, width: float, *, stays: bool) -> Estimate | None:
    """The best rate at a width on the law's line, None if there is none."""
    try:
        return law.optimum(read_at(law, width, stays=stays))
    except ValueError:
        return None


def read_at(law: LrTransfer, width: float, *, stays: bool) -> float:
    """The width at which the best rate of a `width` is read off the law's line.

    Where the optimum `stays` the same at all widths (muP), it is the geometric mean of those fitted, where the line is
    known best: extrapolating a slope that is zero except for noise would add that noise to the rate.
    """
    if not stays:
        return float(width)
    sizes = law.curves.filter(pl.col("status").is_in(["ok", "flat"]))[law.over].log()
    return math.exp(float(sizes.mean() or 0.0))  # type: ignore[arg-type]


def middle(rows: pl.DataFrame, axis: str) -> float:
    """Geometric mean of a size over the widths of a grid of rates."""
    sizes = rows.group_by("width").agg(pl.col(axis).cast(pl.Float64).log().mean().alias("size"))["size"]
    return math.exp(float(sizes.drop_nulls().mean() or 0.0))  # type: ignore[arg-type]
