"""The run's optimizer, built as its spec says; and the test that one must pass before an exact run may use it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from froude.config import ConfigError, Run
from froude.config import Optimizer as Settings
from froude.optimizers import Spec
from froude.sections import Rest
from froude.train.api import Kind, load
from froude.train.optimizers.composed import Composed, Part, Rows
from froude.train.optimizers.fused import matrices
from froude.train.optimizers.owners import Matrix, Owners
from froude.train.parallel import World
from froude.train.parametrization import group, in_blocks, parameter_groups, scales

#: Of the start-up test. Rows are no multiple of any vector's length, so that what a kernel does at their end shows; the
#: whole is one of 4, with which CUDA's kernels take another path than with rows.
TEST_SHAPE, TEST_STEPS = (252, 37), 10


def build(run: Run, model: nn.Module, world: World) -> Composed:
    """The optimizer that the run names, over the groups of its parametrization.

    ConfigError if the run is exact and its optimizer is not: on a whole tensor it would give other bits than on rows;
    or if it is one of matrices, of which the model has none.
    """
    settings, spec = run.optimizer, run.optimizer.spec
    parameters = dict(model.named_parameters())
    owned = _owned(run, model)
    parts: list[Part] = []
    if owned:
        make = functools.partial(_make, settings, "auto")
        parts.append(Owners(owned, world, spec, settings, make))
    taken = {name for name, p in parameters.items() if any(p is matrix.parameter for matrix in owned)}
    if left := {name: p for name, p in parameters.items() if name not in taken}:
        by_rows = settings if spec.unit != "matrix" else settings.rest
        implementation = _implementation(run, by_rows.spec, world)
        groups = parameter_groups(run, model, taken)
        parts.append(Rows(by_rows.spec, by_rows, _make(by_rows, implementation, groups), left))
    return Composed(parameters, parts)


def state_bytes(run: Run, model: nn.Module) -> int:
    """Bytes of the optimizer's state, of all workers together; the model may be one without memory."""
    settings, spec = run.optimizer, run.optimizer.spec
    owned = _owned(run, model)
    total = sum(spec.state_bytes(settings, matrix.shape) for matrix in owned)
    by_rows = settings if spec.unit != "matrix" else settings.rest
    left = (p for p in model.parameters() if not any(p is matrix.parameter for matrix in owned))
    return total + sum(by_rows.spec.state_bytes(by_rows, tuple(p.shape)) for p in left)


def _implementation(run: Run, spec: Spec, world: World) -> str:
    chosen: str = run.optimizer.implementation
    if chosen == "auto":
        # One fused kernel is quickest for a small model on one worker; its vector tail makes it inexact on a CPU.
        single = world.size == 1 and run.reduction == "fast" and "fused" in spec.implementations
        chosen = "fused" if single else spec.plain
    if run.reduction == "exact" and not works_by_rows(spec.name, chosen, str(world.device)):
        other = f'implementation "{spec.plain}"' if chosen != spec.plain else 'reduction "fast"'
        raise ConfigError(
            f"an exact run's optimizer must give the same bits on a whole tensor as on its rows, but {chosen} "
            f"{spec.name} does not on {world.device.type}; use {other}"
        )
    return chosen


def _owned(run: Run, model: nn.Module) -> list[Matrix]:
    """What owners update: the hidden matrices, those in a fused tensor apart; or all tensors that are trained."""
    settings, spec = run.optimizer, run.optimizer.spec
    if spec.unit not in ("matrix", "tensor"):
        return []
    kinds: Mapping[str, Kind] = model.kinds()  # type: ignore[operator]
    found = matrices(model, heads=bool(spec.options.get("heads") is not None and settings.option("heads")))
    owned, deep = [], in_blocks(model)
    for name, parameter in model.named_parameters():
        parts = {"": slice(None)} if spec.unit == "tensor" else found.get(name, {})
        for part, rows in parts.items() if parameter.requires_grad else ():
            matrix = Matrix(f"{name}.{part}" if part else name, parameter, range(len(parameter))[rows], {})
            further = spec.factor(settings, *matrix.shape)
            matrix.group.update(
                group(settings, scales(run, kinds[name], in_block=parameter in deep), [], further)
            )
            owned.append(matrix)
    if not owned:
        raise ConfigError(
            f"{spec.name} works on hidden matrices, but {run.model.factory} has none among kinds(); use adamw"
        )
    return owned


def _make(
    settings: Settings | Rest, implementation: str, groups: list[dict[str, Any]]
) -> torch.optim.Optimizer:
    form = {} if implementation == "auto" else {implementation: True}
    made: torch.optim.Optimizer = load(settings.spec.factory)(
        groups, **settings.spec.arguments(settings), **form
    )
    return made


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
