"""Tiny configs of transformers' architectures, and runs of the adapter on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from froude.config import Run

FAMILIES = ("llama", "qwen3", "olmo2", "gpt2", "granite")
_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 128,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**_SIZES, "model_type": "llama", "attention_dropout": 0.1, "rope_theta": 5e5},
    "qwen3": {**_SIZES, "model_type": "qwen3", "head_dim": 16},
    "olmo2": {**_SIZES, "model_type": "olmo2"},
    "granite": {
        **_SIZES,
        "model_type": "granite",
        "embedding_multiplier": 2.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 1 / 16,
        "logits_scaling": 3.0,
    },
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 128,
        "vocab_size": 1000,
    },
}


def config_file(folder: Path, family: str, **changes: Any) -> Path:
    """A config.json in a folder of its own."""
    place = folder / family
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps({**CONFIGS[family], **changes}))
    return place


def run_of(
    config: Path, family: str = "llama", changes: dict[str, Any] | None = None, /, **model: Any
) -> Run:
    """An exact run of a few steps; the context is short, so that thirty of them take a second."""
    sizes = {"width": 64, "base_width": 32, "depth": 2, "context": 32, "head_dim": 16, "vocab": 256}
    adapter = {
        "factory": "froude.train.hf:Model",
        "tied": family == "gpt2",
        "options": {"config": str(config)},
    }
    content: dict[str, Any] = {
        "name": "large",
        "model": {**sizes, **adapter, **model},
        "batch": 256,
        "tokens": 256 * 4,
        "slots": 2,
        "reduction": "exact",
        "eval_windows": 8,
        "checkpoint_every": 2,
        "optimizer": {"lr": 2**-8},
    }
    return Run(**{**content, **(changes or {})})
