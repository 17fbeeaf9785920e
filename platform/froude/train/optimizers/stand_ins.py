"""Updates of bf16 weights: an optimizer of torch works on fp32 copies of some at a time, and the result is rounded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from froude.config import Optimizer
from froude.hardware.sizes import STOOD_IN
from froude.optimizers.section import Rest
from froude.train import parallel
from froude.train.optimizers.composed import Rows, make
from froude.train.parallel import World
from froude.train.precision.rounding import Rounding


class StandIns(Rows):
    """Rows of bf16 weights; their fp32 copies, which the optimizer and its state know, are there during a step only."""

    def __init__(
        self,
        settings: Optimizer | Rest,
        optimizer: torch.optim.Optimizer,
        copies: Mapping[str, nn.Parameter],
        weights: Mapping[str, nn.Parameter],
        world: World,
        rounding: Rounding,
    ) -> None:
        super().__init__(settings, optimizer, copies)
        self.weights, self.world, self.rounding = weights, world, rounding

    @torch.no_grad()
    def step(self) -> None:
        with self._filled():
            super().step()
            for name, weight in self.weights.items():
                rows = parallel.rows_of(weight, self.world.rank, self.world.size)
                first = rows.start * math.prod(weight.shape[1:])
                self.rounding(parallel.local(self.parameters[name]), parallel.local(weight), name, first)

    @contextmanager
    def _filled(self) -> Iterator[None]:
        """Inside, the copies are there."""
        for name, weight in self.weights.items():
            copy, local = self.parameters[name], parallel.local(self.parameters[name])
            local.untyped_storage().resize_(local.numel() * local.element_size())
            local.copy_(parallel.local(weight))
            if weight.grad is not None:
                gradient = parallel.local(weight.grad).float()
                copy.grad = gradient if local is copy else parallel.like(weight, gradient)
        try:
            yield
        finally:
            for copy in self.parameters.values():
                copy.grad = None
                parallel.local(copy).untyped_storage().resize_(0)


def in_buckets(
    settings: Optimizer | Rest,
    implementation: str,
    groups: Sequence[Mapping[str, Any]],
    weights: Mapping[str, nn.Parameter],
    world: World,
    rounding: Rounding,
) -> list[StandIns]:
    """An optimizer for each bucket of the groups' bf16 weights; one alone where it must know all of the model."""
    names, found = {weight: name for name, weight in weights.items()}, []
    whole = settings.spec.unit == "model"
    for bucket in _buckets(groups, math.inf if whole else STOOD_IN):
        copies = {names[w]: _copy(w) for group in bucket for w in group["params"]}
        its = [{**group, "params": [copies[names[w]] for w in group["params"]]} for group in bucket]
        optimizer = make(settings, implementation, its)
        own = {name: weights[name] for name in copies}
        found.append(StandIns(settings, optimizer, copies, own, world, rounding))
    return found


def _buckets(groups: Sequence[Mapping[str, Any]], most: float) -> Iterator[list[Mapping[str, Any]]]:
    """The groups in pieces of at most `most` elements here, or of one weight."""
    held, size = list[Mapping[str, Any]](), 0
    for group in groups:
        params = list[nn.Parameter]()
        for weight in group["params"]:
            own = parallel.local(weight).numel()
            if (held or params) and size + own > most:
                yield [*held, *([{**group, "params": params}] if params else [])]
                held, params, size = [], [], 0
            params.append(weight)
            size += own
        if params:
            held.append({**group, "params": params})
    if held:
        yield held


def _copy(weight: nn.Parameter) -> nn.Parameter:
    """An fp32 parameter like the weight, sharded as it is, that takes no memory yet."""
    local = parallel.local(weight.detach())
    empty: Tensor = torch.empty_like(local, dtype=torch.float32)
    empty.untyped_storage().resize_(0)
    held = parallel.like(weight, empty) if hasattr(weight, "to_local") else empty
    return nn.Parameter(held, requires_grad=weight.requires_grad)
