"""A whole trial in one process; and the rows that every training leaves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

from froude.config import Run
from froude.train import parallel, schedules
from froude.train.api import Counts
from froude.train.data.leak import leaked
from froude.train.divergence import why_diverged
from froude.train.parallel import World
from froude.train.step import StepResult
from froude.train.trainer import Trainer

Row = dict[str, Any]


@dataclass
class Outcome:
    """Rows of the trials, steps and evals frames."""

    trials: list[Row] = field(default_factory=list)
    steps: list[Row] = field(default_factory=list)
    evals: list[Row] = field(default_factory=list)


def trial_row(
    run: Run,
    counts: Counts,
    flops_per_token: float,
    *,
    losses: Sequence[float],
    loss: float,
    seconds: float,
    trial: str,
    workers: int = 1,
    validation: Sequence[float] = (),
    stopped: str = "",
) -> Row:
    """A row of the trials frame, diverged or finished as `why_diverged` says.

    `losses` are those of all steps, `loss` the final validation loss (NaN if the run did not come to its end),
    `validation` those before it. `stopped` is why a run's own policy ended it early.
    """
    reason = stopped or why_diverged(losses, loss, vocab=run.model.vocab, validation=validation)
    return {
        **describe(run),
        "status": "diverged" if reason else "finished",
        "params": counts.params,
        "params_with_embeddings": counts.params_with_embeddings,
        "loss": None if reason else loss,
        "last_loss": next((float(last) for last in (loss, *reversed(losses)) if math.isfinite(last)), None),
        "reason": reason or None,
        "flops": flops_per_token * run.tokens,
        "seconds": seconds,
        "attempts": 1,
        "trial": trial,
        "workers": workers,
        "leaked": leaked(run),
        "time": datetime.now(UTC),
    }


def describe(run: Run) -> Row:
    """What of a trials row the run's description alone decides."""
    return {
        "run": run.name,
        "fingerprint": run.fingerprint,
        "width": run.model.width,
        "depth": run.model.depth,
        "tokens": run.tokens,
        "steps": run.steps,
        "batch": run.batch,
        "lr": run.optimizer.lr,
        "warmup_tokens": run.schedule.warmup_tokens,
        "beta2": run.optimizer.beta2,
        "weight_decay": run.optimizer.weight_decay,
        "optimizer": run.optimizer.name,
        "schedule": run.schedule.name,
        "parametrization": run.parametrization,
        "precision": run.precision,
        "stage": run.stage,
        "seed": run.seed,
        "model": run.model.factory,
        "corpus": corpus(run),
    }


def corpus(run: Run) -> str:
    """What a run was trained on, for people: its source, and the file's name and the hash where the run has them."""
    data = run.data
    marks = [PurePath(data.path).name, data.sha256 and f"sha256:{data.sha256[:12]}"]
    return " ".join([data.source, *filter(None, marks)])


def step_row(run: Run, attempt: int, step: int, result: StepResult, seconds: float, world: int) -> Row:
    """A row of the steps frame; `step` counts from 1."""
    return {
        "run": run.name,
        "attempt": attempt,
        "step": step,
        "tokens": step * run.batch,
        "loss": result.loss,
        "lr": result.lr,
        "grad_norm": result.grad_norm,
        "tokens_per_second": run.batch / max(seconds, 1e-9),
        "seconds": seconds,
        "world": world,
        "workers": world,
        "time": datetime.now(UTC),
    }


def eval_row(run: Run, attempt: int, step: int, loss: float) -> Row:
    """A row of the evals frame."""
    return {
        "run": run.name,
        "attempt": attempt,
        "step": step,
        "tokens": step * run.batch,
        "split": "validation",
        "loss": loss,
        "time": datetime.now(UTC),
    }


def run_trial(
    runs: Sequence[Run],
    *,
    trial: str,
    stop_loss: float | None = None,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Train one run, or WSD branches off one trunk, in this process; one trials row a run.

    `runs` are equal but for name and tokens and sorted by tokens. Each equals, bit for bit, the same run trained alone:
    until a branch's tail begins its schedule is the longest run's. Branches after the first that reaches `stop_loss`
    (nats per token) are not trained. `progress` is told (steps done, steps in all).
    """
    longest = runs[-1]
    trainer = Trainer(longest, World(device=parallel.resolve_device(device)))
    starts = [schedules.branch_step(run) if len(runs) > 1 else 0 for run in runs]
    total = starts[-1] + sum(run.steps - start for run, start in zip(runs, starts, strict=True))
    outcome, done = Outcome(), 0
    trunk: list[Row] = []

    def advance(run: Run, first: int, last: int, rows: list[Row]) -> bool:
        nonlocal done
        for step in range(first, last):
            before = time.perf_counter()
            result = trainer.step(run, step)
            rows.append(step_row(run, 1, step + 1, result, time.perf_counter() - before, 1))
            if not result.finite:
                return False
            done += 1
            if progress:
                progress(done, total)
        return True

    fine = True
    for run, start in zip(runs, starts, strict=True):
        began = time.perf_counter()
        fine = fine and advance(longest, len(trunk), start, trunk)
        saved = trainer.snapshot() if fine and run is not longest else None
        tail: list[Row] = []
        finished = fine and advance(run, start, run.steps, tail)
        loss = trainer.evaluate() if finished else math.nan
        seconds = time.perf_counter() - began
        steps = [row | {"run": run.name} for row in trunk] + tail
        row = trial_row(
            run,
            trainer.counts,
            trainer.flops_per_token,
            losses=[each["loss"] for each in steps],
            loss=loss,
            seconds=seconds,
            trial=trial,
        )
        outcome.trials.append(row)
        outcome.steps += steps
        if math.isfinite(loss):
            outcome.evals.append(eval_row(run, 1, run.steps, loss))
        if stop_loss is not None and loss <= stop_loss:
            break
        if saved is not None:
            trainer.restore(saved)
    return outcome
