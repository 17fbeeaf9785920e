"""From the windows of a step to its gradient, loss and norm over all ranks: exactly, or as fast as it goes.

Both compute the gradient of the batch's mean loss. `Fast` averages over ranks with one reduce-scatter, so the last
bits depend on their number. `Exact` adds what the slots yield in one fixed tree (`froude.train.slots`), so they don't.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from froude.config import Run
from froude.train import parallel
from froude.train.objective import summed_loss
from froude.train.parallel import World
from froude.train.slots import Rounds, SlotTree, halved_sum, row_squares, subtrees

#: Tokens of the pass of a rank that has no slot in a round: it keeps the collectives of forward and backward in step,
#: and is never sent.
IDLE_TOKENS = 8


class Reduction(Protocol):
    """How a step's gradient is computed and summed."""

    rounds: Rounds

    def backward(self, windows: Tensor) -> tuple[float, float]:
        """Leave the gradient in `.grad`; mean loss (nats per token) and gradient norm over all ranks.

        `windows` [n, context + 1] are those of this rank's slots, in the order of `rounds.mine`.
        """


def reduction(run: Run, model: nn.Module, world: World) -> Reduction:
    """The run's choice; `model` has been sharded."""
    return (Exact if run.reduction == "exact" else Fast)(run, model, world)


class Fast:
    """FSDP's own reduce-scatter, once a step."""

    def __init__(self, run: Run, model: nn.Module, world: World) -> None:
        self.run, self.model, self.world = run, model, world
        self.rounds = Rounds(run.slots, world.rank, world.size)

    def backward(self, windows: Tensor) -> tuple[float, float]:
        """Loss divided by the global number of tokens; times the world size, since FSDP averages over ranks."""
        total = torch.zeros((), dtype=torch.float64, device=self.world.device)
        chunks = self._chunks(windows)
        for i, chunk in enumerate(chunks):
            parallel.set_gradient_sync(self.model, i == len(chunks) - 1, self.world)
            loss = summed_loss(self.model, chunk, self.run)
            total += loss.detach().double()
            (loss * (self.world.size / self.run.batch)).backward()
        gradients = parallel.local_gradients(self.model)
        squared = torch.nn.utils.get_total_norm(gradients).double().square()
        total, squared = self.world.sum(torch.stack((total, squared))).unbind()
        return float(total) / self.run.batch, float(squared.sqrt())

    def _chunks(self, windows: Tensor) -> Sequence[Tensor]:
        """Micro-batches of this rank; every rank has the same number, so that their collectives match."""
        size = self.run.micro_batch // self.run.model.context
        most = len(self.rounds) * self.run.windows_per_slot
        return windows.tensor_split(-(-most // size)) if size and most > size else (windows,)


class Exact:
    """Gradient, loss and norm as functions of the slots alone: the same bits at any number of ranks."""

    def __init__(self, run: Run, model: nn.Module, world: World) -> None:
        self.run, self.model, self.world = run, model, world
        self.rounds = Rounds(run.slots, world.rank, world.size, run.slot_schedule)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.tree = SlotTree(run.slots)  # of whole gradients, where there is one rank
        if world.size > 1:
            _install(model, self.rounds)

    def backward(self, windows: Tensor) -> tuple[float, float]:
        size = self.run.windows_per_slot
        losses = torch.zeros(self.run.slots, dtype=torch.float64, device=self.world.device)
        for number in range(len(self.rounds)):
            self.rounds.now = number
            slot = self.rounds.slot(self.rounds.rank)
            parallel.set_reshard(self.model, self.rounds.is_last, self.world)
            first = number * size
            loss = self._pass(None if slot is None else windows[first : first + size])
            if slot is not None:
                losses[slot] = loss
            self._collect(slot)
        return self._totals(losses)

    def _pass(self, windows: Tensor | None) -> Tensor:
        """Forward and backward of one slot, or of an idle one; gradients of its micro-batches are added in order."""
        size = self.run.micro_batch // self.run.model.context or self.run.windows_per_slot
        count = -(-self.run.windows_per_slot // size)
        if windows is None:
            idle = torch.zeros(1, min(IDLE_TOKENS, self.run.model.context) + 1, dtype=torch.int64)
            parts: Sequence[Tensor] = [idle.to(self.world.device)] * count
        else:
            parts = windows.split(size)
        total = torch.zeros((), dtype=torch.float64, device=self.world.device)
        for i, part in enumerate(parts):
            parallel.set_gradient_sync(self.model, i == count - 1, self.world)
            loss = summed_loss(self.model, part, self.run)
            total += loss.detach().double()
            (loss / self.run.batch).backward()
        return total

    def _collect(self, slot: int | None) -> None:
        """After a round: one rank adds its gradients itself; FSDP would add rounds up in sequence, so drop its sums."""
        if self.world.size == 1:
            assert slot is not None
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
            self.tree.add((0, slot), gradients, owned=True)
        if self.world.size > 1 and self.rounds.is_last:
            return
        for parameter in self.parameters:
            parameter.grad = None
        if self.rounds.is_last:
            for parameter, gradient in zip(self.parameters, self.tree.root(), strict=True):
                parameter.grad = gradient

    def _totals(self, losses: Tensor) -> tuple[float, float]:
        """Mean loss and gradient norm: each slot's loss and each row's sum of squares, gathered, then halved.

        FSDP2 shards by rows and splits none, so a row's sum is one rank's. Each number is one rank's and zero bits on
        all others, so an integer sum moves it unchanged.
        """
        found = [losses]
        for parameter, gradient in zip(self.parameters, parallel.local_gradients(self.model), strict=True):
            rows = parameter.shape[0] if parameter.ndim else 1
            most = -(-rows // self.world.size)
            squares = losses.new_zeros(rows)
            start = min(self.world.rank * most, rows)
            squares[start : min(start + most, rows)] = row_squares(gradient)
            found.append(squares)
        numbers = self.world.sum(torch.cat(found).view(torch.int64)).view(torch.float64)
        total, squared = (halved_sum(part[None]) for part in numbers.tensor_split([len(losses)]))
        return float(total) / self.run.batch, float(squared.sqrt())


def _install(model: nn.Module, rounds: Rounds) -> None:
    """Put the tree in the place of FSDP2's reduce-scatter, in every module that is sharded by itself."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

    class SlotReduceScatter(ReduceScatter):
        """Sends each slot's gradient to the owners of its shards, who add them up.

        Called once a module and round with `input_tensor` = for each rank its rows of the module's gradient. What it
        leaves in `output_tensor` before the last round means nothing.
        """

        def __init__(self) -> None:
            self.shard, self.whole = SlotTree(rounds.slots), SlotTree(rounds.slots)
            self.held = [subtrees(rounds.slots, rounds.of(rank)) for rank in range(rounds.world)]

        def allocate(
            self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
        ) -> Tensor:
            return torch.empty(*size, dtype=dtype, device=device)

        def __call__(
            self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
        ) -> None:
            ranks, slot = range(rounds.world), rounds.slot(rounds.rank)
            if rounds.schedule == "cyclic":
                nodes = [[(0, v)] if (v := rounds.slot(rank)) is not None else [] for rank in ranks]
                mine = [] if slot is None else [input_tensor]
            else:
                if slot is not None:
                    self.whole.add((0, slot), [input_tensor], owned=True)
                if not rounds.is_last:
                    return
                nodes, mine = self.held, [tensor for _, (tensor,) in self.whole.take()]
            size = output_tensor.numel()
            if len(mine) == 1:
                (send,) = mine
            else:  # for each rank its part of every node
                parts = [tensor.view(rounds.world, size) for tensor in mine]
                send = torch.stack(parts, 1).flatten() if parts else input_tensor[:0]
            counts = [size * len(found) for found in nodes]
            received = input_tensor.new_empty(sum(counts))
            dist.all_to_all_single(received, send, counts, [size * len(mine)] * rounds.world, group=group)
            for node, part in zip(
                (node for found in nodes for node in found), received.split(size), strict=True
            ):
                self.shard.add(node, [part])
            if rounds.is_last:
                output_tensor.copy_(self.shard.root()[0])

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_reduce_scatter(SlotReduceScatter())
            module.set_gradient_divide_factor(1.0)  # 1.0 keeps FSDP from dividing by the world size outside
            module.set_reduce_scatter_unused_params(True, recurse=False)
