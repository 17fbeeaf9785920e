"""The Hyperball pair, AdamH and MuonH, as classes of torch."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from froude.config import ConfigError
from froude.optimizers import Held
from froude.optimizers.hyperball import adamh_state, muonh_state
from froude.train.optimizers.own.normuon import orthogonal
from froude.train.optimizers.own.one_by_one import OneByOne


class Hyperball(OneByOne):
    """The update is `froude.optimizers.hyperball`'s, of whole matrices; a group's `weight_decay` is for others."""

    name: str
    other: str

    @abstractmethod
    def _update(self, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> Tensor:
        """The update of which the direction counts."""

    def _move(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]
    ) -> None:
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

    def _held(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Held]:
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

    def _held(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Held]:
        return muonh_state(shape)

    def _update(self, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> Tensor:
        momentum = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        return orthogonal(gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum)
