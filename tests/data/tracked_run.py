"""A run that trackers are told of: two workers begin it, one goes on, its gradient spikes, and it goes back.

`tracked_run.py RANK STUDY` is one of the workers that begin it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from cut_runs import StopsAt
from spiky import NAN, marked

from froude.checkpoint.retention import Keep
from froude.checkpoint.run_store import RunStore
from froude.config import Run
from froude.store import Location
from froude.train.observers import Observer
from froude.train.stability import spikes
from froude.train.worker import run_worker

STEPS, EVERY, RESIZED, SPIKE = 480, 40, 60, 400
RUN = marked(
    dict.fromkeys(range(SPIKE, SPIKE + 3), NAN),
    Run(
        name="large",
        tokens=256 * STEPS,
        batch=256,
        slots=2,
        reduction="exact",
        checkpoint_every=EVERY,
        eval_every=EVERY,
        eval_windows=16,
        norms_every=0,
        noise_every=0,
        parametrization="sp",
        model={"factory": "spiky:Spiky", "width": 16},
        data={"source": "spiky:Marked"},
        optimizer={"lr": 1e-2},
        schedule={"warmup_tokens": 256 * 20},
    ),
)


def train(folder: Path, stop: int = 0, observers: tuple[Observer, ...] = (), **options: Any) -> None:
    """An attempt of RUN in this study, up to a step."""
    place = Location.parse(folder) / "runs" / RUN.name
    store = RunStore(place, RUN.name, Keep(3, 0, 2 * spikes.reach(RUN)))
    supervisor = StopsAt(store.open_attempt("recipe"), stop)
    run_worker(RUN, store, supervisor, device="cpu", observers=observers, **options)


if __name__ == "__main__":
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}.group", rank=rank, world_size=2)
    train(folder, RESIZED)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # as the ranks in tests/cluster do
