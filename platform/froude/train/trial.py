"""A whole trial in one process: a run, or branches off one trunk."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from froude import schedules
from froude.config import Run
from froude.train import parallel
from froude.train.loop import Diverged, Loop
from froude.train.observers import Made, Observer
from froude.train.parallel import World
from froude.train.rows import Row, eval_row, step_row, trial_row
from froude.train.speed.collector import between_steps
from froude.train.trainer import Trainer


@dataclass
class Outcome:
    """Rows of the trials, steps and evals frames."""

    trials: list[Row] = field(default_factory=list)
    steps: list[Row] = field(default_factory=list)
    evals: list[Row] = field(default_factory=list)


def run_trial(
    runs: Sequence[Run],
    *,
    trial: str,
    stop_loss: float | None = None,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Train one run, or branches off one trunk, in this process; one trials row a run.

    `runs` differ only in name and tokens, and are sorted by tokens. Each equals, bit for bit, the same run trained
    alone: until a branch's tail begins its schedule is the longest run's. Branches after the first that reaches
    `stop_loss` (nats per token) are not trained. `progress` is called with (steps done, steps in all). Runs are trained
    as proxies (`Run.as_proxy`), and their rows say so.
    """
    runs = [run.as_proxy() for run in runs]
    longest = runs[-1]
    trainer = Trainer(longest, World(device=parallel.resolve_device(device)))
    counter = _Counter(schedules.trial_steps(runs), progress)
    memory, outcome, fine = InMemory(), Outcome(), True
    known = trainer.bytes_per_token["validation"]
    trunk = _loop(longest, trainer, memory, counter)
    shared: list[Row] = []
    for run, start in zip(runs, schedules.branch_steps(runs), strict=True):
        began = time.perf_counter()
        fine = fine and _until(trunk, start)
        shared += trunk.tables["steps"]
        trunk.tables["steps"].clear()
        tail = trunk
        if run is not longest and fine:
            trunk.commit()
            _draw_as(trainer, run)
            tail = _loop(run, trainer, memory, counter)
        finished = fine and _until(tail, run.steps)
        loss = tail.evaluate() if finished else math.nan
        steps = [row | {"run": run.name} for row in (*shared, *tail.tables["steps"])]
        outcome.trials.append(
            trial_row(
                run,
                trainer.counts,
                trainer.flops_per_token,
                losses=[row["loss"] for row in steps],
                loss=loss,
                seconds=time.perf_counter() - began,
                trial=trial,
                bytes_per_token=known,
            )
        )
        outcome.steps += steps
        if math.isfinite(loss):
            outcome.evals += [
                eval_row(run, 1, run.steps, loss, bytes_per_token=known),
                *tail.evaluate_sets(),
            ]
        if stop_loss is not None and loss <= stop_loss:
            break
        if tail is not trunk:
            _draw_as(trainer, longest)
            trunk.reload()
    return outcome


class InMemory:
    """The newest state that was saved, as a copy; rows are their loop's."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.position: dict[str, Any] = {"step": 0, "tokens": 0, "scalars": {}}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor], at_most: int | None = None) -> dict[str, Any]:
        for name, tensor in self.tensors.items():
            state[name].copy_(tensor)
        return self.position

    def save(
        self, state: Mapping[str, Tensor], *, step: int, tokens: int, scalars: Mapping[str, Any], **_: object
    ) -> None:
        self.tensors = {name: tensor.clone() for name, tensor in state.items()}
        self.position = {"step": step, "tokens": tokens, "scalars": scalars}


class _Counter(Observer):
    """Tells a listener how many steps of the trial are done, its branches' together."""

    def __init__(self, total: int, listener: Callable[[int, int], None] | None) -> None:
        self.total, self.listener, self.done = total, listener, 0

    def stepped(self, made: Made) -> None:
        self.done += 1
        if self.listener:
            self.listener(self.done, self.total)


def _loop(run: Run, trainer: Trainer, memory: InMemory, counter: _Counter) -> Loop:
    return Loop(run, trainer, memory, [counter], ledger=False)


def _draw_as(trainer: Trainer, run: Run) -> None:
    """Where a mixture's phases are shares of a run, a branch has its own data from the first of them on."""
    if run.data.common < 1:
        trainer.draw_as(run)


def _until(loop: Loop, step: int) -> bool:
    """Train up to that step; whether it got there. The step at which it did not is a row, too."""
    try:
        with between_steps() as passed:
            while loop.step < step:
                loop.advance()
                passed()
    except Diverged as end:
        seconds = time.perf_counter() - end.made.began
        loop.tables["steps"].append(step_row(loop.run, 1, end.made.step, end.made.result, seconds, 1))
        return False
    return True
