"""Who computes what: ranks, how a model lies on them (FSDP2, or whole), and sums over ranks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from froude.config import Compute, ConfigError
from froude.hardware.sizes import BUCKET, KEEP_GATHERED


@dataclass(frozen=True)
class World:
    """This process's rank among `size` workers, and the device that it computes on; all workers where no group is."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    group: Any = None

    @classmethod
    def current(cls, device: torch.device | str = "cpu") -> World:
        """The initialised process group's view, or one worker alone."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size(), torch.device(device))
        return cls(device=torch.device(device))

    def sum(self, values: Tensor) -> Tensor:
        """Sum over ranks, in place, in the dtype given."""
        if self.size > 1:
            dist.all_reduce(values, group=self.group)
        return values

    def largest(self, values: Tensor) -> Tensor:
        """Maximum over ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values, dist.ReduceOp.MAX, group=self.group)
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


@dataclass(frozen=True)
class Sharding:
    """How a model lies on the workers.

    `shards` is this worker among those that together hold one whole model; of such groups there are `replicas`.
    `gathered`: weights, once gathered, may stay so until the step's end. `each_pass`: gradients are shared out after
    each micro-batch, else once a step.
    """

    shards: World = field(default_factory=World)
    replicas: int = 1
    gathered: bool = True
    each_pass: bool = False


def shard(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    world: World,
    compute: Compute | None = None,
    *,
    keep: bool = False,
    make: Callable[[nn.Module], None] = lambda unit: None,
) -> Sharding:
    """Lay the model out as `compute.strategy` says: by FSDP2, block by block, or all at once where it is small.

    With `keep` weights stay gathered during a step, whatever the strategy. Replicas of one worker each are not wrapped
    at all: FSDP2 would keep a second copy of their weights. `make` gives a unit its weights, just before they are
    shared out and moved to the device. ConfigError for a scalar, as `refuse_scalars`, and for replicas that do not
    divide the workers.
    """
    compute = compute or Compute()
    replicas = _replicas(compute, world)
    size = world.size // replicas
    if size == 1:
        make(model)
        model.to(world.device)
        return Sharding(World(device=world.device), replicas)
    refuse_scalars(model)
    # Imported here: one second that a one-process trial has no use for.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    shape = (replicas, size) if replicas > 1 else (size,)
    names = ("replicas", "shards")[-len(shape) :]
    mesh = init_device_mesh(world.device.type, shape, mesh_dim_names=names)
    large = sum(parameter.numel() for parameter in model.parameters()) > KEEP_GATHERED
    gathered = keep or not large or compute.strategy in ("zero1", "zero2")
    for block in _apart(model, blocks) if large else ():
        make(block)
        fully_shard(block, mesh=mesh, reshard_after_forward=not gathered)
    make(model)
    fully_shard(model, mesh=mesh, reshard_after_forward=not gathered)
    # What only some ranks' tokens use is reduced on all: else FSDP2 would take one parameter's gradient for another's.
    model.set_reduce_scatter_unused_params(True)  # type: ignore[operator]
    model.to(world.device)  # what a module moves itself, in an `_apply` of its own
    shards = World(
        world.rank % size, size, world.device, mesh["shards"].get_group() if replicas > 1 else None
    )
    return Sharding(shards, replicas, gathered, each_pass=compute.strategy == "zero2" or not gathered)


def _replicas(compute: Compute, world: World) -> int:
    """How many whole models the workers hold."""
    if world.size == 1 or compute.strategy not in ("ddp", "hsdp"):
        return 1
    if compute.strategy == "ddp":
        return world.size
    if not compute.replicas:
        return _even_nodes(world)
    if world.size % compute.replicas:
        raise ConfigError(
            f"`compute.replicas` must divide the {world.size} workers, but got {compute.replicas}; use 0: one replica "
            "a node"
        )
    return compute.replicas


def _even_nodes(world: World) -> int:
    """The number of nodes, on each of which are as many workers, ranks of a node being neighbours; else 1.

    Ray Train and torchrun say how many are on a worker's own node.
    """
    here = torch.tensor([int(os.environ.get("LOCAL_WORLD_SIZE") or world.size)], device=world.device)
    most, least = int(world.largest(here.clone())), -int(world.largest(-here))
    return world.size // most if most == least and world.size % most == 0 else 1


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


def set_all_reduce(model: nn.Module, enabled: bool, sharding: Sharding) -> None:
    """Add the gradients up over replicas in the next backward pass, or keep them to a replica (accumulation)."""
    if sharding.replicas > 1 and sharding.shards.size > 1:
        model.set_requires_all_reduce(enabled)  # type: ignore[operator]


def average_replicas(model: nn.Module, sharding: Sharding) -> None:
    """Average the gradients over replicas of one worker each; others have done so in the backward pass."""
    if sharding.replicas == 1 or sharding.shards.size > 1:
        return
    bucket: list[Tensor] = []
    gradients = local_gradients(model)
    for number, gradient in enumerate(gradients, 1):
        bucket.append(gradient)
        if number == len(gradients) or sum(each.nbytes for each in bucket) >= BUCKET:
            flat = torch.cat([each.flatten() for each in bucket])
            dist.all_reduce(flat)
            flat /= sharding.replicas
            parts = flat.split([each.numel() for each in bucket])
            torch._foreach_copy_(bucket, [p.view_as(g) for p, g in zip(parts, bucket, strict=True)])
            bucket = []


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
