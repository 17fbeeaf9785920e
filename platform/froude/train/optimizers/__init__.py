"""The run's optimizer, built as its spec says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from froude.config import ConfigError, Optimizer, Run
from froude.optimizers import Held
from froude.optimizers.section import Rest
from froude.train.api import Kind
from froude.train.optimizers import offloaded
from froude.train.optimizers.clipping import clipping
from froude.train.optimizers.composed import Composed, Part, Rows, make, started
from froude.train.optimizers.exactness import repeats, works_by_rows
from froude.train.optimizers.fused import matrices
from froude.train.optimizers.offloaded import Offloaded
from froude.train.optimizers.owners import Matrix, Owners
from froude.train.optimizers.stand_ins import in_buckets
from froude.train.parallel import World, refuse_scalars
from froude.train.parametrization import group, in_blocks, parameter_groups, scales
from froude.train.precision.rounding import Rounding


def build(run: Run, model: nn.Module, world: World) -> Composed:
    """The optimizer that the run names, over the groups of its parametrization.

    ConfigError if the run is exact and its optimizer is not: on a whole tensor it would give other bits than on rows;
    or if it is one of matrices, of which the model has none; or one of the whole model, which is sharded.
    """
    run.check_optimizer()
    settings, spec = run.optimizer, run.optimizer.spec
    if spec.unit == "model" and world.size > 1:
        raise ConfigError(
            f"{spec.name} needs all of the model at once, on one worker, but there are {world.size}; train with one, "
            "or use another optimizer"
        )
    parameters = dict(model.named_parameters())
    owned = _owned(run, model)
    bf16 = any(p.dtype == torch.bfloat16 for p in parameters.values())  # not where a probe looks at a model
    rounding = Rounding(run.seed) if bf16 and run.precision == "bf16_stochastic" else None
    parts: list[Part] = []
    if owned:
        if run.reduction == "exact" and not repeats(settings, str(world.device)):
            raise ConfigError(
                "an exact run's optimizer must give the same bits whenever it is given the same gradients, but "
                f'{spec.name} does not on {world.device.type}; use reduction "fast"'
            )
        parts.append(Owners(owned, world, settings, rounding, offload=offloaded.offloads(run, world)))
    taken = {matrix.parameter for matrix in owned}
    if left := {name: p for name, p in parameters.items() if p not in taken}:
        by_rows = settings.by_rows
        implementation = _implementation(run, by_rows, world)
        away = offloaded.offloads(run, world)
        kind = Offloaded if away else Rows
        for some in offloaded.buckets(run, left) if away else (left,):
            groups = parameter_groups(run, model, {*parameters.values()} - {*some.values()})
            if rounding is None:
                parts.append(kind(by_rows, make(by_rows, implementation, groups), some))
            else:
                parts += in_buckets(by_rows, implementation, groups, some, world, rounding)
    trained = [name for name, parameter in parameters.items() if parameter.requires_grad]
    return Composed(parameters, parts, clipping(run, trained), rounding)


def state_bytes(run: Run, model: nn.Module) -> int:
    """Bytes of the optimizer's state, of all workers together; the model may be one without memory."""
    return sum(held.nbytes for _, held, _ in _held(run, model))


def state_at_start(run: Run, model: nn.Module) -> dict[str, Tensor]:
    """The state with which the optimizer begins, of all workers together, in tensors without memory but for numbers."""
    found = {name: started(held, weight) for name, held, weight in _held(run, model)}
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    return found | {f"clipping.{key}": tensor for key, tensor in clipping(run, trained).state().items()}


def _held(run: Run, model: nn.Module) -> Iterator[tuple[str, Held, Tensor]]:
    """All that is kept, by name, each with the weight that it is kept of, without memory, as the class sees it."""
    owned = _owned(run, model)
    taken = {matrix.parameter for matrix in owned}
    left = [(name, p, tuple(p.shape)) for name, p in model.named_parameters() if p not in taken]
    kept = [(run.optimizer, matrix.name, matrix.parameter, matrix.shape) for matrix in owned]
    dtype = torch.float32 if run.precision == "bf16_stochastic" else None  # it is given copies
    for settings, name, parameter, shape in [*kept, *((run.optimizer.by_rows, *each) for each in left)]:
        weight = parameter.detach().new_empty(shape, dtype=dtype, device="meta")
        for key, held in settings.spec.state(settings, shape).items():
            yield f"{name}.{key}", held, weight


def _implementation(run: Run, settings: Optimizer | Rest, world: World) -> str:
    spec, chosen = settings.spec, str(run.optimizer.implementation)
    if chosen == "auto":
        # One fused kernel is quickest on a GPU, and for a small model on one worker; its vector tail makes it inexact
        # on a CPU.
        alone = world.size == 1 or world.device.type == "cuda"
        chosen = (
            "fused" if alone and run.reduction == "fast" and "fused" in spec.implementations else spec.plain
        )
    if run.reduction == "exact" and not works_by_rows(settings, chosen, str(world.device)):
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
    if spec.unit == "tensor":
        refuse_scalars(model)
    kinds: Mapping[str, Kind] = model.kinds()  # type: ignore[operator]
    found = matrices(model, heads="heads" in spec.options and bool(settings.option("heads")))
    owned, deep = [], in_blocks(model)
    for name, parameter in model.named_parameters():
        parts = {"": slice(None)} if spec.unit == "tensor" else found.get(name, {})
        for part, rows in parts.items() if parameter.requires_grad else ():
            matrix = Matrix(f"{name}.{part}" if part else name, parameter, range(len(parameter))[rows], {})
            further = spec.factor(settings, *matrix.shape) * settings.multipliers.get(kinds[name], 1.0)
            matrix.group.update(
                group(settings, scales(run, kinds[name], in_block=parameter in deep), [], further)
            )
            owned.append(matrix)
    if not owned:
        raise ConfigError(
            f"{spec.name} works on hidden matrices, but {run.model.factory} has none among kinds(); use adamw"
        )
    return owned
