"""What `data.json` beside shards says of them: sizes, which are checked; what is held out; how much text they are."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from froude.config import ConfigError
from froude.corpora.files import File
from froude.corpora.listing import DESCRIPTION
from froude.store import Location


class Described(NamedTuple):
    """URLs of the shards that are held out; bytes of text a token of them stands for, None where nobody says it."""

    held_out: frozenset[str]
    bytes_per_token: float | None


def read(names: Mapping[str, File], shards: Sequence[File]) -> Described:
    """What the descriptions in the shards' folders say.

    ConfigError if a shard that one lists has another size, or it is no JSON object.
    """
    held: set[str] = set()
    ratios = []
    for folder in dict.fromkeys(Location(file.url).parent.url for file in shards):
        file = names.get(f"{folder}/{DESCRIPTION}")
        if file is None:
            continue
        content = _parsed(file)
        ratios.append(_bytes_per_token(content))
        for listed in content.get("shards", []):
            shard = names.get(f"{folder}/{listed.get('name')}") if isinstance(listed, dict) else None
            if shard is None:
                continue
            if shard.size != listed.get("size", shard.size):
                raise ConfigError(
                    f"a shard must have the size that {file.url} lists, {listed['size']} bytes, but {shard.url} has "
                    f"{shard.size}; restore it, or prepare the data again"
                )
            if listed.get("split") == "validation":
                held.add(shard.url)
    return Described(frozenset(held), ratios[0] if len(ratios) == 1 else None)


def _parsed(file: File) -> dict[str, Any]:
    try:
        content = json.loads(file.read(0, file.size).tobytes())
    except ValueError as error:
        raise ConfigError(f"a {DESCRIPTION} must be JSON, but {file.url}: {error}; restore it") from None
    if not isinstance(content, dict):
        raise ConfigError(f"a {DESCRIPTION} must be a JSON object, but {file.url} is not; restore it")
    return content


def _bytes_per_token(content: Mapping[str, Any]) -> float | None:
    splits = content.get("splits", content)
    counts = splits.get("validation") if isinstance(splits, Mapping) else None
    size, tokens = (counts.get(name) if isinstance(counts, Mapping) else None for name in ("bytes", "tokens"))
    known = all(isinstance(n, int | float) and math.isfinite(n) and n > 0 for n in (size, tokens))
    return float(size) / float(tokens) if known else None  # type: ignore[arg-type]
