"""The run's optimizer, built as its spec says; and the test that one must pass before an exact run may use it."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from froude.config import ConfigError, Run
from froude.config import Optimizer as Settings
from froude.optimizers import Spec
from froude.train.api import load
from froude.train.parallel import World
from froude.train.parametrization import parameter_groups

#: Of the start-up test. Rows are no multiple of any vector's length, so that what a kernel does at their end shows; the
#: whole is one of 4, with which CUDA's kernels take another path than with rows.
TEST_SHAPE, TEST_STEPS = (252, 37), 10


def build(run: Run, model: nn.Module, world: World) -> torch.optim.Optimizer:
    """The optimizer that the run names, over the groups of its parametrization.

    ConfigError if the run is exact and its optimizer is not: on a whole tensor it would give other bits than on rows.
    """
    spec = run.optimizer.spec
    implementation: str = run.optimizer.implementation
    if implementation == "auto":
        # One fused kernel is quickest for a small model on one worker; its vector tail makes it inexact on a CPU.
        single = world.size == 1 and run.reduction == "fast" and "fused" in spec.implementations
        implementation = "fused" if single else spec.plain
    if run.reduction == "exact" and not works_by_rows(spec.name, implementation, str(world.device)):
        other = f'implementation "{spec.plain}"' if implementation != spec.plain else 'reduction "fast"'
        raise ConfigError(
            f"an exact run's optimizer must give the same bits on a whole tensor as on its rows, but {implementation} "
            f"{spec.name} does not on {world.device.type}; use {other}"
        )
    return _make(run.optimizer, implementation, parameter_groups(run, model))


def _make(settings: Settings, implementation: str, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    form = {} if implementation == "auto" else {implementation: True}
    made: torch.optim.Optimizer = load(settings.spec.factory)(
        groups, **settings.spec.arguments(settings), **form
    )
    return made


def state_of(
    spec: Spec, optimizer: torch.optim.Optimizer, parameter: nn.Parameter
) -> dict[str, torch.Tensor]:
    """The optimizer's state of one parameter; before the first step as it starts by itself.

    So a checkpoint can be read into a new optimizer, and every attempt begins with the same bits.
    """
    state: dict[str, torch.Tensor] = optimizer.state[parameter]
    if not state:
        device = parameter.device if optimizer.defaults.get("fused") else "cpu"
        for name, value in spec.scalars.items():
            state[name] = torch.full((), value, dtype=torch.float32, device=device)
        for name in spec.moments:
            state[name] = torch.zeros_like(parameter)
    return state


@functools.cache
def works_by_rows(name: str, implementation: str, device: str) -> bool:
    """Ten steps on a matrix, whole and row by row: whether every bit of it is the same."""
    generator = torch.Generator().manual_seed(0)
    start, *gradients = (
        torch.randn(TEST_SHAPE, generator=generator).to(device) for _ in range(TEST_STEPS + 1)
    )
    settings = Settings(name=name, beta1=0.9, beta2=0.95)

    def trained(parts: list[nn.Parameter], rows: list[slice]) -> torch.Tensor:
        group = {"params": parts, "lr": 1e-2, "weight_decay": 0.1}
        optimizer = _make(settings, implementation, [group])
        for gradient in gradients:
            for part, row in zip(parts, rows, strict=True):
                part.grad = gradient[row].clone()
            optimizer.step()
        return torch.cat([part.detach() for part in parts])

    each = [slice(i, i + 1) for i in range(TEST_SHAPE[0])]
    whole = trained([nn.Parameter(start.clone())], [slice(None)])
    by_rows = trained([nn.Parameter(start[row].clone()) for row in each], each)
    return torch.equal(whole.view(torch.int32), by_rows.view(torch.int32))
