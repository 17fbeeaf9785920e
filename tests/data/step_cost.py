"""What a call costs this rank: bytes that it sends to other ranks, and bytes that it has in memory at most."""

from __future__ import annotations

import json
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Sent(TorchDispatchMode):
    """Adds up what collectives send off this rank: the rows of an all-to-all that are for others, a shard to each."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if call.namespace in ("c10d", "_c10d_functional"):
            self.nbytes += self._sent(call.__name__.partition(".")[0], args)
        return call(*args, **(kwargs or {}))

    def _sent(self, name: str, args: Any) -> int:
        rank, world = dist.get_rank(), dist.get_world_size()
        match name:
            case "alltoall_base_":
                _, given, _, _, counts = args[:5]
                row = given.nbytes // len(given) if len(given) else 0
                return row * sum(count for other, count in enumerate(counts) if other != rank)
            case "_allgather_base_":
                return int(args[1].nbytes) * (world - 1)
            case "all_gather_into_tensor":
                return int(args[0].nbytes) * (world - 1)
            case "wait_tensor" | "_wrap_tensor_autograd" | "barrier":
                return 0
        raise NotImplementedError(f"how much does {name} send?")


def sent_bytes(work: Callable[[], object]) -> int:
    with Sent() as sent:
        work()
    return sent.nbytes


class Held(TorchDispatchMode):
    """Adds up the tensors that operations have made and that are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.held = self.most = 0

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        made = call(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in given:
                storage = tensor.untyped_storage()
                self._count(storage.nbytes())
                weakref.finalize(storage, self._count, -storage.nbytes())
        return made

    def _count(self, nbytes: int) -> None:
        self.held += nbytes
        self.most = max(self.most, self.held)


def tensor_bytes(work: Callable[[], object]) -> int:
    """What the tensors that it makes take at most, without what kernels take for themselves."""
    with Held() as held:
        work()
    return held.most


def allocated_bytes(work: Callable[[], object]) -> int:
    """By how much torch's allocator is above its present level at most, what kernels take for themselves included."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    held = most = 0
    for event in sorted((e for e in events if e["name"] == "[memory]"), key=lambda e: e["ts"]):
        held += event["args"]["Bytes"]
        most = max(most, held)
    return most
