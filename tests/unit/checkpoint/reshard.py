"""One rank of the resharding test: `reshard.py RANK FOLDER`. Saves at world 3, loads at 3, 2 and 1."""

from __future__ import annotations

import json
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from froude.checkpoint.commit import Fenced
from froude.checkpoint.run_store import RunStore
from froude.records import LEDGER, table
from froude.runlog import LogReader
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


def raises(kind: type[Exception], call: object) -> bool:
    try:
        call()  # type: ignore[operator]
    except kind:
        return True
    return False


def main(rank: int, folder: Path) -> None:
    place = Location.parse(folder / "run")
    for phase, world in enumerate((3, 3, 2, 1)):
        if rank >= world:
            return
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/group-{phase}",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=60),
        )
        store = RunStore(place, "large")
        if phase == 0:
            assert store.open_attempt("recipe", {"host": "a"}) == 1
            rows = table(LEDGER, [{"run": "large", "attempt": 1, "step": 1, "slot": rank}])
            state = build(seed=1)
            expected = whole(state)
            store.save(state, step=1, tokens=10, tables={"ledger": rows}, scalars={"a": 1})
            if rank == 0:
                (folder / "saved.json").write_text(json.dumps(expected))
                (record,) = LogReader(place).lineage()
                kinds = sorted(part.kind for part in record.parts)
                assert kinds == ["data"] * 3 + ["ledger"] * 3 + ["manifest"], kinds
                assert record.world == 3
            # One rank's bad table is every rank's error, and commits nothing.
            bad = {"ledger": pa.table({"x": [1]}) if rank == 1 else rows}
            assert raises(ValueError, lambda: store.save(state, step=2, tokens=20, tables=bad))
            # A second checkpoint, damaged below where only some ranks read it.
            store.save(build(seed=2), step=3, tokens=30, tables={})
            if rank == 0:
                path = next(folder.glob("run/data/000000000003/*/part-00001.parquet"))
                content = bytearray(path.read_bytes())
                payload = range(4, len(content) // 2)
                for position in payload:
                    content[position] ^= 255
                path.write_bytes(content)
            dist.barrier()
        else:
            if phase == 1:
                zombie, stale = RunStore(place, "large"), build(seed=5)
                zombie.open_attempt("recipe")
                RunStore(place, "large").open_attempt("recipe")
                assert raises(Fenced, lambda: zombie.save(stale, step=9, tokens=90, tables={}))
            loaded = build(seed=3)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                position = store.load(loaded)
            assert position == {"step": 1, "tokens": 10, "scalars": {"a": 1}}, position
            assert (rank == 0) == any("step 3 is damaged" in str(w.message) for w in caught)
            found = whole(loaded)
            if rank == 0:
                (folder / f"loaded-{world}.json").write_text(json.dumps(found))
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
