"""What a new project's search space says of its model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, lcm
from pathlib import Path
from typing import Any

from froude.config import ConfigError
from froude.train.hf.config import read as config_of


@dataclass(frozen=True)
class Shape:
    """A model's factory with its options, and the sizes that its user did not choose; a vocabulary of 0 is unknown.

    Widths are multiples of `unit`, 0 for that of a head: so that heads, and the keys that they share, are whole.
    `config` is the text of its config.json, "" if it has none, `folder` where that lies.
    """

    factory: str = "froude.train.model:Transformer"
    head_dim: int = 16
    depth: int = 2
    unit: int = 0
    vocab: int = 0
    tied: bool = False
    config: str = ""
    folder: Path | None = None


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
        text = file.read_text()
        config = json.loads(text)
        width, heads = _size(config, "hidden_size", "n_embd"), _size(config, "num_attention_heads", "n_head")
        keys = int(config.get("num_key_value_heads") or heads)
        if min(width, heads, keys) < 1:
            raise ValueError(f"width {width}, {heads} heads and {keys} key heads must be positive")
        head_dim = int(config.get("head_dim") or width // heads)
        vocab = int(config.get("vocab_size") or 0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        said = error.args[0] if isinstance(error, KeyError) else error
        raise ConfigError(
            "--model hf:CONFIG must be a readable config.json with hidden_size and num_attention_heads, but "
            f"{str(file)!r}: {said}; correct it"
        ) from None
    config_of(file)  # ConfigError for what the adapter does not know
    # GPT-2 is tied unless its config says otherwise; of the others that the adapter knows, none is.
    tied = config.get("tie_word_embeddings")
    return Shape(
        factory="froude.train.hf:Model",
        head_dim=head_dim,
        unit=lcm(head_dim, width // gcd(width, heads), width // gcd(width, keys)),
        vocab=vocab,
        tied=bool(config.get("model_type") == "gpt2" if tied is None else tied),
        config=text,
        folder=file.parent,
    )


def _size(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        if name in config:
            return int(config[name])
    raise KeyError(f"it has no {names[0]}")
