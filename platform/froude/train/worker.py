"""One worker of a run that may be interrupted: the training loop on checkpoints under a commit log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from froude.config import Run
from froude.material import Material
from froude.train import parallel
from froude.train.api import Supervisor
from froude.train.loop import Diverged, Loop
from froude.train.observers import Observer
from froude.train.observers.dynamics import Dynamics
from froude.train.observers.layer_norms import LayerNorms
from froude.train.observers.noise_scale import GradientNoise
from froude.train.observers.timing import Timing
from froude.train.parallel import World
from froude.train.speed.collector import between_steps
from froude.train.trainer import only_trainer

if TYPE_CHECKING:
    from froude.checkpoint.run_store import RunStore


def run_worker(
    run: Run,
    store: RunStore,
    supervisor: Supervisor,
    *,
    device: str = "auto",
    left_out: Sequence[tuple[int, int]] = (),
    observers: Sequence[Observer] = (),
) -> float:
    """Train one run as this rank of the current process group; all ranks return the same final validation loss.

    Starts from the newest committed checkpoint, commits one every `checkpoint_every` steps, in the background, and a
    `finished` record at the end, each with the ledger of every rank and the metrics of rank 0 since the last one.
    Where the loss or the gradient spikes, the run's policy decides (froude.train.stability.spikes). `left_out` are
    batches (from, up to) that are never trained; `observers` watch in addition to those of every run. Raises Diverged
    when the policy gives up: what was committed stays. ConfigError for another corpus than the attempt's `material`.
    """
    world = World.current(parallel.resolve_device(device))
    corpus = Material.from_dict(store.meta().get("material", {})).corpus
    trainer = only_trainer(run, world, blank=world.size > 1 and store.has_checkpoint, corpus=corpus)
    watching = (*own_observers(), *observers)
    loop = Loop(run, trainer, store, watching, attempt=supervisor.attempt, left_out=left_out)
    del trainer  # a loop that goes back to the run's start builds another, once this one's memory is free
    with between_steps() as passed:
        while loop.step < run.steps:
            try:
                made = loop.advance()
            except Diverged:
                loop.commit()  # for the rows that tell why
                raise
            if made and _save(loop, supervisor) == "stop":
                break
            passed()
    return loop.loss


def own_observers() -> Sequence[Observer]:
    """Those of every run."""
    return Timing(), GradientNoise(), LayerNorms(), Dynamics()


def _save(loop: Loop, supervisor: Supervisor) -> str:
    """Evaluate and commit where this step asks for it; what the supervisor asks for."""
    run, last = loop.run, loop.step == loop.run.steps
    if last or (run.eval_every and loop.step % run.eval_every == 0):
        loop.evaluate()
    if last and (rows := loop.evaluate_sets()) and loop.world.rank == 0:
        loop.tables["evals"] += rows
    if last or loop.step % run.checkpoint_every == 0:
        for observer in loop.observers:
            observer.checkpoint(loop.step)
    asked = supervisor.poll(loop.step)
    if last:
        loop.commit("finished")
    elif asked in ("save", "stop"):
        loop.commit()
    elif loop.step % run.checkpoint_every == 0:
        loop.commit(background=True)
    return asked
