"""The package's own model as an architecture of transformers: its `model_type`, settings, and names of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from froude.config import ConfigError
from froude.sections import Model as Shape
from froude.train.attention import rope
from froude.train.hf import config as configs
from froude.train.hf.layouts import LAYOUTS
from froude.train.model import NORM_EPS, window_of


def model_type(shape: Shape, *, plain: bool) -> str:
    """Qwen3 if it has QK-norm, Mistral if a window, Llama if it multiplies nothing (`plain`), else Granite.

    ConfigError if it has something that this architecture does not.
    """
    windows = [window_of(shape, number) for number in range(shape.depth)]
    lacks: dict[str, bool] = {"softcap": bool(shape.softcap), "parallel": shape.parallel}
    if shape.qk_norm:
        found, beside = "qwen3", "qk_norm"
        lacks["mlp_bias"] = shape.mlp_bias
    elif any(windows):
        found, beside = "mistral", "sliding_window"
        lacks |= {"attention_bias": shape.attention_bias, "mlp_bias": shape.mlp_bias}
        lacks["global_every"] = not all(windows)
    else:
        found, beside = "llama" if plain else "granite", ""
    for key in (key for key, has in lacks.items() if has):
        with_it = f" and `model.{beside}`" if key not in ("softcap", "parallel") else ""
        raise ConfigError(
            f"an export as hf must compute the run's logits, but no architecture here has `model.{key}`{with_it}, and "
            f"the run has {getattr(shape, key)}; use --format safetensors"
        )
    return found


def settings(shape: Shape, kind: str) -> dict[str, Any]:
    """What a config of this `model_type` says of the model."""
    windows = [window_of(shape, number) for number in range(shape.depth)]
    found: dict[str, Any] = {
        "vocab_size": shape.vocab,
        "hidden_size": shape.width,
        "intermediate_size": round(shape.mlp_ratio * shape.width),
        "num_hidden_layers": shape.depth,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_heads,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": NORM_EPS,
        "rope_parameters": _rope(shape),
        "hidden_act": "silu",
        "tie_word_embeddings": shape.tied,
        **dict.fromkeys(configs.TOKENS),
    }
    if LAYOUTS[kind].head_dim:
        found["head_dim"] = shape.head_dim
    if kind == "mistral":
        found["sliding_window"] = shape.sliding_window
    else:
        found["attention_bias"] = shape.attention_bias
    if kind in ("llama", "granite"):
        found["mlp_bias"] = shape.mlp_bias
    if kind == "qwen3" and any(windows):
        layers = ["sliding_attention" if window else "full_attention" for window in windows]
        found |= {"use_sliding_window": True, "sliding_window": shape.sliding_window, "layer_types": layers}
    return found


def _rope(shape: Shape) -> dict[str, Any]:
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": shape.rope_base}
    if shape.rope_scaling != "none":
        found |= {"rope_type": shape.rope_scaling, "factor": shape.rope_factor}
        found["original_max_position_embeddings"] = shape.rope_original
    if shape.rope_scaling == "llama3":
        found |= {"low_freq_factor": rope.LONG, "high_freq_factor": rope.SHORT}
    return found


def named(weights: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
    """Our parameters under the names that these architectures share; fused ones apart."""
    state = {"model.embed_tokens.weight": weights["embedding"], "model.norm.weight": weights["norm"]}
    if "readout" in weights:
        state["lm_head.weight"] = weights["readout"]
    heads = [number * shape.head_dim for number in (shape.heads, shape.key_heads, shape.key_heads)]
    for i in range(shape.depth):
        ours, theirs = f"layers.{i}", f"model.layers.{i}"
        found = {
            "input_layernorm.weight": weights[f"{ours}.attention_norm"],
            "post_attention_layernorm.weight": weights[f"{ours}.mlp_norm"],
        }
        for our, end in (("", "weight"), ("_bias", "bias")):
            if f"{ours}.qkv{our}" in weights:
                q, k, v = weights[f"{ours}.qkv{our}"].split(heads)
                out = weights[f"{ours}.attention_out{our}"]
                for name, tensor in {"q": q, "k": k, "v": v, "o": out}.items():
                    found[f"self_attn.{name}_proj.{end}"] = tensor
            if f"{ours}.down{our}" in weights:
                gate, up = weights[f"{ours}.gate_up{our}"].chunk(2)
                down = weights[f"{ours}.down{our}"]
                for name, tensor in {"gate": gate, "up": up, "down": down}.items():
                    found[f"mlp.{name}_proj.{end}"] = tensor
        if f"{ours}.q_gain" in weights:
            found["self_attn.q_norm.weight"] = weights[f"{ours}.q_gain"]
            found["self_attn.k_norm.weight"] = weights[f"{ours}.k_gain"]
        state |= {f"{theirs}.{name}": tensor.clone() for name, tensor in found.items()}
    return state
