"""The run's parametrization on a model: groups of parameters with the rate, decay and epsilon of their kinds.

What width does to each is in `froude.parametrizations`; which kinds decay at all is the same in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import nn

from froude.config import Run
from froude.parametrizations import Factors
from froude.train.api import Kind, multiplier


def scales(run: Run, kind: Kind) -> Factors:
    """Factors on the run's settings for one kind of parameter; norms and biases do not decay."""
    found = run.width_rules.factors(run.model, kind, run.optimizer.spec.family)
    decays = run.optimizer.decay_embeddings if kind == "embedding" else kind in ("hidden", "readout")
    return found if decays else replace(found, weight_decay=0.0)


def logit_multiplier(run: Run) -> float:
    """Factor on the logits, tied or not: 1 under SP, base_width/width under muP."""
    return multiplier(run, "logits")


def attention_multiplier(run: Run) -> float:
    """1/sqrt(d_head) under SP; sqrt(d_base)/d_head under muP, the same while d_head does not grow."""
    return multiplier(run, "attention")


def multipliers(run: Run) -> dict[str, float]:
    """What our own forward multiplies by and no parameter holds; attention scores are those before softmax."""
    return {"embedding": 1.0, "attention": attention_multiplier(run), "logits": logit_multiplier(run)}


def parameter_groups(run: Run, model: nn.Module) -> list[dict[str, object]]:
    """Parameter groups in a fixed order; `peak` is the group's learning rate before the schedule."""
    kinds: Mapping[str, Kind] = model.kinds()  # type: ignore[operator]
    groups: dict[Factors, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        # How a kind starts is the model's affair.
        groups.setdefault(replace(scales(run, kinds[name]), init=1.0), []).append(parameter)
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
