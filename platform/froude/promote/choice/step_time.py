"""How long a target's steps take, by their batch and workers: from the study's own trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy.optimize import nnls

from froude.laws.loss.trade import Part

HOUR = 3600.0
TRIALS = 6  # from which a time by step and FLOP can be told apart from what a trial takes to start


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step: `overhead`, and `per_flop` for each FLOP of a worker; `source` says where they are from."""

    overhead: float
    per_flop: float
    source: str

    def hours(self, parts: Sequence[Part], *, flops_per_token: float, workers: int) -> float:
        """Wall hours of a run of these parts, without evaluations, failures and what workers wait for one another."""
        seconds = 0.0
        for part in parts:
            step = self.overhead + self.per_flop * flops_per_token * part.batch / workers
            seconds += part.tokens / part.batch * step
        return seconds / HOUR


def of_trials(trials: pl.DataFrame) -> StepTime | None:
    """Least squares over finished trials of one worker (rows of `trials()`); None where they do not tell.

    seconds = start + overhead · steps + per_flop · FLOPs, none below zero, by relative residuals. A trunk with branches
    is its longest run and the tails of the others, whose seconds are told branch by branch. Trunks of studies that do
    not say how long tails are do not count.
    """
    columns = ("seconds", "steps", "flops")
    longest = pl.col("steps") == pl.col("steps").max().over("trial")
    trained = pl.when(longest).then(1.0).otherwise(pl.col("decay_fraction"))
    rows = (
        trials.filter(pl.col("status") == "finished", pl.col("workers").fill_null(1) == 1)
        .drop_nulls(columns)
        .with_columns(trial=pl.coalesce("trial", "run"))
        .with_columns(trained=trained)
        .group_by("trial")
        .agg(
            pl.col("seconds").sum(),
            (pl.col("steps") * pl.col("trained")).sum(),
            (pl.col("flops") * pl.col("trained")).sum(),
            told=pl.col("trained").is_not_null().all(),
        )
        .filter(pl.col("seconds") > 0, "told")
        .sort("trial")
    )
    if rows.height < TRIALS:
        return None
    seconds, steps, flops = (rows[name].cast(pl.Float64).to_numpy() for name in columns)
    design = np.column_stack([np.ones(seconds.size), steps, flops]) / seconds[:, None]
    scale = np.abs(design).max(axis=0)
    found, _ = nnls(design / scale, np.ones(seconds.size))
    _, overhead, per_flop = found / scale
    if not per_flop > 0:
        return None
    words = (
        f"by the times of {rows.height} trials of one worker; what workers wait for one another is not in it"
    )
    return StepTime(float(overhead), float(per_flop), words)
