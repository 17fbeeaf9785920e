"""The validation split of byte-based sources: 2 KiB blocks, 5% held out by a hash, the same everywhere."""

from __future__ import annotations

import hashlib
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Split = Literal["train", "validation"]

BLOCK = 2048
#: A whole block is held out when its 64-bit hash is below this: 5% of all hashes.
THRESHOLD = 2**64 // 20


class Streams(NamedTuple):
    """The two parts of a corpus, each its blocks joined in order, uint8."""

    train: npt.NDArray[np.uint8]
    validation: npt.NDArray[np.uint8]


def block_hash(index: int, block: bytes) -> int:
    """64-bit BLAKE2b of a block's index (8 bytes, little-endian) and content."""
    return int.from_bytes(
        hashlib.blake2b(index.to_bytes(8, "little") + block, digest_size=8).digest(), "little"
    )


def held_out(data: bytes) -> npt.NDArray[np.bool_]:
    """Which whole blocks are validation; where no hash is low enough, the block with the lowest.

    A last block that is not whole always trains, so every validation block has its 2 KiB.
    """
    hashes = np.array(
        [block_hash(i, data[i * BLOCK : (i + 1) * BLOCK]) for i in range(len(data) // BLOCK)], dtype=np.uint64
    )
    mask = hashes < np.uint64(THRESHOLD)
    if len(hashes) and not mask.any():
        mask[hashes.argmin()] = True
    return mask


def divide(data: bytes) -> Streams:
    """A corpus as its training and its validation stream, both read-only."""
    mask = held_out(data)
    whole = np.frombuffer(data, dtype=np.uint8, count=len(mask) * BLOCK).reshape(-1, BLOCK)
    rest = np.frombuffer(data, dtype=np.uint8, offset=whole.size) if whole.size < len(data) else whole[:0, 0]
    streams = Streams(np.concatenate([whole[~mask].reshape(-1), rest]), whole[mask].reshape(-1))
    for stream in streams:
        stream.flags.writeable = False
    return streams
