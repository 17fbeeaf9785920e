"""What our own classes share that update parameters one after the other, each from nothing but itself and its state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from froude.optimizers import Held
from froude.train.optimizers.composed import started


class OneByOne(torch.optim.Optimizer):
    """An optimizer whose settings may each be one of a group's keys. What has no gradient stays as it is."""

    def __init__(self, params: Iterable[Tensor] | Iterable[dict[str, Any]], **settings: Any) -> None:
        super().__init__(params, {"eps": 1e-8, **settings})

    @abstractmethod
    def _held(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Held]:
        """The state of a parameter as it starts."""

    @abstractmethod
    def _move(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]
    ) -> None:
        """Update the weight and its state in place."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state: dict[str, Tensor] = self.state[weight]
                if not state:
                    for key, held in self._held(tuple(weight.shape), group).items():
                        state[key] = started(held, weight)
                self._move(weight, weight.grad, state, group)
