"""The rows of a run that a user's command has trained, like those that froude's own training leaves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from froude.config import Run
from froude.external.metrics import Metrics
from froude.section import ConfigError
from froude.train.rows import describe, eval_row
from froude.train.size import Size, size_of
from froude.train.stability.divergence import why_diverged

Row = dict[str, Any]


@dataclass
class Rows:
    """Rows of the trials, steps and evals frames."""

    trials: list[Row] = field(default_factory=list)
    steps: list[Row] = field(default_factory=list)
    evals: list[Row] = field(default_factory=list)

    def add(self, other: Rows) -> None:
        self.trials += other.trials
        self.steps += other.steps
        self.evals += other.evals


def rows_of(
    run: Run, past: Sequence[Metrics], last: Metrics, *, trial: str, seconds: float, attempts: int
) -> Rows:
    """Of a run that has finished or diverged, by what its `last` attempt wrote; the `past` ones' steps lead up to it.

    ConfigError if the last attempt has no final validation loss, or if nothing tells how many parameters it has.
    """
    reason = last.why_diverged
    if not reason and last.final is None:
        raise ConfigError(last.lacking())
    size = size_in(run, last)
    steps = joined([*past, last])
    losses = [row["loss"] for row in steps]
    final = math.nan if last.final is None else last.final
    evaluated = evaluations([*past, last])
    if not reason and losses:
        earlier = [
            loss for (step, split), loss in evaluated.items() if split == "validation" and step < run.steps
        ]
        reason = why_diverged(losses, final, vocab=run.model.vocab, validation=earlier)
    seen = [loss for loss in (final, *reversed(losses)) if math.isfinite(loss)]
    row = {
        **describe(run),
        "status": "diverged" if reason else "finished",
        "params": size.params,
        "params_with_embeddings": size.params_with_embeddings,
        "loss": None if reason else final,
        "last_loss": seen[0] if seen else None,
        "reason": reason or None,
        "flops": size.flops_per_token * run.tokens,
        "seconds": seconds,
        "attempts": attempts,
        "trial": trial,
        "workers": processes(run),
        "time": datetime.now(UTC),
    }
    return Rows(
        [row],
        [step_row(run, 1, step) for step in steps],
        [] if reason else eval_rows(run, 1, evaluated),
    )


def processes(run: Run) -> int:
    """GPUs that are reserved for it, or nodes where none are."""
    return run.trainer.nodes * max(run.trainer.gpus, 1)


def size_in(run: Run, metrics: Metrics) -> Size:
    """The model's size as the command tells it, else as the run says; ConfigError if both do, and differ."""
    told, said = metrics.size, run.trainer.params
    if "params" not in told:
        try:
            size = size_of(run)
        except ConfigError:
            raise ConfigError(
                f"laws need the parameters of each run, but neither {metrics.where} nor `trainer.params` of {run.name} "
                'tells them; append {"params": N, "flops_per_token": x} to FROUDE_METRICS first (N without embedding '
                "and readout)"
            ) from None
    else:
        params = int(told["params"])
        if said and said != params:
            raise ConfigError(
                f"a run must have the parameters that `trainer.params` says, {said:,} for {run.name}, but its command "
                f"tells {params:,}; count without embedding and readout in both"
            )
        whole = told.get("params_with_embeddings")
        size = Size(params, int(whole) if whole else None, run.trainer.flops_per_token or 6.0 * params)
    return Size(size.params, size.params_with_embeddings, told.get("flops_per_token", size.flops_per_token))


def joined(attempts: Sequence[Metrics]) -> list[Row]:
    """The steps that led to the newest one: of each attempt those before the next one's first."""
    steps: dict[int, Row] = {}
    for attempt in attempts:
        first = min(attempt.steps, default=None)
        if first is not None:
            steps = {step: row for step, row in steps.items() if step < first} | attempt.steps
    return [steps[step] for step in sorted(steps)]


def evaluations(attempts: Sequence[Metrics]) -> dict[tuple[int, str], float]:
    """Validation losses by step and set, of each attempt those before the next one's first step."""
    found: dict[tuple[int, str], float] = {}
    for attempt in attempts:
        first = min([*attempt.steps, *(step for step, _ in attempt.evals)], default=math.inf)
        found = {key: loss for key, loss in found.items() if key[0] < first} | attempt.evals
    return found


def step_row(run: Run, attempt: int, step: Row) -> Row:
    """A row of the steps frame."""
    nodes = processes(run)
    about = {"run": run.name, "attempt": attempt, "world": nodes, "workers": nodes, "time": datetime.now(UTC)}
    return {**about, **step}


def eval_rows(run: Run, attempt: int, evals: Mapping[tuple[int, str], float]) -> list[Row]:
    """Rows of the evals frame, in the order of their steps."""
    return [eval_row(run, attempt, step, loss, split) for (step, split), loss in sorted(evals.items())]
