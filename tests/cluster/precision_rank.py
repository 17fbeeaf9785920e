"""One rank of test_precision: `precision_rank.py RANK WORLD FOLDER CASES`; trains each case, and one that it resumes.

Rank 0 writes the bits. A case's run is committed after RESUMED steps, and that of one worker less (of three after one)
is read and trained to the end, too.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from exact_rank import digest

from froude.checkpoint.run_store import RunStore
from froude.config import Run
from froude.store import Location
from froude.train import parallel
from froude.train.loop import Loop
from froude.train.optimizers import stand_ins
from froude.train.parallel import World
from froude.train.precision import scaling
from froude.train.trainer import Trainer

RESUMED = 2
LAST = 3  # the largest number of workers


def loop(run: Run, place: Path) -> Loop:
    store = RunStore(Location.parse(place), "large")
    store.open_attempt("recipe")
    return Loop(run, Trainer(run, World.current("cpu")), store)


def finished(going: Loop, until: int) -> dict[str, Any]:
    """Train up to a step: losses, norms, the ledger's slots, the loss scale, and a hash of the state."""
    while going.step < until:
        going.advance()
    rows = [] if going.world.rank else going.tables["steps"]
    return {
        "series": [(row["loss"], row["grad_norm"]) for row in rows],
        "dispositions": sorted({row["disposition"] for row in going.tables["ledger"]}),
        "loss": going.trainer.evaluate(),
        "scaling": going.trainer.scaling and going.trainer.scaling.state(),
        "digest": digest(going.trainer),
    }


def bits(name: str, case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """`keep_gathered` as in exact_rank, `bucket` the elements of a stand-in, `scale` the first loss scale."""
    world = World.current().size
    parallel.KEEP_GATHERED = case.pop("keep_gathered", 2**26)
    stand_ins.STOOD_IN = 2**24 if world == 1 else case.pop("bucket", 2**24)
    case.pop("bucket", 0)
    scaling.INITIAL = case.pop("scale", 2.0**16)
    run = Run.from_dict(case)
    going = loop(run, folder / name / str(world))
    first = finished(going, RESUMED)
    going.commit()
    found = {"first": first, "whole": finished(going, run.steps)}
    if world > 1:
        scaling.INITIAL = 2.0  # what is not in the checkpoint shows
        found["resumed"] = finished(loop(run, folder / name / str(world - 1)), run.steps)
    return found


def main(rank: int, world: int, folder: Path, cases: dict[str, dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/group-{world}",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=120),
        )
    found = {name: bits(name, case, folder) for name, case in cases.items()}
    if rank == 0:
        (folder / f"bits-{world}.json").write_text(json.dumps(found))
    if world > 1:
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # as in test_distributed


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]))
