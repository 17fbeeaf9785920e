"""SP and muP: what width does to initialisation, learning rate, decay and multipliers, by kind of parameter.

The table is that of Tensor Programs V (2203.03466) for Adam with torch's coupled decay: a hidden matrix has rate
lr/m, decay lambda*m (so that lr*lambda does not move with width) and epsilon/m, logits are divided by m, where
m = width / base_width. Initialisation is the same in both: variance 1/fan_in for hidden matrices is already muP's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from froude.config import Run
from froude.train.api import Kind


@dataclass(frozen=True)
class Scales:
    """Factors on the run's lr, weight_decay and eps for one kind of parameter."""

    lr: float = 1.0
    weight_decay: float = 1.0
    eps: float = 1.0


def width_ratio(run: Run) -> float:
    """M = width / base_width under muP, 1 under SP."""
    return run.model.width / run.model.base_width if run.parametrization == "mup" else 1.0


def scales(run: Run, kind: Kind) -> Scales:
    """The row of the table for one kind of parameter."""
    m = width_ratio(run)
    if kind == "hidden":
        return Scales(lr=1.0 / m, weight_decay=m, eps=1.0 / m)
    if kind in ("norm", "bias"):
        return Scales(weight_decay=0.0)
    if kind == "embedding":
        return Scales(weight_decay=1.0 if run.optimizer.decay_embeddings else 0.0)
    return Scales()


def logit_multiplier(run: Run) -> float:
    """Factor on the logits, tied or not."""
    return 1.0 / width_ratio(run)


def attention_multiplier(run: Run) -> float:
    """1/sqrt(d_head) under SP; sqrt(d_base)/d_head under muP, the same while d_head does not grow."""
    head = run.model.head_dim
    base = run.model.base_head_dim or head
    return math.sqrt(base) / head if run.parametrization == "mup" else 1.0 / math.sqrt(head)


def multipliers(run: Run) -> dict[str, float]:
    """What our own forward multiplies by and no parameter holds; attention scores are those before softmax."""
    return {"embedding": 1.0, "attention": attention_multiplier(run), "logits": logit_multiplier(run)}


def parameter_groups(run: Run, model: nn.Module) -> list[dict[str, object]]:
    """Parameter groups in a fixed order; `peak` is the group's learning rate before the schedule."""
    kinds: Mapping[str, Kind] = model.kinds()  # type: ignore[operator]
    groups: dict[Scales, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        groups.setdefault(scales(run, kinds[name]), []).append(parameter)
    settings = run.optimizer
    return [
        {
            "params": parameters,
            "lr": settings.lr * scale.lr,
            "peak": settings.lr * scale.lr,
            "weight_decay": settings.weight_decay * scale.weight_decay,
            "eps": settings.eps * scale.eps,
        }
        for scale, parameters in groups.items()
    ]
