"""One rank of test_strategies: `strategies_rank.py RANK FOLDER CASES`.

Among four each case is trained, or measured, and saved in the middle; among three the strategies load what others have
saved, and go on. Rank 0 writes what was found.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from exact_rank import digest
from torch.utils._python_dispatch import TorchDispatchMode

from froude.checkpoint.run_store import RunStore
from froude.config import Compute, Run
from froude.store import Location
from froude.train import api, parallel
from froude.train.memory import weights
from froude.train.observers.layer_norms import Norms
from froude.train.parallel import World
from froude.train.trainer import Trainer

SAVED = 3
MMAP_THRESHOLD = -3  # of glibc's malloc.h


def store_of(folder: Path, case: str) -> RunStore:
    return RunStore(Location.parse(folder) / case, "large")


def trained(name: str, run: Run, folder: Path) -> dict[str, Any]:
    """Losses and norms of all steps; a digest of what is saved, and how often it says each tensor."""
    trainer = Trainer(run, World.current("cpu"))
    series = []
    for step in range(run.steps):
        norms = Norms(trainer)
        with norms.watching() if step + 1 == run.steps else nullcontext():
            result = trainer.step(run, step)
        series.append((result.loss, result.grad_norm))
        if step + 1 == SAVED:
            store = store_of(folder, name)
            store.open_attempt("recipe")
            store.save(trainer.state(), step=SAVED, tokens=SAVED * run.batch, tables={})
            saved = digest(trainer)
    return {"series": series, "loss": trainer.evaluate(), "saved": saved, "norms": norms.values()}


class Allocations(ctypes.Structure):
    """glibc's `struct mallinfo2`: the fifth is of what is mapped, the eighth of the rest."""

    _fields_ = (("bytes", ctypes.c_size_t * 10),)


class Peak(TorchDispatchMode):
    """The most bytes that were allocated at the end of any operation, by glibc's own count.

    The profiler of torch misses what gloo's threads free.
    """

    def __init__(self) -> None:
        super().__init__()
        self.libc = ctypes.CDLL("libc.so.6")
        self.libc.mallinfo2.restype = Allocations
        self.libc.mallopt(MMAP_THRESHOLD, 2**20)  # what is smaller counts in the main thread only
        self.most = 0

    @property
    def now(self) -> int:
        found = self.libc.mallinfo2()
        return int(found.bytes[4] + found.bytes[7])

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = call(*args, **(kwargs or {}))
        self.most = max(self.most, self.now)
        return result


def built(run: Run, workers: int) -> int:
    """The most bytes on this rank while a model that is built for so many workers is shared out."""
    gc.collect()  # a sharded model lies in reference cycles
    model, peak = api.build_model(run, workers=workers), Peak()
    before = peak.now - sum(p.nbytes for p in model.parameters() if not p.is_meta)
    make = weights.maker(model)
    with peak:
        parallel.shard(model, model.blocks(), World.current("cpu"), run.compute, make=make)  # type: ignore[operator]
    return max(peak.most, peak.now) - before


def measured(run: Run) -> dict[str, int]:
    """Bytes on this rank: weights and state between steps, and what computing a gradient adds at most and leaves.

    Before that, what it takes to build the model, late and whole.
    """
    building = {"built": built(run, 4), "built whole": built(run, 1)}
    gc.collect()
    trainer = Trainer(run, World.current("cpu"))
    peak = Peak()
    trainer.step(run, 0)  # allocates what stays
    kept = sum(parallel.local(tensor).nbytes for tensor in trainer.state().values())
    windows = trainer.draw(1).windows
    gc.collect()
    with peak:
        before = peak.now
        trainer.reduction.backward(windows)
        left = peak.now - before
    return {"kept": kept, "peak": peak.most - before, "left": left, **building}


def loaded(cases: dict[str, Run], folder: Path) -> dict[str, Any]:
    """By who loads and who has saved: the digest of what was loaded, and the next step's loss.

    With AdamW each loads what each has saved, else what one other has.
    """
    found: dict[str, Any] = {}
    for number, (name, run) in enumerate(cases.items()):
        trainer = Trainer(run, World.current("cpu"))
        alike = [other for other in cases if other.split()[0] == name.split()[0]]
        for other in alike if run.optimizer.name == "adamw" else [alike[(number + 1) % len(alike)]]:
            assert store_of(folder, other).load(trainer.state())["step"] == SAVED
            was = digest(trainer)
            found[f"{name} of {other}"] = [was, trainer.step(run, SAVED).loss]
    return found


def at(world: int, rank: int, folder: Path, cases: dict[str, Run]) -> dict[str, Any]:
    if world == 3:
        return {"loaded": loaded(cases, folder)}
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    assert parallel._replicas(Compute(strategy="hsdp"), World.current()) == 2
    large = {name.split()[-1]: run for name, run in cases.items() if name.startswith("large")}
    small = {name: run for name, run in cases.items() if run not in large.values()}
    found = {
        "trained": {name: trained(name, run, folder) for name, run in small.items()},
        "measured": {name: measured(run) for name, run in large.items()},  # last: it slows malloc down
    }
    os.environ["LOCAL_WORLD_SIZE"] = "1" if rank == 3 else "3"
    assert parallel._replicas(Compute(strategy="hsdp"), World.current()) == 1
    return found


def main(rank: int, folder: Path, cases: dict[str, dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    parallel.KEEP_GATHERED, parallel.BUCKET = 0, 2**20
    for world in (4, 3):
        if rank == world:
            break
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/group-{world}",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=240),
        )
        found = at(
            world, rank, folder, {name: Run.from_dict(case) for name, case in cases[str(world)].items()}
        )
        if rank == 0:
            (folder / f"found-{world}.json").write_text(json.dumps(found))
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # as in test_distributed


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
