"""The rows that every training leaves in the frames trials, steps and evals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from froude.config import Run
from froude.material import commands
from froude.optimizers import times
from froude.train.api import Counts
from froude.train.data.leak import leaked
from froude.train.stability.divergence import why_diverged
from froude.train.step import StepResult

Row = dict[str, Any]


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
    bytes_per_token: float | None = None,
) -> Row:
    """A row of the trials frame, diverged or finished as `why_diverged` says.

    `losses` are those of all steps, `loss` the final validation loss (NaN if the run did not come to its end),
    `validation` those before it. `stopped` is why a run's own policy ended it early. `bytes_per_token` is of the
    validation split.
    """
    reason = stopped or why_diverged(losses, loss, vocab=run.model.vocab, validation=validation)
    return {
        **describe(run),
        "status": "diverged" if reason else "finished",
        "params": counts.params,
        "params_with_embeddings": counts.params_with_embeddings,
        "loss": None if reason else loss,
        "bits_per_byte": None if reason else bits_per_byte(loss, bytes_per_token),
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
    rest = run.optimizer.stored_rest
    return {
        "run": run.name,
        "fingerprint": run.fingerprint,
        "width": run.model.width,
        "depth": run.model.depth,
        "tokens": run.tokens,
        "steps": run.steps,
        "batch": run.phases.mean,
        "batch_final": run.phases.last,
        "lr": run.optimizer.lr,
        "warmup_tokens": run.schedule.warmup_tokens,
        "beta2": run.optimizer.beta2,
        "weight_decay": run.optimizer.weight_decay,
        "optimizer": run.optimizer.name,
        "schedule": run.schedule.name,
        "decay_fraction": run.schedule.decay_fraction,
        "parametrization": run.parametrization,
        "precision": run.precision,
        "stage": run.stage,
        "seed": run.seed,
        "model": commands.model(run),
        "corpus": commands.corpus(run),
        "head_dim": run.model.head_dim,
        "context": run.model.context,
        "vocab": run.model.vocab,
        "data_options": run.data.settings_of(run.tokens),
        "rest_lr": rest and rest.lr,
        "rest_beta2": rest and rest.beta2,
        "timescale": timescale(run),
        "beta2_half_life": run.optimizer.beta2_half_life or None,
        "trainer": commands.EXTERNAL if run.trainer.command else None,
    }


def timescale(run: Run) -> float | None:
    """Share of the run over which decay forgets weights, if it does, at the base width and depth (optimizers.times)."""
    settings, spec = run.optimizer, run.optimizer.spec
    if spec.coupled or not spec.decays or not settings.weight_decay:
        return None
    return times.timescale(
        lr=settings.lr, weight_decay=settings.weight_decay, batch=run.batch, tokens=run.tokens
    )


def step_row(run: Run, attempt: int, step: int, result: StepResult, seconds: float, world: int) -> Row:
    """A row of the steps frame; `step` counts from 1."""
    return {
        "run": run.name,
        "attempt": attempt,
        "step": step,
        "tokens": run.phases.tokens_at(step),
        "loss": result.loss,
        "lr": result.lr,
        "grad_norm": result.grad_norm,
        "tokens_per_second": run.phases.batch_at(step - 1) / max(seconds, 1e-9),
        "seconds": seconds,
        "world": world,
        "workers": world,
        "time": datetime.now(UTC),
    }


def bits_per_byte(loss: float, bytes_per_token: float | None) -> float | None:
    """A loss in nats per token as bits per byte of text, which does not depend on the tokenizer; None if unknown."""
    if bytes_per_token is None or not math.isfinite(loss):
        return None
    return loss / math.log(2) / bytes_per_token


def eval_row(
    run: Run,
    attempt: int,
    step: int,
    loss: float,
    split: str = "validation",
    *,
    bytes_per_token: float | None = None,
) -> Row:
    """A row of the evals frame; `split`, of so many bytes per token, may be one of the source's own validation sets."""
    return {
        "run": run.name,
        "attempt": attempt,
        "step": step,
        "tokens": run.phases.tokens_at(step),
        "split": split,
        "loss": loss,
        "bits_per_byte": bits_per_byte(loss, bytes_per_token),
        "time": datetime.now(UTC),
    }
