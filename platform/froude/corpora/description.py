"""What `data.json` beside shards says of them: their sizes, which are checked, and the text that they were made of."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from froude.config import ConfigError
from froude.corpora.files import File
from froude.corpora.listing import DESCRIPTION
from froude.store import Location


def read(names: Mapping[str, File], shards: Sequence[File]) -> dict[str, Any]:
    """The description in the first shard's folder; {} if there is none.

    ConfigError if a shard that it lists has another size, or it is no JSON object.
    """
    found: dict[str, Any] = {}
    for folder in dict.fromkeys(Location(file.url).parent.url for file in shards):
        file = names.get(f"{folder}/{DESCRIPTION}")
        if file is None:
            continue
        content = _parsed(file)
        found = found or content
        for listed in content.get("shards", []):
            shard = names.get(f"{folder}/{listed.get('name')}") if isinstance(listed, dict) else None
            if shard is not None and shard.size != listed.get("size", shard.size):
                raise ConfigError(
                    f"a shard must have the size that {file.url} lists, {listed['size']} bytes, but {shard.url} has "
                    f"{shard.size}; restore it, or prepare the data again"
                )
    return found


def _parsed(file: File) -> dict[str, Any]:
    try:
        content = json.loads(file.read(0, file.size).tobytes())
    except ValueError as error:
        raise ConfigError(f"a {DESCRIPTION} must be JSON, but {file.url}: {error}; restore it") from None
    if not isinstance(content, dict):
        raise ConfigError(f"a {DESCRIPTION} must be a JSON object, but {file.url} is not; restore it")
    return content


def bytes_per_token(described: Mapping[str, Any]) -> float | None:
    """Bytes of text that a token of the validation split stands for, on average; None where nobody says it."""
    held = described.get("validation")
    if not isinstance(held, Mapping):
        return None
    tokens, size = held.get("tokens"), held.get("bytes")
    if not all(isinstance(n, int | float) and math.isfinite(n) and n > 0 for n in (tokens, size)):
        return None
    return float(size) / float(tokens)  # type: ignore[arg-type]
