"""Who computes what: ranks, FSDP2 sharding, and sums over ranks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from froude.config import ConfigError


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

    def sum(self, values: Tensor) -> Tensor:
        """Sum over ranks, in place, in the dtype given."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def largest(self, values: Tensor) -> Tensor:
        """Maximum over ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values, dist.ReduceOp.MAX)
        return values


#: With which cuBLAS gives the same bits each time; torch looks once a process, at its first matrix product.
CUBLAS_WORKSPACES = (":4096:8", ":16:8")


def resolve_device(device: str) -> torch.device:
    """`auto` is the GPU where there is one, else the CPU; ConfigError for a GPU that is not there."""
    found = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and found == "cpu":
        raise ConfigError(
            '`device` is "cuda", but torch finds no GPU on this machine; use "auto" or another machine'
        )
    name = found if device == "auto" else device
    if name == "cuda" and os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in CUBLAS_WORKSPACES:
        # An exact run may follow in this process.
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = CUBLAS_WORKSPACES[0]
    return torch.device(name)


#: Parameters below which a rank keeps gathered weights from forward to backward: 256 MiB in fp32. Gathering them again
#: costs small models a quarter of a step (three processes over gloo, width 192); once they are kept, a unit for each
#: block would only mean more collectives.
KEEP_GATHERED = 2**26


def shard(model: nn.Module, blocks: Sequence[nn.Module], world: World, *, keep: bool = False) -> bool:
    """FSDP2 over all ranks when there is more than one: block by block, or all at once where the model is small.

    Returns whether a rank's weights, once gathered, may stay so until the step's end: a small model's, or with `keep`.
    ConfigError for a scalar, as `refuse_scalars`.
    """
    if world.size == 1:
        return True
    refuse_scalars(model)
    # Imported here: one second that a one-process trial has no use for.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(world.device.type, (world.size,))
    large = sum(parameter.numel() for parameter in model.parameters()) > KEEP_GATHERED
    for block in _apart(model, blocks) if large else ():
        fully_shard(block, mesh=mesh, reshard_after_forward=not keep)
    fully_shard(model, mesh=mesh, reshard_after_forward=large and not keep)
    # What only some ranks' tokens use is reduced on all: else FSDP2 would take one parameter's gradient for another's.
    model.set_reduce_scatter_unused_params(True)  # type: ignore[operator]
    return keep or not large


def _apart(model: nn.Module, blocks: Sequence[nn.Module]) -> Iterator[nn.Module]:
    """The blocks that share no parameter with what is outside of them; FSDP2 wants all who share in one unit."""
    uses = _uses(model)
    for block in dict.fromkeys(blocks):
        if all(number == uses[parameter] for parameter, number in _uses(block).items()):
            yield block


def _uses(module: nn.Module) -> Counter[nn.Parameter]:
    """How often each parameter is the attribute of a module."""
    return Counter(parameter for _, parameter in module.named_parameters(remove_duplicate=False))


def refuse_scalars(model: nn.Module) -> None:
    """ConfigError if a parameter has no dimension, and so no rows."""
    if scalars := [name for name, parameter in model.named_parameters() if not parameter.ndim]:
        raise ConfigError(
            f"a parameter must have rows, but {scalars[0]} is a scalar; give it the shape (1,), or use one worker and "
            "an optimizer of rows"
        )


def set_gradient_sync(model: nn.Module, enabled: bool, world: World) -> None:
    """Reduce gradients in the next backward pass or keep them on their rank (accumulation)."""
    if world.size > 1:
        model.set_requires_gradient_sync(enabled)  # type: ignore[operator]


def set_reshard(model: nn.Module, enabled: bool, world: World) -> None:
    """After backward, give back the weights gathered from other ranks, or keep them for the next pass of this step."""
    if world.size > 1:
        model.set_reshard_after_backward(enabled)  # type: ignore[operator]


def reshard(model: nn.Module, world: World) -> None:
    """Give back weights that a forward pass without a backward pass has left gathered.

    While they are gathered, the model's parameters are not those that the optimizer knows.
    """
    if world.size > 1:
        for module in model.modules():
            if hasattr(module, "reshard"):
                module.reshard()  # type: ignore[operator]


def local_gradients(model: nn.Module) -> list[Tensor]:
    """This rank's shards of the gradients, sharing their memory; the whole gradients where there is one rank."""
    return [local(p.grad) for p in model.parameters() if p.grad is not None]


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of a tensor, sharing its memory; the tensor itself if it is not sharded."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def rows_of(tensor: Tensor, rank: int, size: int) -> range:
    """The rows (first index) of a whole tensor that FSDP2 gives to a rank; it splits none, and a scalar is one."""
    rows = tensor.shape[0] if tensor.ndim else 1
    most = -(-rows // size)
    return range(min(rank * most, rows), min((rank + 1) * most, rows))


def like(parameter: Tensor, shard: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """This rank's rows of a tensor (of the parameter's shape if not said) that is sharded as `parameter` is."""
    from torch.distributed.tensor import DTensor

    assert isinstance(parameter, DTensor)
    whole = torch.empty(shape or parameter.shape, device="meta")
    return DTensor.from_local(
        shard,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )
