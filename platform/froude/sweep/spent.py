"""What a study's proxies took of compute, and how much that is beside the run that they forecast."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from froude.config import Run
from froude.promote.imported_runs.history import holds_table
from froude.space import Trial
from froude.study import Study
from froude.sweep import trial_store
from froude.train.size import size_of
from froude.train.speed.timing import step_flops


def trained_flops(trials: Iterable[trial_store.Stored]) -> float:
    """FLOPs of the forward and backward passes of trials; the trunk that branches share counts once.

    A diverged run counts in full, a failed one not at all: nobody knows how far it came.
    """
    total = 0.0
    for stored in trials:
        row = stored.rows.slice(0, 1).to_pylist()[0]
        trained = Trial(stored.trial.name, stored.trial.runs[: stored.rows.num_rows])
        total += (row["flops"] or 0.0) / row["tokens"] * trained.tokens
    return total


def proxy_flops(study: Study) -> float:
    """FLOPs of all that was trained for the study; of an imported run those of its last checkpoint in the table."""
    if holds_table(study.meta):
        runs = study.trials().group_by("trial").agg(pl.col("flops").max()).collect()
        return float(runs["flops"].sum())
    return trained_flops(trial_store.read_all(study.location).values())


def run_flops(run: Run) -> float:
    """FLOPs of the whole run; its model's code must be trusted."""
    return step_flops(run) * (run.tokens // run.batch)


def proxies_over_target(study: Study, target: Run) -> float:
    """FLOPs of all proxies over the target's, counted as theirs are: 6·params·tokens where a table tells none."""
    whole = run_flops(target)
    if holds_table(study.meta):
        by_size = pl.col("flops") == 6 * pl.col("params").cast(pl.Float64) * pl.col("tokens")
        if study.trials().select(by_size.all()).collect().item():
            whole = 6.0 * size_of(target).params * target.tokens
    return proxy_flops(study) / whole
