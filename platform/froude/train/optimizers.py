"""The run's optimizer, from torch; and the test that one must pass before an exact run may use it."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from froude.config import ConfigError, Run
from froude.config import Optimizer as Settings
from froude.train.parallel import World
from froude.train.parametrization import parameter_groups

#: Of the start-up test. Rows are no multiple of any vector's length, so that what a kernel does at their end shows; the
#: whole is one of 4, with which CUDA's kernels take another path than with rows.
TEST_SHAPE, TEST_STEPS = (252, 37), 10


def build(run: Run, model: nn.Module, world: World) -> torch.optim.Optimizer:
    """The optimizer that the run names, over the groups of its parametrization.

    ConfigError if the run is exact and its optimizer is not: on a whole tensor it would give other bits than on rows.
    """
    implementation = run.optimizer.implementation
    if implementation == "auto":
        # One fused kernel is quickest for a small model on one worker; its vector tail makes it inexact on a CPU.
        single = world.size == 1 and run.reduction == "fast" and run.optimizer.name == "adamw"
        implementation = "fused" if single else "foreach"
    if run.reduction == "exact" and not works_by_rows(run.optimizer.name, implementation, str(world.device)):
        raise ConfigError(
            f"an exact run's optimizer must give the same bits on a whole tensor as on its rows, but {implementation} "
            f'{run.optimizer.name} does not on {world.device.type}; use implementation "foreach"'
        )
    return _make(run.optimizer, implementation, parameter_groups(run, model))


def _make(settings: Settings, implementation: str, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    form = {implementation: True}
    if settings.name == "sgd":
        return torch.optim.SGD(groups, momentum=settings.beta1, **form)
    return torch.optim.AdamW(groups, betas=(settings.beta1, settings.beta2), **form)


def state_of(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
    """The optimizer's state of one parameter; before the first step as it starts by itself.

    So a checkpoint can be read into a new optimizer, and every attempt begins with the same bits.
    """
    state: dict[str, torch.Tensor] = optimizer.state[parameter]
    if not state:
        if isinstance(optimizer, torch.optim.SGD):
            state["momentum_buffer"] = torch.zeros_like(parameter)
        else:
            device = parameter.device if optimizer.defaults["fused"] else "cpu"
            state["step"] = torch.zeros((), dtype=torch.float32, device=device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
    return state


@functools.cache
def works_by_rows(name: str, implementation: str, device: str) -> bool:
    """Ten steps on a matrix, whole and row by row: whether every bit of it is the same."""
    generator = torch.Generator().manual_seed(0)
    start, *gradients = (
        torch.randn(TEST_SHAPE, generator=generator).to(device) for _ in range(TEST_STEPS + 1)
    )
    settings = Settings(name=name, beta1=0.9, beta2=0.95)  # type: ignore[arg-type]

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
