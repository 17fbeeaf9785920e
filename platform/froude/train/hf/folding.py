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
from froude.train.hf.layouts import LAYOUTS, Layout, layout_of
from froude.train.model import NORM_EPS, ROPE_BASE

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
    """Our own model: Qwen3 if it has QK-norm, Llama if it multiplies nothing, else Granite, which multiplies itself."""
    shape = run.model
    if shape.softcap:
        raise ConfigError(
            f"an export as hf must compute the run's logits, but `model.softcap` = {shape.softcap:g} caps them, which "
            "no architecture without further norms does; use --format safetensors"
        )
    factors = _factors(run)
    plain = all(math.isclose(factor, 1.0) for factor in factors.values())
    kind = "qwen3" if shape.qk_norm else "llama" if plain else "granite"
    heads, inner = shape.width // shape.head_dim, round(shape.mlp_ratio * shape.width)
    settings: dict[str, Any] = {
        "vocab_size": shape.vocab,
        "hidden_size": shape.width,
        "intermediate_size": inner,
        "num_hidden_layers": shape.depth,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": NORM_EPS,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_BASE},
        "hidden_act": "silu",
        "tie_word_embeddings": shape.tied,
        **dict.fromkeys(configs.TOKENS),
    }
    layout = LAYOUTS[kind]
    if layout.head_dim:
        settings["head_dim"] = shape.head_dim
    config = configs.transformers().CONFIG_MAPPING[kind](**settings)
    state = _named(weights, shape.depth)
    said = _in_config(config, run) if layout.in_config else _fold(state, layout, run)
    return Translated(config, state, said, exact=False)  # other code adds in another order


def _named(weights: Mapping[str, Tensor], depth: int) -> dict[str, Tensor]:
    """Our parameters under the names that Llama, Qwen3 and Granite share; fused ones apart."""
    state = {"model.embed_tokens.weight": weights["embedding"], "model.norm.weight": weights["norm"]}
    if "readout" in weights:
        state["lm_head.weight"] = weights["readout"]
    for i in range(depth):
        ours, theirs = f"layers.{i}", f"model.layers.{i}"
        q, k, v = weights[f"{ours}.qkv"].chunk(3)
        gate, up = weights[f"{ours}.gate_up"].chunk(2)
        block = {
            "input_layernorm": weights[f"{ours}.attention_norm"],
            "post_attention_layernorm": weights[f"{ours}.mlp_norm"],
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": weights[f"{ours}.attention_out"],
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": weights[f"{ours}.down"],
        }
        if f"{ours}.q_gain" in weights:
            block["self_attn.q_norm"] = weights[f"{ours}.q_gain"]
            block["self_attn.k_norm"] = weights[f"{ours}.k_gain"]
        state |= {f"{theirs}.{name}.weight": tensor.clone() for name, tensor in block.items()}
    return state


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
