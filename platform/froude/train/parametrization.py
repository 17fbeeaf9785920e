"""The run's parametrization on a model: groups of parameters with the rate, decay and epsilon of their kinds.

What width and depth do to each is in `froude.parametrizations`; which kinds decay at all is the same in all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from froude.config import Optimizer, Run
from froude.optimizers.section import Rest
from froude.parametrizations import Factors
from froude.train.api import Kind, branch_sd, initial_sd, multiplier
from froude.train.exact.draws import generator


def initial(run: Run, name: str, kind: Kind, shape: Sequence[int], *, writes: bool = False) -> Tensor:
    """The values that a parameter starts with, fp32 on the CPU; `writes`: into the residual stream.

    Matrices are [out, in], and drawn from a generator of the name's own, so that neither order nor sharding matters.
    """
    if kind in ("norm", "bias"):
        return torch.full(tuple(shape), 1.0 if kind == "norm" else 0.0)
    sd = initial_sd(run, kind, shape[1]) * (branch_sd(run) if writes else 1.0)
    if sd == 0.0:
        return torch.zeros(*shape)
    return torch.randn(*shape, generator=generator(run.seed, name)).mul_(sd)  # in place: it may be large


def scales(run: Run, kind: Kind, *, matrix: bool | None = None, in_block: bool = True) -> Factors:
    """Factors on the run's settings for one kind of parameter, in a block or not; norms and biases do not decay.

    `matrix`: whether the optimizer may take it for a hidden matrix, which one of kind hidden is unless it is told.
    """
    family = run.optimizer.family(matrix=kind == "hidden" if matrix is None else matrix)
    rule = run.optimizer.decay_width
    found = run.width_rules.factors(run.model, kind, family, in_block=in_block, decay_width=rule)
    decays = run.optimizer.decay_embeddings if kind == "embedding" else kind in ("hidden", "readout")
    return found if decays else replace(found, weight_decay=0.0)


def in_blocks(model: nn.Module) -> set[nn.Parameter]:
    """The parameters that are in one of the model's blocks."""
    blocks: Sequence[nn.Module] = model.blocks()  # type: ignore[operator]
    return {parameter for block in blocks for parameter in block.parameters()}


def logit_multiplier(run: Run) -> float:
    """Factor on the logits, tied or not: 1 under SP, base_width/width under muP."""
    return multiplier(run, "logits")


def attention_multiplier(run: Run) -> float:
    """1/sqrt(d_head) under SP; sqrt(d_base)/d_head under muP, the same while d_head does not grow."""
    return multiplier(run, "attention")


def multipliers(run: Run) -> dict[str, float]:
    """What our own forward multiplies by and no parameter holds; attention scores are those before softmax."""
    return {
        "embedding": 1.0,
        "residual": multiplier(run, "residual"),
        "attention": attention_multiplier(run),
        "logits": logit_multiplier(run),
    }


def parameter_groups(
    run: Run, model: nn.Module, left_out: Collection[nn.Parameter] = ()
) -> list[dict[str, Any]]:
    """Parameter groups in a fixed order; `peak` is the group's learning rate before the schedule.

    `left_out` are the parameters that the run's optimizer takes as matrices; the settings are then those of the rest.
    """
    kinds: Mapping[str, Kind] = model.kinds()  # type: ignore[operator]
    settings = run.optimizer.by_rows
    matrix, deep = None if settings is run.optimizer else False, in_blocks(model)
    groups: dict[tuple[Factors, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter not in left_out:
            # How a kind starts is the model's affair.
            factors = replace(scales(run, kinds[name], matrix=matrix, in_block=parameter in deep), init=1.0)
            further = run.optimizer.multipliers.get(kinds[name], 1.0)
            groups.setdefault((factors, further), []).append(parameter)
    return [group(settings, factors, its, further) for (factors, further), its in groups.items()]


def group(
    settings: Optimizer | Rest, factors: Factors, parameters: list[nn.Parameter], further: float = 1.0
) -> dict[str, Any]:
    """A group of an optimizer, which moves `further` than its class would; decay a step stays (2405.13698)."""
    peak = settings.lr * factors.lr * further
    decay = settings.weight_decay * factors.weight_decay / further
    found: dict[str, Any] = {"params": parameters, "lr": peak, "peak": peak, "weight_decay": decay}
    return found | ({"eps": settings.eps * factors.eps} if settings.spec.epsilon else {})
