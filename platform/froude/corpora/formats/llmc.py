"""llm.c's and modded-nanogpt's shards: 256 int32 of header, of which three are used, then the token ids."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from froude.corpora.files import File
from froude.corpora.formats.flat import Flat
from froude.corpora.formats.shard import Shard, unfit

HEADER = 256 * 4
#: Type of the ids by magic number and version (karpathy/llm.c, dev/data/data_common.py).
TYPES = {(20240520, 1): np.uint16, (20240801, 7): np.uint32}
MAGICS = tuple(np.int32(magic).tobytes() for magic, _ in TYPES)


def shard(file: File, dtype: str, names: Mapping[str, File]) -> Shard:
    """A shard, whose header must fit its size."""
    if file.size < HEADER:
        raise unfit(
            file.url,
            f"an llm.c shard must begin with {HEADER} bytes of header",
            f"has {file.size}",
            "restore it",
        )
    magic, version, count = (int(word) for word in file.read(0, 12).view("<i4"))
    if (magic, version) not in TYPES:
        known = " or ".join(f"{magic} and {version}" for magic, version in TYPES)
        raise unfit(
            file.url,
            f"an llm.c shard must have magic number and version {known}",
            f"has {magic} and {version}",
            "write it again with a known version",
        )
    kind = np.dtype(TYPES[magic, version])
    if file.size != HEADER + count * kind.itemsize:
        raise unfit(
            file.url,
            f"an llm.c shard of {count} tokens must have {HEADER + count * kind.itemsize} bytes",
            f"has {file.size}",
            "restore it: it was truncated or written over",
        )
    return Flat(file, kind, header=HEADER, tokens=count)
