"""Which rows of a table are of one run."""

from __future__ import annotations

import polars as pl


def run_name() -> pl.Expr:
    """The run's name in the table: `run` of a checkpoint has its tokens after it (`run_table`)."""
    checkpoint = pl.concat_str(pl.lit("@"), pl.col("tokens").cast(pl.String)).fill_null("")
    return pl.col("run").str.strip_suffix(checkpoint)
