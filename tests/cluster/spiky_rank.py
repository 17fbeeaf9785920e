"""One rank of test_spikes: `spiky_rank.py RANK WORLD FOLDER RUN LEFT_OUT`; trains the run to its end below FOLDER."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from froude.checkpoint.retention import Keep
from froude.checkpoint.run_store import RunStore
from froude.config import Run
from froude.store import Location
from froude.train.api import Unsupervised
from froude.train.stability import spikes
from froude.train.worker import run_worker


def main(rank: int, world: int, folder: Path, run: Run, left_out: list[tuple[int, int]]) -> None:
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}.group",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=120),
        )
    store = RunStore(Location.parse(folder) / "runs" / run.name, run.name, Keep(3, 0, 2 * spikes.reach(run)))
    run_worker(run, store, Unsupervised(store.open_attempt("recipe")), device="cpu", left_out=left_out)
    if world > 1:
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # as in test_distributed


if __name__ == "__main__":
    main(
        int(sys.argv[1]),
        int(sys.argv[2]),
        Path(sys.argv[3]),
        Run.from_dict(json.loads(sys.argv[4])),
        [(first, last) for first, last in json.loads(sys.argv[5])],
    )
