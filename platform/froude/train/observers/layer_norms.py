"""Norms by layer, to look at when a run spikes: gradients and parameters by tensor, activations by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from froude.train import parallel
from froude.train.observers.observer import Made, Observer
from froude.train.trainer import Trainer

Value = tuple[str, str, float]  # kind, name, value


class LayerNorms(Observer):
    """Rows of the norms frame, every `norms_every` steps."""

    norms: Norms | None = None  # of the step under way

    def around(self, step: int) -> AbstractContextManager[object]:
        every = self.loop.run.norms_every
        self.norms = None if not every or step % every else Norms(self.loop.trainer)
        return nullcontext() if self.norms is None else self.norms.watching()

    def gradients(self, step: int) -> None:
        if self.norms is not None:
            self.norms.see_gradients()

    def stepped(self, made: Made) -> None:
        if self.norms is None:
            return
        loop, values = self.loop, self.norms.values()
        if loop.world.rank == 0:
            here = {"run": loop.run.name, "attempt": loop.attempt, "step": made.step}
            loop.tables["norms"] += [
                {**here, "kind": kind, "name": name, "value": value} for kind, name, value in values
            ]

    def rewind(self, state: Mapping[str, Any]) -> None:
        self.norms = None


class Norms:
    """What one step shows of its layers: L2 norms over all ranks, and the root mean square of what a block puts out."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.squares: dict[tuple[str, str], Tensor] = {}
        self.counts: dict[str, int] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The blocks' outputs of the step that is made inside are seen."""
        hooks = [
            block.register_forward_hook(partial(self._see_output, f"blocks.{i}"))
            for i, block in enumerate(self._blocks())
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def see_gradients(self) -> None:
        for name, parameter in self.trainer.model.named_parameters():
            if parameter.grad is not None:
                self._add("gradient", name, parameter.grad)

    def values(self) -> list[Value]:
        """Collective: the step's norms; those of the parameters are from after its update."""
        trainer = self.trainer
        for name, parameter in trainer.model.named_parameters():
            self._add("parameter", name, parameter)
        blocks = [f"blocks.{i}" for i in range(len(self._blocks()))]
        keys = [("gradient", name) for name, _ in trainer.model.named_parameters()]
        keys += [("parameter", name) for _, name in keys]
        keys += [("activation", name) for name in blocks]
        zero = torch.zeros((), dtype=torch.float64, device=trainer.world.device)
        numbers = [self.squares.get(key, zero) for key in keys]
        numbers += [zero + self.counts.get(name, 0) for name in blocks]
        found, share = torch.stack(numbers), trainer.shards.size / trainer.world.size
        found[: len(keys) - len(blocks)] *= share  # each replica has all of the tensors
        summed = trainer.world.sum(found).tolist()
        counts = dict(zip(blocks, summed[len(keys) :], strict=True))
        return [
            (kind, name, (square / max(1.0, counts[name] if kind == "activation" else 1.0)) ** 0.5)
            for (kind, name), square in zip(keys, summed, strict=False)
        ]

    def _see_output(self, name: str, module: Any, arguments: Any, output: Any) -> None:
        """As a forward hook; the short pass of a rank without a slot does not count."""
        if (
            isinstance(output, Tensor)
            and output.ndim == 3
            and output.shape[1] == self.trainer.run.model.context
        ):
            self._add("activation", name, output)
            self.counts[name] = self.counts.get(name, 0) + output.numel()

    def _add(self, kind: str, name: str, tensor: Tensor) -> None:
        square = parallel.local(tensor).detach().double().square().sum()
        self.squares[kind, name] = (
            self.squares[kind, name] + square if (kind, name) in self.squares else square
        )

    def _blocks(self) -> list[Any]:
        return list(self.trainer.model.blocks())  # type: ignore[operator]
