"""Which column of losses the laws are fitted to: nats per token, or bits per byte, in which tokenizers compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def goals_in(
    column: str, stages: Mapping[str, Mapping[str, Any]], rows: pl.DataFrame
) -> dict[str, Mapping[str, Any]]:
    """The stages, each `target_loss`, which is in nats per token, in that column's unit as the stage's runs have it."""
    if column == "loss":
        return dict(stages)
    found: dict[str, Mapping[str, Any]] = {}
    for name, stage in stages.items():
        own = rows.filter(pl.col("stage") == name).select(pl.col(column) / pl.col("loss")).to_series()
        share = own.drop_nulls().median()
        told = "target_loss" in stage and isinstance(share, float)
        found[name] = {**stage, "target_loss": stage["target_loss"] * share} if told else stage
    return found
