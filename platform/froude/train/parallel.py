"""Who computes what: ranks, FSDP2 sharding, and sums over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class World:
    """This process's rank among `size` workers, and the device that it computes on."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    def current(cls, device: torch.device | str = "cpu") -> World:
        """The initialised process group's view, or one worker alone."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size(), torch.device(device))
        return cls(device=torch.device(device))

    def slots(self, total: int) -> range:
        """Slots that this rank computes: v with v mod size = rank."""
        return range(self.rank, total, self.size)

    def sum(self, values: Tensor) -> Tensor:
        """Sum over ranks, in place, in the dtype given."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def mesh(self) -> DeviceMesh:
        return init_device_mesh(self.device.type, (self.size,))


def resolve_device(device: str) -> torch.device:
    """`auto` is the GPU where there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


#: Parameters below which a rank keeps gathered weights from forward to backward: 256 MiB in fp32. Gathering them again
#: costs small models a quarter of a step (three processes over gloo, width 192).
KEEP_GATHERED = 2**26


def shard(model: nn.Module, blocks: Sequence[nn.Module], world: World) -> None:
    """FSDP2 over all ranks, block by block, when there is more than one."""
    if world.size == 1:
        return
    mesh = world.mesh()
    again = sum(parameter.numel() for parameter in model.parameters()) > KEEP_GATHERED
    for block in blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=again)
    fully_shard(model, mesh=mesh, reshard_after_forward=again)


def set_gradient_sync(model: nn.Module, enabled: bool) -> None:
    """Reduce gradients in the next backward pass or keep them on their rank (accumulation)."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(enabled)


def whole(value: Tensor) -> Tensor:
    """The full tensor of a sharded one."""
    return value.full_tensor() if isinstance(value, DTensor) else value
