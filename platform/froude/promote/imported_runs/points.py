"""Which rows of a table are of one run, one size and horizon, or one setting, though their numbers are rounded."""

from __future__ import annotations

import polars as pl

from froude.laws.lr.levels import SAME
from froude.laws.stats.frames import firsts

#: What rows of one size and horizon share: parameters, and the least tokens among them (`with_horizon`).
POINT = ["params", "_horizon"]
ROUNDED = 1e-3  # relative: settings so near are one that somebody wrote in four digits, or in float32
#: Settings that may be rounded. The others are words and whole numbers: a vocabulary of 50,257 is not one of 50,304.
FRACTIONS = ("lr", "warmup_tokens", "beta2", "weight_decay", "decay_fraction")


def run_name() -> pl.Expr:
    """The run's name in the table: `run` of a checkpoint has its tokens after it (`run_table`)."""
    checkpoint = pl.concat_str(pl.lit("@"), pl.col("tokens").cast(pl.String)).fill_null("")
    return pl.col("run").str.strip_suffix(checkpoint)


def with_horizon(rows: pl.DataFrame) -> pl.DataFrame:
    """Add `_horizon`: the least tokens of the rows of a size that are within SAME of them; tokens are whole steps.

    Rows of one run so near are checkpoints, and with them every number of tokens is a horizon of its own.
    """
    points = rows.select("params", "tokens").unique().sort("params", "tokens")
    least = [
        first
        for (_,), of in points.group_by("params", maintain_order=True)
        for first in firsts(of["tokens"], SAME)
    ]
    points = points.with_columns(_horizon=pl.Series(least, dtype=points["tokens"].dtype))
    near = rows.join(points, on=["params", "tokens"], how="left", maintain_order="left")
    dense = pl.struct(*POINT, run_name()).is_duplicated().any().over(POINT)
    return near.with_columns(_horizon=pl.when(dense).then("tokens").otherwise("_horizon"))


def alike(setting: pl.Series) -> pl.Series:
    """The setting, with one value for all that differ by rounding (ROUNDED); beta2 by its distance from 1."""
    if setting.name not in FRACTIONS:
        return setting
    values = setting.drop_nulls().unique().sort(descending=setting.name == "beta2")
    sizes = 1 - values if setting.name == "beta2" else values
    value_of = dict(zip(sizes, values, strict=True))
    return setting.replace(
        values, pl.Series([value_of[first] for first in firsts(sizes, ROUNDED)], dtype=values.dtype)
    )
