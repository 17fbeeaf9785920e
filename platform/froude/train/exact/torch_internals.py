"""The only home of what torch does not promise: how FSDP2 reduces gradients, and how it lays them out for that.

A contract test holds each of these against the installed torch; another version than those tested is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from froude.config import ConfigError
from froude.train.exact.slots import Rounds, SlotTree, wide

#: The next minor version of torch, which nobody has tested; also the bound in pyproject.toml.
UNTESTED_TORCH = (2, 14)


def check_torch(version: str | None = None) -> None:
    """ConfigError if torch is newer than what exact runs on several workers were tested with."""
    version = version or torch.__version__
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) >= UNTESTED_TORCH:
        bound = ".".join(map(str, UNTESTED_TORCH))
        raise ConfigError(
            f"an exact run on several workers needs a torch below {bound}, whose FSDP2 was tested for it, but this is "
            f'{version}; install an older one, or use reduction = "fast"'
        )


def reduce_by_slots(model: nn.Module, rounds: Rounds, see: Callable[[Iterator[Tensor]], None]) -> None:
    """Put the tree of slots in the place of FSDP2's reduce-scatter, in every module that is sharded by itself.

    `see` is handed the whole gradients of this rank's slot, module by module. ConfigError on a torch whose FSDP2 was
    not tested for it.
    """
    check_torch()
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

    class SlotReduceScatter(ReduceScatter):
        """Sends each slot's gradient to the owners of its shards, who add them up.

        Called once a module and round with `input_tensor` = for each rank its rows of the module's gradient. What it
        leaves in `output_tensor` before the last round means nothing.
        """

        def __init__(self, module: nn.Module) -> None:
            self.tree = SlotTree(rounds.slots)
            self.shapes = [p.shape for p in _managed(module, FSDPModule) if p.requires_grad]

        def allocate(
            self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
        ) -> Tensor:
            return torch.empty(*size, dtype=dtype, device=device)

        def __call__(
            self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
        ) -> None:
            size, slots = output_tensor.numel(), [rounds.slot(rank) for rank in range(rounds.world)]
            counts = [0 if slot is None else size for slot in slots]
            idle = slots[rounds.rank] is None
            if not idle:
                see(unpacked(input_tensor, self.shapes, rounds.world))
            received = input_tensor.new_empty(sum(counts))
            dist.all_to_all_single(
                received,
                input_tensor[:0] if idle else input_tensor,
                counts,
                [0 if idle else size] * rounds.world,
                group=group,
            )
            present = [slot for slot in slots if slot is not None]
            for slot, part in zip(present, received.split(size), strict=True):
                self.tree.add((0, slot), [wide(part)], owned=True)
            if rounds.is_last:
                output_tensor.copy_(self.tree.root()[0])
            else:
                self.tree.leave_buffers()

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_reduce_scatter(SlotReduceScatter(module))
            module.set_gradient_divide_factor(1.0)  # 1.0 keeps FSDP from dividing by the world size outside


def _managed(module: nn.Module, apart: type) -> list[nn.Parameter]:
    """A module's parameters in the order in which FSDP2 lays them out, without those that are sharded apart."""
    found: dict[int, nn.Parameter] = {}
    for child in module.children():
        if not isinstance(child, apart):
            found |= {id(p): p for p in _managed(child, apart)}
    found |= {id(p): p for p in module.parameters(recurse=False) if id(p) not in found}
    return list(found.values())


def unpacked(packed: Tensor, shapes: Sequence[torch.Size], world: int) -> Iterator[Tensor]:
    """The whole gradients of a module from what FSDP2 hands to its reduce-scatter: each rank's rows, padded."""
    by_rank, start = packed.view(world, -1), 0
    for shape in shapes:
        rows, row = shape[0], math.prod(shape[1:])
        most = -(-rows // world)
        part = by_rank[:, start : start + most * row]
        start += most * row
        yield part.reshape(world * most, row)[:rows]
    assert start == by_rank.shape[1]
