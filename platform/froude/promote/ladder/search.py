"""Which of the search's trials a target's settings are from."""

from __future__ import annotations

import math
from typing import Any

import polars as pl

from froude.config import Run


def of_optimizer(search: pl.DataFrame, name: str) -> pl.DataFrame:
    """Rows of an optimizer, or that do not say: another one's best settings are its own. All where none is of it."""
    same = pl.col("optimizer").str.to_lowercase() == name.lower()
    return search.filter(same | pl.col("optimizer").is_null()) if search.filter(same).height else search


def like(search: pl.DataFrame, target: Run) -> pl.DataFrame:
    """Rows of the target's schedule: at its batch if one has finished there, else at the nearest batch."""
    alike = search.filter(pl.col("schedule") == target.schedule.name)
    here = alike.filter(
        pl.col("batch").is_in([target.batch, target.phases.mean])
    )  # `batch` is a ramp's first
    if not here.filter(status="finished").is_empty():
        return here
    # Of another ramp than the target's nothing says with which batch it began.
    even = pl.col("batch_final").fill_null(pl.col("batch")) == pl.col("batch")
    others = alike.filter(even, pl.col("batch").is_not_null(), pl.col("status") == "finished")
    far = (pl.col("batch").cast(pl.Float64).log() - math.log(target.batch)).abs()
    return others.filter(pl.col("batch") == pl.col("batch").sort_by(far, "batch").first())


def best(rows: pl.DataFrame) -> dict[str, Any] | None:
    """The finished row of least loss that tells its rate; None without one."""
    told = rows.filter(pl.col("lr").is_not_null(), status="finished")
    return next(told.sort("loss", "run").iter_rows(named=True), None)
