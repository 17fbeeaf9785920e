"""The two ways to train: a whole trial in one process, and one worker of a run that may be interrupted."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from froude import records
from froude.config import Run
from froude.train import parallel, schedules
from froude.train.api import Counts, Host
from froude.train.parallel import World
from froude.train.step import StepResult
from froude.train.trainer import Trainer

if TYPE_CHECKING:
    from froude.checkpoint.run_store import RunStore

Row = dict[str, Any]


class Diverged(RuntimeError):
    """The loss or the gradient of a run that cannot go on became infinite or not a number."""


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
    loss: float,
    seconds: float,
    trial: str,
    workers: int = 1,
) -> Row:
    """A row of the trials frame; a loss that is not finite, or above a uniform guess's, means diverged."""
    fine = math.isfinite(loss) and loss <= math.log(run.model.vocab)
    return {
        **describe(run),
        "status": "finished" if fine else "diverged",
        "params": counts.params,
        "params_with_embeddings": counts.params_with_embeddings,
        "loss": loss if fine else None,
        "flops": flops_per_token * run.tokens,
        "seconds": seconds,
        "attempts": 1,
        "trial": trial,
        "workers": workers,
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
    }


def _step_row(run: Run, attempt: int, step: int, result: StepResult, seconds: float, world: int) -> Row:
    return {
        "run": run.name,
        "attempt": attempt,
        "step": step,
        "tokens": step * run.batch,
        "loss": result.loss,
        "lr": result.lr,
        "grad_norm": result.grad_norm,
        "tokens_per_second": run.batch / max(seconds, 1e-9),
        "world": world,
        "time": datetime.now(UTC),
    }


def _eval_row(run: Run, attempt: int, step: int, loss: float) -> Row:
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
            rows.append(_step_row(run, 1, step + 1, result, time.perf_counter() - before, 1))
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
        row = trial_row(run, trainer.counts, trainer.flops_per_token, loss=loss, seconds=seconds, trial=trial)
        outcome.trials.append(row)
        outcome.steps += [row | {"run": run.name} for row in trunk] + tail
        if math.isfinite(loss):
            outcome.evals.append(_eval_row(run, 1, run.steps, loss))
        if stop_loss is not None and loss <= stop_loss:
            break
        if saved is not None:
            trainer.restore(saved)
    return outcome


def run_worker(run: Run, store: RunStore, host: Host, *, device: str = "auto") -> float:
    """Train one run as this rank of the current process group; all ranks return the same final validation loss.

    Starts from the newest committed checkpoint, commits one every `checkpoint_every` steps, beside the training, and a
    `finished` record at the end, each with the ledger of every rank and the metrics of rank 0 since the last one.
    Raises Diverged when the loss stops being finite: what was committed stays.
    """
    trainer = Trainer(run, World.current(parallel.resolve_device(device)))
    world = trainer.world
    position = store.load(trainer.state())
    step: int = position["step"]
    tables: dict[str, list[Row]] = {"ledger": [], "steps": [], "evals": []}
    loss = math.nan

    def commit(kind: str = "checkpoint", *, background: bool = False) -> None:
        filled = {k: records.table(records.SCHEMAS[k], rows) for k, rows in tables.items() if rows}
        tokens = step * run.batch
        store.save(trainer.state(), step=step, tokens=tokens, tables=filled, kind=kind, background=background)
        for rows in tables.values():
            rows.clear()

    while step < run.steps:
        before = time.perf_counter()
        result = trainer.step(run, step, tables["ledger"], host.attempt)
        if not result.finite:
            raise Diverged(
                f"the loss of {run.name} must be finite, but is {result.loss} (gradient norm {result.grad_norm}) "
                f"at step {step + 1}; lower the learning rate"
            )
        step += 1
        row = _step_row(run, host.attempt, step, result, time.perf_counter() - before, world.size)
        if world.rank == 0:
            tables["steps"].append(row)
            host.report([row])
        last = step == run.steps
        if last or (run.eval_every and step % run.eval_every == 0):
            loss = trainer.evaluate()
            if world.rank == 0:
                tables["evals"].append(_eval_row(run, host.attempt, step, loss))
        action = host.poll(step)
        if last:
            commit("finished")
        elif action in ("save", "stop"):
            commit()
        elif step % run.checkpoint_every == 0:
            commit(background=True)
        if action == "stop":
            break
    return loss
