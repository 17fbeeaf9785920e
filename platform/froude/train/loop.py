"""The training loop: one for proxies and for runs that may be interrupted, may spike, and go on from what was kept."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Protocol

import pyarrow as pa
from torch import Tensor

from froude import schemas
from froude.config import ConfigError, Run
from froude.section import listing
from froude.train.data import ledger as token_ledger
from froude.train.observers import Made, Observer
from froude.train.rows import Row, eval_row, step_row
from froude.train.stability.spikes import Decision, SpikePolicy
from froude.train.trainer import Trainer, only_trainer


class Store(Protocol):
    """Where a loop's states are kept: in memory, or as checkpoints under a commit log. Every rank calls alike."""

    def load(self, state: dict[str, Tensor], at_most: int | None = None) -> dict[str, Any]:
        """Fill the state in place with the newest kept (of at most that step): {"step", "tokens", "scalars"}.

        Step 0, no scalars and an untouched state where there never was one; an error where it is gone.
        """

    def save(
        self,
        state: dict[str, Tensor],
        *,
        step: int,
        tokens: int,
        tables: Mapping[str, pa.Table],
        scalars: Mapping[str, Any],
        kind: str = "checkpoint",
        background: bool = False,
    ) -> None:
        """Keep the state, with the rows since the last save and what else the run goes on from (JSON)."""


#: Names under which a checkpoint keeps the loop's own scalars.
OWN = ("stability", "loss_scale", "average")


class Diverged(RuntimeError):
    """The loss or the gradient spiked, or was no number, and the run's policy has nothing left to try.

    `made` is the step that was not made.
    """

    def __init__(self, run: Run, made: Made) -> None:
        result = made.result
        super().__init__(
            f"{run.name} stopped at step {made.step} with loss {result.loss} and gradient norm "
            f"{result.grad_norm}: {result.decision.why}; lower the learning rate in a new run"
        )
        self.made = made


class Loop:
    """A run in progress, from the newest state in its store; every rank has one, and all decide alike.

    `tables` are the rows since the last commit, by frame; without `ledger` no rows tell which tokens were trained on.
    `left_out` are batches (from, up to) that are never trained.
    """

    def __init__(
        self,
        run: Run,
        trainer: Trainer,
        store: Store,
        observers: Sequence[Observer] = (),
        *,
        attempt: int = 1,
        ledger: bool = True,
        left_out: Sequence[tuple[int, int]] = (),
    ) -> None:
        _check_names([observer.name for observer in observers if observer.name])
        self.run, self.trainer, self.store, self.observers = run, trainer, store, observers
        self.world, self.attempt = trainer.world, attempt
        self.tables: dict[str, list[Row]] = {name: [] for name in schemas.TABLES}
        self.entered = self.tables["ledger"] if ledger else None
        self.loss = math.nan  # of the last evaluation
        self.step, scalars = self._load()
        self.policy = SpikePolicy(run, scalars.get("stability", {"batch": self.step}), left_out)
        for observer in observers:
            observer.begin(self)
            observer.rewind(scalars.get(observer.name, {}))

    def advance(self) -> bool:
        """Draw a step's data and do with its gradient what the policy says; whether it has become a step.

        Raises Diverged where the policy gives up.
        """
        run, step = self.run, self.step + 1
        for batch in self.policy.leave_out(step):
            drawn = self.trainer.draw(batch)
            if self.entered is not None:
                self.entered += token_ledger.rows(run, self.attempt, step, drawn, "skipped_by_policy")
        began = time.perf_counter()
        with ExitStack() as around:
            for observer in self.observers:
                around.enter_context(observer.around(step))
            wanted = [observer.wants_slot_norms(step) for observer in self.observers]
            result = self.trainer.step(
                run,
                self.step,
                self.entered,
                self.attempt,
                batch=self.policy.batch,
                judge=self._judge,
                noise=any(wanted),
            )
        self._tell()
        made, action = Made(step, result, began), result.decision.action
        if action == "stop":
            raise Diverged(run, made)
        if action == "rollback":
            self.reload(self.policy.back_to)
        if action != "update":
            return False
        self.step = step
        for observer in self.observers:
            observer.stepped(made)
        if self.world.rank == 0:
            seconds = time.perf_counter() - began
            row = step_row(run, self.attempt, step, result, seconds, self.world.size) | made.columns
            self.tables["steps"].append(row)
            for observer in self.observers:
                observer.wrote(row)
        return True

    def evaluate(self) -> float:
        """The validation loss now, nats per token, the same on every rank."""
        self.loss = self.trainer.evaluate()
        if self.world.rank == 0:
            row = self._eval_row(self.loss)
            self.tables["evals"].append(row)
            for observer in self.observers:
                observer.evaluated(row)
        return self.loss

    def evaluate_sets(self) -> list[Row]:
        """A row for each other validation set that the source has; every rank must call it."""
        losses = {name: self.trainer.evaluate(name) for name in self.trainer.sets}
        return [self._eval_row(loss, name) for name, loss in losses.items()]

    def _eval_row(self, loss: float, split: str = "validation") -> Row:
        known = self.trainer.bytes_per_token.get(split)
        return eval_row(self.run, self.attempt, self.step, loss, split, bytes_per_token=known)

    def commit(self, kind: str = "checkpoint", *, background: bool = False) -> None:
        """Save the state and the rows since the last commit."""
        scaling = self.trainer.scaling
        scale = {"loss_scale": scaling.state()} if scaling else {}
        states = {observer.name: observer.state() for observer in self.observers if observer.name}
        found = self.run.optimizer.average
        average = {"average": asdict(found)} if found else {}  # for an export without the recipe
        self.store.save(
            self.trainer.state(),
            step=self.step,
            tokens=self.run.phases.tokens_at(self.step),
            tables={k: schemas.table(schemas.SCHEMAS[k], rows) for k, rows in self.tables.items() if rows},
            scalars={"stability": self.policy.state(), **scale, **average, **states},
            kind=kind,
            background=background,
        )
        for rows in self.tables.values():
            rows.clear()

    def reload(self, at_most: int | None = None) -> None:
        """Resume a saved state; what was trained since, and its rows, never were: only its events are remembered."""
        self.step, scalars = self._load(at_most)
        self.policy.rewind(scalars.get("stability", {}))
        for observer in self.observers:
            observer.rewind(scalars.get(observer.name, {}))
        for name in set(self.tables) - {"events"}:
            self.tables[name].clear()
        if at_most is not None and not self.step:  # the run's start is in no checkpoint
            run, world, corpus = self.trainer.run, self.world, self.trainer.corpus
            del self.trainer
            self.trainer = only_trainer(run, world, corpus=corpus)

    def _load(self, at_most: int | None = None) -> tuple[int, Mapping[str, Any]]:
        position = self.store.load(self.trainer.state(), at_most)
        if self.trainer.scaling:
            self.trainer.scaling.rewind(position["scalars"].get("loss_scale", {}))
        return position["step"], position["scalars"]

    def _judge(self, loss: float, norm: float) -> Decision:
        for observer in self.observers:
            observer.gradients(self.step + 1)
        return self.policy.judge(self.step + 1, loss, norm)

    def _tell(self) -> None:
        """Rows of what the policy noticed and decided."""
        if self.world.rank == 0 and self.policy.events:
            now = {"run": self.run.name, "attempt": self.attempt, "time": datetime.now(UTC)}
            events = [{**now, **event} for event in self.policy.events]
            self.tables["events"] += events
            for observer in self.observers:
                observer.decided(events)
        self.policy.events.clear()


def _check_names(names: Sequence[str]) -> None:
    """ConfigError where the states of two would stand under one name in a checkpoint."""
    for name in names:
        if name in OWN or names.count(name) > 1:
            raise ConfigError(
                f"an observer's `name` must be its own, and not {listing(OWN)}, but two states would be {name!r}; "
                "rename the observer"
            )
