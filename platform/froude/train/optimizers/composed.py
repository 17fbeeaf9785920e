"""The optimizer that a run trains with on this rank: rows by each worker, whole matrices by their owners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from froude.config import Optimizer
from froude.optimizers import Held
from froude.sections import Rest
from froude.train import parallel
from froude.train.optimizers.clipping import Clipping
from froude.user_code import load


class Part(Protocol):
    """What updates some of the parameters; every rank has one, and calls alike."""

    @property
    def param_groups(self) -> list[dict[str, Any]]: ...

    def step(self) -> None: ...

    def state(self) -> dict[str, Tensor]:
        """Its tensors by "parameter.key"; before the first step as they start."""


class Composed:
    """Parts that share a model's parameters; whoever trains sees one optimizer, with what clips for it."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], parts: Sequence[Part], clipping: Clipping
    ) -> None:
        self.parameters, self.parts, self.clipping = parameters, parts, clipping

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for part in self.parts for group in part.param_groups]

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    def state(self) -> dict[str, Tensor]:
        found = {key: tensor for part in self.parts for key, tensor in part.state().items()}
        return found | {f"clipping.{key}": tensor for key, tensor in self.clipping.state().items()}


class Rows:
    """An optimizer of torch on this rank's rows of some parameters."""

    def __init__(
        self,
        settings: Optimizer | Rest,
        optimizer: torch.optim.Optimizer,
        parameters: Mapping[str, nn.Parameter],
    ) -> None:
        self.settings, self.optimizer, self.parameters = settings, optimizer, parameters

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def step(self) -> None:
        self.optimizer.step()

    def state(self) -> dict[str, Tensor]:
        return {
            f"{name}.{key}": tensor
            for name, parameter in self.parameters.items()
            for key, tensor in begun(self.settings, self.optimizer, parameter).items()
        }


def begun(
    settings: Optimizer | Rest, optimizer: torch.optim.Optimizer, parameter: nn.Parameter
) -> dict[str, Tensor]:
    """The state of a parameter; before the first step as it starts by itself, so that every attempt begins alike."""
    state: dict[str, Tensor] = optimizer.state[parameter]
    if not state:
        fused = bool(optimizer.defaults.get("fused"))
        for key, held in settings.spec.state(settings, tuple(parameter.shape)).items():
            state[key] = started(held, parameter, fused=fused)
    return state


def started(held: Held, parameter: Tensor, *, fused: bool = False) -> Tensor:
    """A tensor of the state as it starts: sharded as the parameter is, if it has the parameter's rows.

    A number is in fp32, and on the CPU unless a fused kernel reads it.
    """
    if not held.shape:
        return torch.full((), held.start, device=parameter.device if fused else "cpu")
    dtype = parameter.dtype if held.dtype == "float" else getattr(torch, held.dtype)
    shard = parallel.local(parameter)
    rows = held.shape[0] if shard is parameter else shard.shape[0]
    local = torch.full((rows, *held.shape[1:]), held.start, dtype=dtype, device=parameter.device)
    return local if shard is parameter else parallel.like(parameter, local, held.shape)


def make(
    settings: Optimizer | Rest, implementation: str, groups: list[dict[str, Any]]
) -> torch.optim.Optimizer:
    """The class that the settings name, over these groups."""
    form = {} if implementation == "auto" else {implementation: True}
    made: torch.optim.Optimizer = load(settings.spec.factory)(
        groups, **settings.spec.arguments(settings), **form
    )
    return made
