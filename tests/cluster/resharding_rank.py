"""One rank of test_resharding: `resharding_rank.py RANK FOLDER`. Saves at world 4, loads at 3, 2, 1, and is killed."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from froude.checkpoint.commit import CommitLog, Fenced
from froude.checkpoint.manifest import Manifest
from froude.checkpoint.run_store import RunStore
from froude.runlog import LogReader
from froude.schemas import LEDGER, table
from froude.store import Location


def build(seed: int) -> dict[str, torch.Tensor]:
    """Parameters and AdamW state of a small FSDP2 model, with an empty shard, bf16 and int64 among them."""
    torch.manual_seed(seed)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(7, 10), nn.ReLU(), nn.Linear(10, 2), nn.LayerNorm(2))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(4, 7)).square().sum().backward()
    optimizer.step()
    state: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        state[f"model.{name}"] = parameter.detach()
        for key, value in optimizer.state[parameter].items():
            state[f"optimizer.{name}.{key}"] = value
    state["half"] = distribute_tensor(torch.randn(5, 3).bfloat16(), mesh, [Shard(1)])
    state["counts"] = torch.randint(0, 9, (4,))
    return state


def whole(state: dict[str, torch.Tensor]) -> dict[str, tuple[str, list[int], list[int]]]:
    """Dtype, shape and bytes of every tensor, gathered."""
    found = {}
    for name, tensor in state.items():
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        raw = full.detach().contiguous().reshape(-1).view(torch.uint8).tolist()
        found[name] = (str(full.dtype).removeprefix("torch."), list(full.shape), raw)
    return found


def raises(kind: type[Exception], call: Callable[[], None]) -> bool:
    try:
        call()
    except kind:
        return True
    return False


def save(rank: int, folder: Path, place: Location) -> None:
    store = RunStore(place, "large")
    assert store.open_attempt("recipe", {"host": "a"}) == 1
    rows = table(LEDGER, [{"run": "large", "attempt": 1, "step": 1, "slot": rank}])
    state = build(seed=1)
    expected = whole(state)
    store.save(state, step=1, tokens=10, tables={"ledger": rows}, scalars={"a": 1})
    if rank == 0:
        (folder / "saved.json").write_text(json.dumps(expected))
        (record,) = LogReader(place).lineage()
        kinds = sorted(part.kind for part in record.parts)
        assert kinds == ["data"] * 4 + ["ledger"] * 4 + ["manifest"], kinds
        assert record.world == 4
    # One rank's bad table is every rank's error, and commits nothing.
    bad = {"ledger": pa.table({"x": [1]}) if rank == 1 else rows}
    assert raises(ValueError, lambda: store.save(state, step=2, tokens=20, tables=bad))
    # One rank's full disk is, too, and leaves nothing of any rank's.
    full = mock.patch.object(Location, "output", side_effect=OSError(errno.ENOSPC, "full"))
    with full if rank == 2 else nullcontext():
        assert raises(OSError, lambda: store.save(state, step=2, tokens=20, tables={"ledger": rows}))
    dist.barrier()
    assert not [path for path in place.walk() if f"{2:012d}" in path.url]
    # A second checkpoint, damaged below in a block that only some ranks read.
    store.save(build(seed=2), step=3, tokens=30, tables={})
    if rank == 0:
        (damaged,) = folder.glob("run/data/000000000003/*")
        manifest = Manifest.from_bytes((damaged / "manifest.parquet").read_bytes())
        block = next(b for b in manifest.blocks if b.file == "part-00001.parquet")
        content = bytearray((damaged / block.file).read_bytes())
        content[block.payload_off] ^= 1
        (damaged / block.file).write_bytes(content)
    dist.barrier()


def fence(place: Location) -> None:
    zombie, stale = RunStore(place, "large"), build(seed=5)
    zombie.open_attempt("recipe")
    RunStore(place, "large").open_attempt("recipe")
    assert raises(Fenced, lambda: zombie.save(stale, step=9, tokens=90, tables={}))


def load(rank: int, folder: Path, place: Location) -> tuple[RunStore, dict[str, torch.Tensor]]:
    store, loaded = RunStore(place, "large"), build(seed=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        position = store.load(loaded)
    assert position == {"step": 1, "tokens": 10, "scalars": {"a": 1}}, position
    assert (rank == 0) == any("step 3 is damaged" in str(w.message) for w in caught)
    found = whole(loaded)
    if rank == 0:
        (folder / f"loaded-{dist.get_world_size()}.json").write_text(json.dumps(found))
    return store, loaded


def die(*args: Any, **kwargs: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(rank: int, folder: Path) -> None:
    place = Location.parse(folder / "run")
    for phase, world in enumerate((4, 3, 2, 1)):
        if rank >= world:
            break
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/group-{phase}",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=120),
        )
        if phase == 0:
            save(rank, folder, place)
        else:
            if phase == 1:
                fence(place)
            store, loaded = load(rank, folder, place)
            if world == 1:  # killed with the data written and the record not
                store.open_attempt("recipe")
                with mock.patch.object(CommitLog, "append", die):
                    store.save(loaded, step=7, tokens=70, tables={})
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # as in test_distributed


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
