"""The Hyperball pair, AdamH and MuonH, as classes of torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from froude.config import ConfigError
from froude.optimizers import Held
from froude.optimizers.hyperball import adamh_state, muonh_state
from froude.train.optimizers.composed import started
from froude.train.optimizers.newton_schulz import orthogonal


class Hyperball(torch.optim.Optimizer):
    """The update is `froude.optimizers.hyperball`'s, of whole matrices; a group's `weight_decay` is for others."""

    name: str
    other: str

    @abstractmethod
    def _held(self, shape: tuple[int, ...]) -> dict[str, Held]:
        """The state of a matrix."""

    @abstractmethod
    def _update(self, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> Tensor:
        """The update of which the direction counts."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, weight.grad, group)

    def _move(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            held = self._held(tuple(weight.shape))
            state.update({key: started(each, weight) for key, each in held.items()})
        if not state["radius"]:
            state["radius"].copy_(torch.linalg.vector_norm(weight))
            if not state["radius"]:
                raise ConfigError(
                    f"{self.name} keeps a matrix at its first norm, but one starts at zero; give it another start or "
                    f"use {self.other}"
                )
        radius, update = float(state["radius"]), self._update(gradient, state, group)
        length = torch.linalg.vector_norm(update).clamp(min=torch.finfo(update.dtype).tiny)
        weight.sub_(update / length, alpha=group["lr"] * radius)
        weight.mul_(radius / torch.linalg.vector_norm(weight))


class AdamH(Hyperball):
    """Adam on a sphere. Keys of a group: `lr`, `betas`, `eps`."""

    name, other = "adamh", "adamw"

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-2,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    def _held(self, shape: tuple[int, ...]) -> dict[str, Held]:
        return adamh_state(shape)

    def _update(self, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> Tensor:
        beta1, beta2 = group["betas"]
        step = int(state["step"].add_(1))
        average = state["exp_avg"].lerp_(gradient, 1 - beta1)
        squares = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        size = (squares / (1 - beta2**step)).sqrt() + group["eps"]
        update: Tensor = average / (1 - beta1**step) / size
        return update


class MuonH(Hyperball):
    """Muon on a sphere. Keys of a group: `lr`, `momentum`, `nesterov`."""

    name, other = "muonh", "muon"

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 2e-2,
        momentum: float = 0.95,
        nesterov: bool = True,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "nesterov": nesterov})

    def _held(self, shape: tuple[int, ...]) -> dict[str, Held]:
        return muonh_state(shape)

    def _update(self, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> Tensor:
        momentum = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        return orthogonal(gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum)
