"""One rank of runs that are killed: `killed_rank.py RANK WORLD FOLDER CASES`.

Two ranks train the one case that they get, keep a checkpoint, and kill themselves in the middle of the step after it:
weights and state have been updated, nothing of that is stored. One rank alone goes on from there to the end, case by
case, trains each undisturbed, too, and writes both hashes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from exact_rank import RESUMED, digest

from froude.checkpoint.run_store import RunStore
from froude.config import Run
from froude.store import Location
from froude.train.parallel import World
from froude.train.trainer import Trainer


def store_of(folder: Path, name: str) -> RunStore:
    return RunStore(Location.parse(folder) / name, "large")


def train(run: Run, first: int, last: int, trainer: Trainer) -> Trainer:
    for step in range(first, last):
        trainer.step(run, step)
    return trainer


def killed(name: str, run: Run, folder: Path) -> None:
    trainer = train(run, 0, RESUMED, Trainer(run, World.current("cpu")))
    store = store_of(folder, name)
    store.open_attempt("recipe")
    store.save(trainer.state(), step=RESUMED, tokens=RESUMED * run.batch, tables={})
    dist.barrier()
    last: Any = trainer.optimizer.parts[-1]
    update = last.step

    def update_and_die() -> None:
        update()
        os.kill(os.getpid(), signal.SIGKILL)

    last.step = update_and_die
    trainer.step(run, RESUMED)


def gone_on(name: str, run: Run, folder: Path) -> list[str]:
    trainer = Trainer(run, World.current("cpu"))
    assert store_of(folder, name).load(trainer.state())["step"] == RESUMED
    resumed = digest(train(run, RESUMED, run.steps, trainer))
    return [resumed, digest(train(run, 0, run.steps, Trainer(run, World.current("cpu"))))]


def main(rank: int, world: int, folder: Path, cases: dict[str, dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    runs = {name: Run.from_dict(content) for name, content in cases.items()}
    if world == 1:
        found = {name: gone_on(name, run, folder) for name, run in runs.items()}
        (folder / "bits.json").write_text(json.dumps(found))
        return
    ((name, run),) = runs.items()
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/group-{name}".replace(" ", "-"), rank=rank, world_size=world
    )
    killed(name, run, folder)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]))
