"""A user's own evaluation at checkpoints: benchmarks, samples, whatever has a number; outside of every step.

It is an import path of `evaluate(model, step) -> {name: number}`. Every rank calls it, with the model that it trains,
which may be sharded: all must make the same forward passes. What rank 0 returns are rows of the downstream frame.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from torch import nn

from froude.config import ConfigError
from froude.train import parallel
from froude.train.observers.observer import Observer
from froude.train.trainer import Trainer
from froude.user_code import load, place, told

Evaluate = Callable[[nn.Module, int], Mapping[str, float]]


def check(path: str, trust: bool) -> None:
    """ConfigError unless `path` is one that may be imported, and has a function."""
    if path and not trust and not path.startswith("froude."):
        raise ConfigError(
            f"import paths outside the package run only when trusted, but got --evaluate {path}; read that code, then "
            "pass --trust"
        )
    if path and not callable(load(path)):
        raise ConfigError(f"--evaluate must name a function of (model, step), but {path} is none; correct it")


def downstream(path: str) -> list[Observer]:
    """The observer that calls it; none for an empty path."""
    return [Downstream(load(path), path)] if path else []


class Downstream(Observer):
    """Rows of the downstream frame; where the function raises, an event says so, and the run goes on."""

    def __init__(self, evaluate: Evaluate, path: str = "evaluate") -> None:
        self.evaluate, self.path = evaluate, path

    def checkpoint(self, step: int) -> None:
        loop, why = self.loop, ""
        found: dict[str, float] = {}
        try:
            with untouched(loop.trainer):
                found = {
                    str(name): float(value) for name, value in self.evaluate(loop.trainer.model, step).items()
                }
        except Exception as error:  # noqa: BLE001  whatever a user's code raises is told, and ends no run
            at = place(error)
            why = f"{self.path} raised {told(error)}" + (f" (at {at})" if at else "")
        if loop.world.rank:
            return
        here: dict[str, Any] = {"run": loop.run.name, "attempt": loop.attempt, "step": step}
        now = datetime.now(UTC)
        if why:
            event = {**here, "batch": None, "action": "warn", "why": why, "time": now}
            loop.tables["events"].append(event)
        tokens = loop.run.phases.tokens_at(step)
        loop.tables["downstream"] += [
            {
                **here,
                "tokens": tokens,
                "name": name,
                "value": value if math.isfinite(value) else None,
                "time": now,
            }
            for name, value in found.items()
        ]


@contextmanager
def untouched(trainer: Trainer) -> Iterator[None]:
    """The model as it is evaluated; afterwards as it is trained, with the generators of random numbers as before.

    What the caller itself writes into the model's parameters stays there.
    """
    device, model = trainer.world.device, trainer.model
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with (
            torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
            torch.no_grad(),
            trainer.optimizer.averaged(),
        ):
            model.eval()
            try:
                yield
            finally:
                parallel.reshard(model, trainer.world)
                model.train()
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
