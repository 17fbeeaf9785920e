"""One rank of test_strategies: `strategies_rank.py RANK WORLD FOLDER CASES`.

At WORLD = 4 each case is trained, measured and saved in the middle; at 3 every strategy loads what each has saved, and
goes on. Rank 0 writes what was found.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from exact_rank import digest
from torch.profiler import ProfilerActivity, profile

from froude.checkpoint.run_store import RunStore
from froude.config import Run
from froude.store import Location
from froude.train import parallel
from froude.train.observers.layer_norms import Norms
from froude.train.parallel import World
from froude.train.trainer import Trainer

SAVED = 10


def store_of(folder: Path, case: str) -> RunStore:
    return RunStore(Location.parse(folder) / case, "large")


def trained(name: str, run: Run, folder: Path) -> dict[str, Any]:
    """Losses and norms of all steps; a digest of what is saved, and how often it says each tensor."""
    trainer = Trainer(run, World.current("cpu"))
    series = []
    for step in range(run.steps):
        norms = Norms(trainer)
        with norms.watching():
            result = trainer.step(run, step)
        series.append((result.loss, result.grad_norm))
        if step + 1 == SAVED:
            store = store_of(folder, name)
            store.open_attempt("recipe")
            store.save(trainer.state(), step=SAVED, tokens=SAVED * run.batch, tables={})
            saved = digest(trainer)
    return {"series": series, "loss": trainer.evaluate(), "saved": saved, "norms": norms.values()}


def measured(run: Run) -> dict[str, float]:
    """Bytes of tensors on this rank, of weights and state between steps, and what a gradient adds at most and leaves."""
    trainer = Trainer(run, World.current("cpu"))
    trainer.step(run, 0)
    kept = sum(parallel.local(t).nbytes for t in trainer.state().values())
    windows = trainer.draw(1).windows
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        trainer.reduction.backward(windows)
    events = profiler.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    growth = list(accumulate(nbytes for _, nbytes in sorted(changes)))
    whole = sum(p.numel() * p.element_size() for p in trainer.model.parameters())
    return {"whole": whole, "kept": kept, "peak": max(growth), "left": growth[-1]}


def loaded(cases: dict[str, Run], folder: Path) -> dict[str, Any]:
    """By who loads and who has saved: the digest of what was loaded, and the next step's loss."""
    found: dict[str, Any] = {}
    for name, run in cases.items():
        trainer = Trainer(run, World.current("cpu"))
        optimizer = name.split()[0]
        for other in cases:
            if other.split()[0] == optimizer:
                assert store_of(folder, other).load(trainer.state())["step"] == SAVED
                was = digest(trainer)
                found[f"{name} of {other}"] = [was, trainer.step(run, SAVED).loss]
    return found


def main(rank: int, world: int, folder: Path, cases: dict[str, dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    parallel.KEEP_GATHERED = 0
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/group-{world}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=120),
    )
    found: dict[str, Any] = {}
    if world == 4:
        large = {name.split()[-1]: Run.from_dict(case) for name, case in cases.items() if "large" in name}
        small = {name: Run.from_dict(case) for name, case in cases.items() if "large" not in name}
        found["trained"] = {name: trained(name, run, folder) for name, run in small.items()}
        found["measured"] = {name: measured(run) for name, run in large.items()}
    else:
        found["loaded"] = loaded({name: Run.from_dict(case) for name, case in cases.items()}, folder)
    if rank == 0:
        (folder / f"found-{world}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # as in test_distributed


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]))
