"""One hash for the content of many files: whole where they are small, by sizes and samples where they are terabytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from froude.config import ConfigError
from froude.corpora.files import File, in_turn
from froude.store import Location, reported

#: Up to so many bytes in all are hashed whole: what every process that opens the shards can read in a second or two.
WHOLE = 1 << 28
#: Of more, blocks of BLOCK bytes spread evenly over each file, MOST in all, first and last of each file at least.
BLOCK, MOST = 1 << 16, 1 << 12
#: Bytes of one file that is hashed by itself, read at once.
PIECE = 1 << 23


def sha256(files: Sequence[File], known: Mapping[str, str] | None = None) -> str:
    """SHA-256 (64 hex digits) of files in this order, local or on S3, wherever they lie and whatever they are called.

    Of more than WHOLE bytes in all it is that of a manifest: each file's size, and the hash of blocks of it. That
    detects another corpus, another version or a truncated file, but not an edit between the blocks. ConfigError for a
    file that is read whole and has another hash than is `known` of its URL.
    """
    sampled = sum(file.size for file in files) > WHOLE
    total = hashlib.sha256(b"sampled" if sampled else b"whole")
    blocks = max(2, min(64, MOST // max(1, len(files))))
    places = [_places(file.size, blocks if sampled else 0) for file in files]
    found = in_turn((file, *place) for file, parts in zip(files, places, strict=True) for place in parts)
    for file, parts in zip(files, places, strict=True):
        part = hashlib.sha256()
        for _ in parts:
            part.update(next(found).data)
        if not sampled and part.hexdigest() != (wanted := (known or {}).get(file.url, part.hexdigest())):
            raise ConfigError(
                f"a shard must be the one that data.json lists, SHA-256 {wanted[:12]}…, but {file.url} has "
                f"{part.hexdigest()[:12]}…; restore it, or prepare the data again"
            )
        total.update(file.size.to_bytes(8, "little") + part.digest())
    return total.hexdigest()


def file_sha256(location: Location) -> str:
    """SHA-256 of one file as it lies there now, whatever of it is mapped or in the cache."""
    digest = hashlib.sha256()
    with reported(location, "a file must be readable"), location.reader() as source:
        size = source.size()
        for offset in range(0, size, PIECE):
            digest.update(source.read_at(min(PIECE, size - offset), offset))
    return digest.hexdigest()


def _places(size: int, blocks: int) -> list[tuple[int, int]]:
    """Offset and length of what is read of a file: `blocks` spread over it, or all of it in pieces."""
    if blocks and size > blocks * BLOCK:
        return [(i * (size - BLOCK) // (blocks - 1), BLOCK) for i in range(blocks)]
    piece = 1 << 20
    return [(offset, min(piece, size - offset)) for offset in range(0, size, piece)]
