"""One worker of a run that may be interrupted, may spike, and goes on from what was committed."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from froude import records
from froude.config import Run
from froude.train import ledger, parallel
from froude.train.api import Host
from froude.train.loop import Row, eval_row, step_row
from froude.train.noise_scale import NoiseScale
from froude.train.norms import Norms, watched
from froude.train.parallel import World
from froude.train.stability import Judge, Ladder
from froude.train.step import StepResult
from froude.train.trainer import only_trainer

if TYPE_CHECKING:
    from froude.checkpoint.run_store import RunStore


class Diverged(RuntimeError):
    """The loss or the gradient spiked, or was no number, and the run's policy has nothing left to try."""


def run_worker(
    run: Run,
    store: RunStore,
    host: Host,
    *,
    device: str = "auto",
    left_out: Sequence[tuple[int, int]] = (),
) -> float:
    """Train one run as this rank of the current process group; all ranks return the same final validation loss.

    Starts from the newest committed checkpoint, commits one every `checkpoint_every` steps, beside the training, and a
    `finished` record at the end, each with the ledger of every rank and the metrics of rank 0 since the last one.
    Where the loss or the gradient spikes, the run's ladder decides (froude.train.stability). `left_out` are batches
    (from, up to) that are never trained. Raises Diverged when the ladder ends: what was committed stays.
    """
    worker = _Worker(run, store, host, World.current(parallel.resolve_device(device)), left_out)
    while worker.step < run.steps:
        if worker.trained() and worker.saved() == "stop":
            break
    return worker.loss


class _Worker:
    """A run in progress; every rank has one, and all decide alike."""

    def __init__(
        self, run: Run, store: RunStore, host: Host, world: World, left_out: Sequence[tuple[int, int]]
    ) -> None:
        self.run, self.store, self.host, self.world = run, store, host, world
        self.trainer = only_trainer(run, world)
        position = store.load(self.trainer.state())
        self.step: int = position["step"]
        self.ladder = Ladder(run, position["scalars"].get("stability", {"batch": self.step}), left_out)
        self.noise = NoiseScale(run, position["scalars"].get("noise"))
        self.loss = math.nan
        self.tables: dict[str, list[Row]] = {name: [] for name in records.TABLES}

    def trained(self) -> bool:
        """Draw a batch and do with its gradient what the ladder says; whether it has become a step."""
        run, host, ladder, entered = self.run, self.host, self.ladder, self.tables["ledger"]
        for batch in ladder.leave_out():
            drawn = self.trainer.draw(batch)
            entered += ledger.rows(run, host.attempt, self.step + 1, drawn, "skipped_by_policy")
        before = time.perf_counter()
        judge: Judge = partial(ladder.judge, self.step + 1)
        shown = run.norms_every or run.steps + 1
        with nullcontext() if (self.step + 1) % shown else watched(self.trainer) as norms:
            if norms:
                judge = norms.then(judge)
            result = self.trainer.step(
                run, self.step, entered, host.attempt, batch=ladder.batch, judge=judge, noise=self._noisy()
            )
        action = result.decision.action
        if self.world.rank == 0 and ladder.events:
            now = {"run": run.name, "attempt": host.attempt, "time": datetime.now(UTC)}
            events = [{**now, **event} for event in ladder.events]
            self.tables["events"] += events
            host.tell(events)
        ladder.events.clear()
        if action == "stop":
            self._stop(result)
        if action == "rollback":
            self._go_back()
            return False
        if action == "skip":
            return False
        self.step += 1
        scale = self._note_noise(result)
        if norms:
            self._note_norms(norms)
        if self.world.rank == 0:
            seconds = time.perf_counter() - before
            row = step_row(run, host.attempt, self.step, result, seconds, self.world.size) | scale
            self.tables["steps"].append(row)
            host.report([row])
        return True

    def _noisy(self) -> bool:
        """Whether the next step's slots are measured; one slot alone is the batch."""
        every = self.run.noise_every
        return self.run.slots > 1 and every > 0 and (self.step + 1) % every == 0

    def _note_noise(self, result: StepResult) -> Row:
        """The columns of a step's row that tell of the noise scale."""
        if result.slot_square is None:
            return {}
        small, big = self.run.batch // self.run.slots, self.run.batch
        square = result.grad_norm**2
        self.noise.add(self.step, small, big, result.slot_square, square)
        norms = {"small_sq_norm": result.slot_square, "big_sq_norm": square}
        return {"batch_small": small, "batch_big": big, **norms, "noise_scale": self.noise.value}

    def _note_norms(self, norms: Norms) -> None:
        values = norms.values()
        if self.world.rank == 0:
            here = {"run": self.run.name, "attempt": self.host.attempt, "step": self.step}
            rows = [{**here, "kind": kind, "name": name, "value": value} for kind, name, value in values]
            self.tables["norms"] += rows

    def saved(self) -> str:
        """Evaluate and commit where this step asks for it; what the host asks for."""
        last = self.step == self.run.steps
        if last or (self.run.eval_every and self.step % self.run.eval_every == 0):
            self.loss = self.trainer.evaluate()
            if self.world.rank == 0:
                self.tables["evals"].append(eval_row(self.run, self.host.attempt, self.step, self.loss))
        asked = self.host.poll(self.step)
        if last:
            self._commit("finished")
        elif asked in ("save", "stop"):
            self._commit()
        elif self.step % self.run.checkpoint_every == 0:
            self._commit(background=True)
        return asked

    def _commit(self, kind: str = "checkpoint", *, background: bool = False) -> None:
        self.store.save(
            self.trainer.state(),
            step=self.step,
            tokens=self.step * self.run.batch,
            tables={k: records.table(records.SCHEMAS[k], rows) for k, rows in self.tables.items() if rows},
            scalars={"stability": self.ladder.state(), "noise": self.noise.state()},
            kind=kind,
            background=background,
        )
        for rows in self.tables.values():
            rows.clear()

    def _go_back(self) -> None:
        """Resume a checkpoint of before the spike; what was trained since, and its rows, never were."""
        position = self.store.load(self.trainer.state(), self.ladder.back_to)
        if not position["step"]:
            del self.trainer
            self.trainer = only_trainer(self.run, self.world)
        self.step = position["step"]
        self.ladder.rewind(position["scalars"].get("stability", {}))
        self.noise.rewind(position["scalars"].get("noise", {}))
        for name in set(self.tables) - {"events"}:
            self.tables[name].clear()

    def _stop(self, result: StepResult) -> None:
        self._commit()  # for the rows that tell why
        raise Diverged(
            f"{self.run.name} stopped at step {self.step + 1} with loss {result.loss} and gradient norm "
            f"{result.grad_norm}: {result.decision.why}; lower the learning rate in a new run"
        )
