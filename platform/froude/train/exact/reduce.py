"""From the windows of a step to its gradient, loss and norm over all ranks: exactly, or as fast as it goes.

Both compute the gradient of the batch's mean loss. `Fast` averages over ranks as FSDP2 does, so the last bits depend
on their number. `Exact` adds what the slots yield in one fixed tree (`froude.train.exact.slots`), so they
don't.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from froude.config import ConfigError, Run
from froude.train import parallel
from froude.train.exact import torch_internals
from froude.train.exact.slots import Rounds, SlotTree, halved_sum, norm, row_squares, subtrees, wide
from froude.train.objective import Objective, minimised
from froude.train.parallel import Sharding, World
from froude.train.speed import phases

#: Tokens of the pass of a rank that has no slot in a round: it keeps the collectives of forward and backward in step,
#: and is never sent. As many as products in fp8 take.
IDLE_TOKENS = 16


class Totals(NamedTuple):
    """Mean loss (nats per token) and gradient norm over all ranks; the mean of the slots' squared norms if measured.

    The loss is the cross-entropy alone. A slot's gradient is that of its own mean loss, so with these norms its batch
    is the run's over the slots. `norms` are those of each tensor's gradient, where the run clips by them.
    """

    loss: float
    norm: float
    slot_square: float | None = None
    norms: Mapping[str, float] = MappingProxyType({})


class Reduction(Protocol):
    """How a step's gradient is computed and summed."""

    rounds: Rounds

    def backward(
        self, windows: Tensor, *, batch: int = 0, noise: bool = False, objective: Objective = minimised
    ) -> Totals:
        """Leave the gradient in `.grad`; with `noise` measure the slots' norms too, where slots have gradients.

        `windows` [n, context + 1] are those of this rank's slots, in the order of `rounds.mine`; `batch` tokens are in
        those of all ranks (0: the run's batch). `objective` is handed them in this order, a micro-batch at a time.
        """


def reduction(run: Run, model: nn.Module, world: World, sharding: Sharding) -> Reduction:
    """The run's choice, of a model that lies on the workers in this way."""
    kind = Exact if run.reduction == "exact" else Fast
    return kind(run, model, world, sharding)


class Fast:
    """FSDP's own reduce-scatter, and a sum over replicas, if any: once a step, or after each micro-batch."""

    def __init__(self, run: Run, model: nn.Module, world: World, sharding: Sharding | None = None) -> None:
        self.run, self.model, self.world, self.sharding = run, model, world, sharding or Sharding()
        self.rounds = Rounds(run.slots, world.rank, world.size)

    def backward(
        self, windows: Tensor, *, batch: int = 0, noise: bool = False, objective: Objective = minimised
    ) -> Totals:
        """Loss divided by the global number of tokens; times the world size, since FSDP averages over ranks."""
        batch = batch or self.run.batch
        total = torch.zeros((), dtype=torch.float64, device=self.world.device)
        chunks = self._chunks(windows, batch)
        for i, chunk in enumerate(chunks):
            last = i == len(chunks) - 1
            parallel.set_gradient_sync(self.model, last or self.sharding.each_pass, self.sharding.shards)
            parallel.set_all_reduce(self.model, last, self.sharding)
            if self.sharding.gathered:
                parallel.set_reshard(self.model, last, self.sharding.shards)
            phases.begin("forward")
            sought, loss = objective(self.model, chunk, self.run)
            phases.begin("backward")
            total += loss.detach().double()
            (sought * (self.world.size / batch)).backward()
        phases.begin("reduce")
        for parameter in self.model.parameters():
            if parameter.requires_grad and parameter.grad is None:  # no token of the batch has used it
                parameter.grad = torch.zeros_like(parameter)
        parallel.average_replicas(self.model, self.sharding)
        gradients = parallel.local_gradients(self.model)
        squared = _norm(gradients).double().square()
        names, squares = self._squares() if self.run.optimizer.clipping == "adagc" else ([], [])
        found = torch.stack((total, squared, *squares))
        if self.sharding.replicas > 1:  # each has the whole gradient
            found[1:] /= self.sharding.replicas
        # The only time in a step that a GPU is waited for: whether there is an update depends on these numbers.
        loss, square, *others = self.world.sum(found).tolist()
        norms = {name: math.sqrt(each) for name, each in zip(names, others, strict=True)}
        return Totals(loss / batch, math.sqrt(square), norms=norms)

    def _squares(self) -> tuple[list[str], list[Tensor]]:
        """Squared norms of this rank's shards of the gradients, by the names of their tensors."""
        found = {n: parallel.local(p.grad) for n, p in self.model.named_parameters() if p.grad is not None}
        norms = [torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in found.values()]
        return list(found), [norm.square() for norm in norms]

    def _chunks(self, windows: Tensor, batch: int) -> Sequence[Tensor]:
        """Micro-batches of this rank; every rank has the same number, so that their collectives match."""
        size = self.run.micro_batch // self.run.model.context
        most = len(self.rounds) * _windows_of_a_slot(self.run, batch)
        return windows.tensor_split(-(-most // size)) if size and most > size else (windows,)


def _norm(gradients: list[Tensor]) -> Tensor:
    """The norm of all of them, in fp32 or more."""
    if gradients and gradients[0].dtype == torch.bfloat16:  # whose norms would be rounded to bf16
        norms = torch.stack(torch._foreach_norm(gradients, dtype=torch.float32))
        found: Tensor = torch.linalg.vector_norm(norms)
        return found
    return torch.nn.utils.get_total_norm(gradients)


def refuse_hooks(model: nn.Module) -> None:
    """ConfigError if the model, not sharded yet, has hooks on gradients: sharding drops them without a word."""
    if any(p._post_accumulate_grad_hooks or p._backward_hooks for p in model.parameters()):
        raise ConfigError(
            "a run must be the same on several workers, but the model has hooks on gradients, such as those of an "
            "optimizer in the backward pass, which sharding would drop; remove them"
        )


class Exact:
    """Gradient, loss and norm as functions of the slots alone: the same bits at any number of ranks.

    cyclic: FSDP hands each slot's gradient to ours instead of its own reduce-scatter, so everything stays sharded.
    block, and one rank: weights stay gathered during a step; a rank adds whole gradients of its own slots, and sends
    what is left once.
    """

    def __init__(self, run: Run, model: nn.Module, world: World, sharding: Sharding) -> None:
        self.run, self.model, self.world, self.gathered = run, model, world, sharding.gathered
        self.rounds = Rounds(run.slots, world.rank, world.size, run.slot_schedule)
        self.whole = keeps_gathered(run, world)
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.names, self.parameters = list(trained), list(trained.values())
        self.tree = SlotTree(run.slots)
        #: Norms of the gradients of this rank's slot in this round; None while nobody asks.
        self.norms: list[Tensor] | None = None
        if not self.whole:
            torch_internals.reduce_by_slots(model, self.rounds, self.see)

    def backward(
        self, windows: Tensor, *, batch: int = 0, noise: bool = False, objective: Objective = minimised
    ) -> Totals:
        batch = batch or self.run.batch
        size = _windows_of_a_slot(self.run, batch)
        losses = torch.zeros(self.run.slots, dtype=torch.float64, device=self.world.device)
        norms: dict[int, list[Tensor]] = {}
        for number in range(len(self.rounds)):
            self.rounds.now = number
            slot = self.rounds.slot(self.rounds.rank)
            if self.whole and slot is None:  # nobody waits for this rank
                break
            if self.gathered:
                parallel.set_reshard(self.model, not self.whole and self.rounds.is_last, self.world)
            self.norms = [] if noise else None
            part = None if slot is None else windows[number * size : (number + 1) * size]
            loss = self._pass(part, batch, objective)
            if self.whole:
                assert slot is not None
                gradients = self._take()
                self.see(gradients)
                self.tree.add((0, slot), [wide(gradient) for gradient in gradients], owned=True)
            elif not self.rounds.is_last:  # FSDP would add the rounds up in sequence
                for parameter in self.parameters:
                    parameter.grad = None
            if slot is not None:
                losses[slot], norms[slot] = loss, self.norms or []
        if self.whole:
            self._exchange()
        return self._totals(losses, _squares(norms, losses) if noise else None, batch)

    def see(self, gradients: Iterable[Tensor]) -> None:
        """Whole gradients of this rank's slot: their norms are noted if asked for."""
        if self.norms is not None:
            self.norms += [norm(gradient) for gradient in gradients]

    def _pass(self, windows: Tensor | None, batch: int, objective: Objective) -> Tensor:
        """Forward and backward of one slot, or of an idle one; gradients of its micro-batches are added in order."""
        whole = _windows_of_a_slot(self.run, batch)
        size = self.run.micro_batch // self.run.model.context or whole
        count = -(-whole // size)
        if windows is None:
            objective = minimised
            shape = (1, 2) if self.run.model.documents else (1,)
            idle = torch.zeros(*shape, min(IDLE_TOKENS, self.run.model.context) + 1, dtype=torch.int64)
            parts: Sequence[Tensor] = [idle.to(self.world.device)] * count
        else:
            parts = windows.split(size)
        total = torch.zeros((), dtype=torch.float64, device=self.world.device)
        for i, part in enumerate(parts):
            parallel.set_gradient_sync(self.model, not self.whole and i == count - 1, self.world)
            phases.begin("forward")
            sought, loss = objective(self.model, part, self.run)
            phases.begin("backward")
            total += loss.detach().double()
            (sought / batch).backward()
        phases.begin("reduce")
        return total

    def _take(self) -> list[Tensor]:
        """The gradients of the weights as they are gathered now, which start anew."""
        weights = [p for p in self.model.parameters() if p.requires_grad]
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in weights]
        for weight in weights:
            weight.grad = None
        return found

    def _exchange(self) -> None:
        """Give every rank its rows of all that the ranks have added up, and add that up: the gradient's shards."""
        nodes = self.tree.take()
        if self.world.size == 1:
            ((_, gradients),) = nodes
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = gradient.to(parameter.dtype)
            return
        parallel.reshard(self.model, self.world)
        mine = [parallel.local(parameter) for parameter in self.parameters]
        size = sum(tensor.numel() for tensor in mine)
        pieces, sent = [], []
        for rank in range(self.world.size):
            rows = [self._rows(parameter, rank) for parameter in self.parameters]
            theirs = [whole[r].flatten() for _, found in nodes for whole, r in zip(found, rows, strict=True)]
            pieces += theirs
            sent.append(sum(piece.numel() for piece in theirs))
        held = [subtrees(self.run.slots, self.rounds.of(rank)) for rank in range(self.world.size)]
        received = pieces[0].new_empty(size * sum(map(len, held)))
        dist.all_to_all_single(received, torch.cat(pieces), [size * len(found) for found in held], sent)
        for node, part in zip((node for found in held for node in found), received.split(size), strict=True):
            self.tree.add(node, [part])
        (total,) = self.tree.root()
        parts = total.split([tensor.numel() for tensor in mine])
        for parameter, tensor, part in zip(self.parameters, mine, parts, strict=True):
            parameter.grad = parallel.like(parameter, part.view_as(tensor).to(tensor.dtype))

    def _rows(self, parameter: Tensor, rank: int) -> slice:
        found = parallel.rows_of(parameter, rank, self.world.size)
        return slice(found.start, found.stop)

    def _totals(self, losses: Tensor, squares: Tensor | None, batch: int) -> Totals:
        """Mean loss and gradient norm: each slot's loss and each row's sum of squares, gathered, then halved.

        Each number is one rank's and zero bits on all others, so an integer sum moves it unchanged.
        """
        slots = len(losses)
        found = [losses] if squares is None else [losses, squares]
        for parameter, gradient in zip(self.parameters, parallel.local_gradients(self.model), strict=True):
            rows = losses.new_zeros(parameter.shape[0] if parameter.ndim else 1)
            rows[self._rows(parameter, self.world.rank)] = row_squares(gradient)
            found.append(rows)
        # On a GPU one copy, and the additions here: each would wait for the device.
        numbers = self.world.sum(torch.cat(found).view(torch.int64)).view(torch.float64).cpu()
        ends = [slots] if squares is None else [slots, 2 * slots]
        norms: dict[str, float] = {}
        if self.run.optimizer.clipping == "adagc":
            parts = numbers[ends[-1] :].split([len(rows) for rows in found[len(ends) :]])
            norms = {
                name: math.sqrt(float(halved_sum(part[None].clone())))
                for name, part in zip(self.names, parts, strict=True)
            }
        total, *of_slots, squared = (float(halved_sum(part[None])) for part in numbers.tensor_split(ends))
        # Here a slot's gradient is its share of the batch's: of its own mean loss it is `slots` times as long.
        slot_square = of_slots[0] * slots if of_slots else None
        return Totals(total / batch, math.sqrt(squared), slot_square, norms)


def _squares(norms: Mapping[int, Sequence[Tensor]], losses: Tensor) -> Tensor:
    """Squared norms [slots] of these slots' gradients, zero where they are another rank's; the device is asked once."""
    flat = [each for found in norms.values() for each in found]
    numbers = iter(torch.stack(flat).tolist() if flat else ())
    squares = torch.zeros_like(losses, device="cpu")
    for slot, found in norms.items():
        squares[slot] = math.fsum(next(numbers) ** 2 for _ in found)
    return squares.to(losses.device)


def _windows_of_a_slot(run: Run, batch: int) -> int:
    """Where a batch is of so many tokens."""
    return batch // (run.slots * run.model.context)


def keeps_gathered(run: Run, world: World) -> bool:
    """Whether a rank works on whole gradients: it is alone, or the slots come in blocks."""
    return run.reduction == "exact" and (world.size == 1 or run.slot_schedule == "block")
