"""What a new project's search space says of its model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from froude.config import ConfigError


@dataclass(frozen=True)
class Shape:
    """A model's factory with its options, and the sizes that its user did not choose; a vocabulary of 0 is unknown.

    `heads_at_least` is how many heads the smallest width must be a multiple of, for queries that share keys.
    """

    factory: str = "froude.train.model:Transformer"
    head_dim: int = 16
    depth: int = 2
    heads_at_least: int = 1
    vocab: int = 0
    options: dict[str, Any] = field(default_factory=dict)


def shape(model: str) -> Shape:
    """Of `--model`; ConfigError for what it can't be, or a configuration that can't be read."""
    if not model:
        return Shape()
    if model == "own":
        return Shape(factory="my_model:MyModel")
    kind, _, place = model.partition(":")
    if kind != "hf" or not place:
        raise ConfigError(
            f"--model must be hf:CONFIG, with a config.json or its folder, or own, but got {model!r}; name one of them"
        )
    file = Path(place).expanduser().resolve()
    file = file / "config.json" if file.is_dir() else file
    try:
        config = json.loads(file.read_text())
        width, heads = (
            int(config.get("hidden_size") or config["n_embd"]),
            int(config.get("num_attention_heads") or config["n_head"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            "--model hf:CONFIG must be a readable config.json with hidden_size and num_attention_heads, but "
            f"{str(file)!r}: {error}; correct it"
        ) from None
    return Shape(
        factory="froude.train.hf:Model",
        head_dim=int(config.get("head_dim") or width // heads),
        heads_at_least=max(1, heads // int(config.get("num_key_value_heads") or heads)),
        vocab=int(config.get("vocab_size") or 0),
        options={"config": str(file)},
    )
