"""One rank of an exact run: `exact_rank.py RANK WORLD FOLDER CASES [cpu|cuda]`; trains each case a few steps.

Rank 0 writes the bits. With cuda each rank has the GPU of its number, and they talk over NCCL.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from froude.checkpoint.run_store import RunStore
from froude.config import Run
from froude.store import Location
from froude.train import optimizers, parallel
from froude.train.optimizers.clipping import AdaGC, ZClip
from froude.train.parallel import KEEP_GATHERED, World
from froude.train.trainer import Trainer

#: Steps after which a checkpoint is kept.
RESUMED = 2


class Gathers(TorchDispatchMode):
    """Counts how often tensors are gathered from all ranks."""

    number = 0

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += call.namespace == "c10d" and "gather" in call.__name__
        return call(*args, **(kwargs or {}))


def bits(case: dict[str, Any], device: str, folder: Path) -> dict[str, Any]:
    """Losses, norms of batch and slots, evaluation and a hash of parameters and optimizer state.

    `switch_at` changes the schedule at a step; `keep_gathered` is the number of parameters up to which a model is one
    unit of FSDP; `adaptive_after` is after how many updates a clipping goes by its averages; `unchecked` lets any
    optimizer pass; `count` adds how often the last step gathered weights. With `resume` a checkpoint of step 2 is kept,
    and that of fewer workers is read and trained to the end, too.
    """
    count, resume = case.pop("count", False), case.pop("resume", "")
    switch = case.pop("switch_at", 0)
    if case.pop("unchecked", False):
        optimizers.works_by_rows = lambda *_: True
    ZClip.WARMUP = AdaGC.WARMUP = case.pop("adaptive_after", 100)
    parallel.KEEP_GATHERED = case.pop("keep_gathered", KEEP_GATHERED)
    run = Run.from_dict(case)
    torch.set_num_threads(run.compute.threads or 1)
    trainer = Trainer(run, World.current(device))
    trainer.state()
    series = []
    for step in range(run.steps):
        if switch and step == switch:
            saved = {name: whole(tensor) for name, tensor in trainer.state().items()}
            other = run.replace(slot_schedule="cyclic" if run.slot_schedule == "block" else "block")
            trainer = Trainer(other, World.current(device))
            load(trainer, saved)
        with Gathers() if count and step == run.steps - 1 else nullcontext() as gathers:
            result = trainer.step(run, step, noise=True)
        series.append((result.loss, result.grad_norm, result.slot_square))
        if resume and step + 1 == RESUMED:
            store = RunStore(Location.parse(folder) / resume / f"{trainer.world.size}", "large")
            store.open_attempt("recipe")
            store.save(trainer.state(), step=RESUMED, tokens=RESUMED * run.batch, tables={})
    loss = trainer.evaluate()
    found = {"series": series, "loss": loss, "digest": digest(trainer)}
    if resume and trainer.world.size > 1:
        trainer = Trainer(run, World.current(device))
        fewer = [int(place.name) for place in (folder / resume).iterdir()]
        last = max(number for number in fewer if number < trainer.world.size)
        store = RunStore(Location.parse(folder) / resume / f"{last}", "large")
        assert store.load(trainer.state())["step"] == RESUMED
        for step in range(RESUMED, run.steps):
            trainer.step(run, step)
        found["resumed"] = digest(trainer)
    if count:
        found["gathers"] = gathers.number
    return found


def digest(trainer: Trainer) -> str:
    return hashlib.sha256(json.dumps(sorted(hashes(trainer.state()).items())).encode()).hexdigest()


def hashes(state: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """SHA-256 of each whole tensor, of all ranks together."""
    mine = {
        name: hashlib.sha256(
            whole(tensor).contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
        ).hexdigest()
        for name, tensor in state.items()
    }
    return everywhere(mine)


def everywhere(mine: dict[str, str]) -> dict[str, str]:
    """What all ranks have, of which a matrix's state is on its owner only."""
    if not dist.is_initialized():
        return mine
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    assert all(each.get(name, value) == value for each in found for name, value in mine.items())
    return {name: value for each in found for name, value in each.items()}


def whole(tensor: Any) -> torch.Tensor:
    """A copy of all of a tensor that may be sharded."""
    full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach().clone()


@torch.no_grad()
def load(trainer: Trainer, saved: dict[str, torch.Tensor]) -> None:
    from torch.distributed.tensor import distribute_tensor

    for name, tensor in trainer.state().items():
        if hasattr(tensor, "full_tensor"):
            tensor.copy_(distribute_tensor(saved[name], tensor.device_mesh, tensor.placements))
        else:
            tensor.copy_(saved[name])


def main(rank: int, world: int, folder: Path, cases: dict[str, dict[str, Any]], device: str = "cpu") -> None:
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    if world > 1:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
            init_method=f"file://{folder}/group-{world}",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=120),
        )
    found = {
        name: bits(case, device, folder)
        for name, case in cases.items()
        if world <= case.pop("most", case.get("slots", world))
    }
    if rank == 0:
        (folder / f"bits-{world}.json").write_text(json.dumps(found))
    if world > 1:
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # as in test_distributed


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]), *sys.argv[5:])
