"""What a study's proxies took of compute, and how much that is beside the run that they forecast."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from froude.config import Run
from froude.material.commands import EXTERNAL
from froude.promote.imported_runs.history import ROLE, holds_table
from froude.promote.imported_runs.points import run_name
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


def by_trial(trials: pl.DataFrame) -> pl.DataFrame:
    """`stage, trial, tokens, flops` that each trial took, from rows of `trials()` in their order.

    A trunk that branches share counts once, from whose decay each branch's tail is its own; branches that a command
    trained share none. In a table `trial` may hold several runs: of one run's checkpoints the last counts, and branches
    are of one trunk if their size, seed and rate are, too. A failed row counts not at all.
    """
    told = pl.col("stage").eq_missing(pl.lit(ROLE))
    tail = pl.when(pl.col("trainer") == EXTERNAL).then(1.0).otherwise(pl.col("decay_fraction").fill_null(0.0))
    trunk = {name: pl.when(told).then(name) for name in ("params", "seed", "lr")}
    trunk["run"] = pl.when(told & (tail == 0)).then(run_name())
    done = pl.when(pl.col("status") != "failed").then(pl.col("tokens", "flops"))
    return (
        trials.with_columns(trial=pl.coalesce("trial", "run"))
        .group_by(
            "stage", "trial", *(key.alias(f"_{name}") for name, key in trunk.items()), maintain_order=True
        )
        .agg((done * (1 - tail)).max().fill_null(0.0) + (done * tail).sum())
        .group_by("stage", "trial", maintain_order=True)
        .agg(pl.col("tokens", "flops").sum())
    )


def proxy_flops(study: Study) -> float:
    """FLOPs of all that was trained for the study, or that its table tells of."""
    if holds_table(study.meta):
        return float(by_trial(study.trials().collect())["flops"].sum())
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
