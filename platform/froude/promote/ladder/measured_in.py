"""Which column of losses the laws are fitted to: nats per token, or bits per byte, in which tokenizers compare."""

from __future__ import annotations

import polars as pl

from froude.config import ConfigError
from froude.section import did_you_mean, listing

#: Columns of `trials()` and `evals()` that are losses, and their units.
UNITS = {"loss": "nats per token", "bits_per_byte": "bits per byte"}


def check(column: str) -> str:
    """The column; ConfigError if it is none of UNITS."""
    if column not in UNITS:
        raise ConfigError(
            f"--loss must be {listing(UNITS)}{did_you_mean(column, UNITS)}, but got {column!r}; name one"
        )
    return column


def measured_in(column: str, rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with that column's losses for `loss`; ConfigError where a finished one has none."""
    if column == "loss":
        return rows
    finished = rows.filter(pl.col("status") == "finished") if "status" in rows.columns else rows
    if lacking := finished[column].null_count():
        raise ConfigError(
            f"a fit to {column} needs it of every finished run, but {lacking} of {finished.height} have none: their "
            "source has no `bytes_per_token`, or an earlier version trained them; fit the loss, or train them again"
        )
    return rows.with_columns(loss=pl.col(column))
