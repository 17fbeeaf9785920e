"""Weights of a run as an architecture of transformers computes the same logits from them.

Multipliers of a parametrization go where the architecture has none: those of logits into the final norm, which is exact
for tied tables, too; those of what blocks add into what they add last; those of attention into queries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from froude.config import ConfigError, Run
from froude.train.api import multiplier
from froude.train.hf import config as configs
from froude.train.hf import own
from froude.train.hf.layouts import LAYOUTS, Layout, layout_of

#: The module of the adapter, and of the package's own model.
ADAPTER, OWN = "froude.train.hf:Model", "froude.train.model:Transformer"


@dataclass(frozen=True)
class Translated:
    """A config of transformers with its weights in fp32, and what was done to them, a phrase each.

    `exact`: whether the same bits are to be expected of the same code: every factor is a power of two, and no matrix is
    stored the other way round.
    """

    config: Any
    state: Mapping[str, Tensor]
    folded: tuple[str, ...]
    exact: bool


def translated(run: Run, weights: Mapping[str, Tensor]) -> Translated:
    """The run's model with these weights; ConfigError where transformers has no architecture that computes it."""
    state = {name: tensor.float() for name, tensor in weights.items()}
    if run.model.factory == ADAPTER:
        return _adapted(run, state)
    if run.model.factory == OWN:
        return _own(run, state)
    raise ConfigError(
        f"an export as hf is of the package's own model or of {ADAPTER}, but the run's is {run.model.factory}, whose "
        "architecture is not known here; use --format safetensors, and load the file into that class"
    )


def _adapted(run: Run, state: dict[str, Tensor]) -> Translated:
    config = configs.scaled(run)
    layout = layout_of(config.model_type)
    if layout.in_config:
        said = _in_config(config, run)
    else:
        said = _fold(state, layout, run)
    if layout.rows:  # Conv1D keeps [in, out]
        for name, tensor in state.items():
            if name.startswith(layout.blocks) and tensor.ndim == 2:
                state[name] = tensor.t().contiguous()
    exact = not layout.rows and _is_exact(run, layout)
    return Translated(config, state, said, exact)


def _own(run: Run, weights: dict[str, Tensor]) -> Translated:
    """Our own model; multipliers are folded into weights, but where the architecture has them itself."""
    plain = all(math.isclose(factor, 1.0) for factor in _factors(run).values())
    kind = own.model_type(run.model, plain=plain)
    layout = LAYOUTS[kind]
    config = configs.transformers().CONFIG_MAPPING[kind](**own.settings(run.model, kind))
    state = own.named(weights, run.model)
    said = _in_config(config, run) if layout.in_config else _fold(state, layout, run)
    return Translated(config, state, said, exact=False)  # other code adds in another order


def _factors(run: Run) -> dict[str, float]:
    """What the run multiplies beyond what every architecture does: 1/sqrt(head_dim) in attention."""
    return {
        "logits": multiplier(run, "logits"),
        "residual": multiplier(run, "residual"),
        "attention": multiplier(run, "attention") * math.sqrt(run.model.head_dim),
    }


def _is_exact(run: Run, layout: Layout) -> bool:
    """Powers of two alone; Granite's own multipliers are applied as they were in training."""
    return layout.in_config or all(math.frexp(factor)[0] == 0.5 for factor in _factors(run).values())


def _in_config(config: Any, run: Run) -> tuple[str, ...]:
    configs.multiply(config, run)
    said = ", ".join(f"{name} {getattr(config, name):g}" for name in configs.MULTIPLIERS)
    return (f"nothing: {said} are in config.json",)


@torch.no_grad()
def _fold(state: dict[str, Tensor], layout: Layout, run: Run) -> tuple[str, ...]:
    """Multiply the weights in place; what was done."""
    factors, said = _factors(run), []
    blocks = [f"{layout.blocks}.{i}" for i in range(run.model.depth)]
    places = {
        "logits": [layout.final_norm],
        "residual": [f"{block}.{name}" for block in blocks for name in layout.added],
        "attention": [f"{block}.{layout.queries}" for block in blocks],
    }
    for what, names in places.items():
        if math.isclose(factors[what], 1.0):
            continue
        for name in (f"{place}.{part}" for place in names for part in ("weight", "bias")):
            if name in state:
                tensor = state[name] = state[name].clone()
                rows = len(tensor) // 3 if layout.rows and what == "attention" else len(tensor)
                tensor[:rows].mul_(factors[what])
        where = {
            "logits": layout.final_norm,
            "residual": ", ".join(layout.added),
            "attention": layout.queries,
        }
        said.append(f"{what} × {factors[what]:g} into {where[what]}")
    return tuple(said) or ("nothing: the run multiplies nothing that the architecture does not",)
