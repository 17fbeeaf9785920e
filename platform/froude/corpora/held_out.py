"""Which tokens are held out: whole documents by the hash of their tokens, or blocks where no documents are known."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from froude.config import ConfigError
from froude.corpora.formats.shard import Shard
from froude.corpora.stream import Ranges, Stream, each_document

#: Tokens that may be read to hash them, by every process that opens the source: half a minute on one core.
MOST = 1 << 30
#: Tokens of a store that are asked for ahead of the one that is hashed.
AHEAD = 1 << 22


class Division(NamedTuple):
    """Ranges [n, 2] of the tokens of all shards that train, and of those that are held out."""

    train: Ranges
    validation: Ranges


def divide(shards: Sequence[Shard], share: float, *, block: int, least: int, path: str) -> Division:
    """Hold out documents, or blocks of `block` tokens, whose hash is low enough, and at least `least` tokens.

    Where too few are low enough, those with the lowest. What remains after the last whole block trains. Equal documents
    have the same hash, so all of them are on one side. ConfigError where there is too much to read.
    """
    tokens = sum(shard.tokens for shard in shards)
    if tokens > MOST:
        raise ConfigError(
            f"a share can be held out of at most {MOST} tokens, since all are read for it, but {path!r} has {tokens}; "
            "name shards to hold out as `data.options.validation`"
        )
    stream = Stream(shards)
    documented = all(shard.documented for shard in shards)
    if documented:
        pieces = np.array([pair for pair in each_document(shards) if pair[0] < pair[1]], np.int64).reshape(
            -1, 2
        )
    else:
        starts = np.arange(tokens // block, dtype=np.int64) * block
        pieces = np.stack([starts, starts + block], axis=1)
    hashes = np.zeros(len(pieces), np.uint64)
    asked = 0
    for i, (first, stop) in enumerate(pieces.tolist()):
        if stream.remote and first + AHEAD // 2 >= asked < tokens:
            stream.expect(asked, min(AHEAD, tokens - asked))
            asked += AHEAD
        hashes[i] = _hash(stream, first, stop, number=None if documented else i)
    held = _lowest(hashes, share, pieces[:, 1] - pieces[:, 0], least)
    rest = np.array([[pieces[-1, 1] if len(pieces) else 0, tokens]], np.int64)
    return Division(_joined(np.concatenate([pieces[~held], rest])), _joined(pieces[held]))


def _hash(stream: Stream, first: int, stop: int, *, number: int | None) -> int:
    """64-bit BLAKE2b of tokens as uint32, after the block's number where it is no document."""
    known = hashlib.blake2b(b"" if number is None else number.to_bytes(8, "little"), digest_size=8)
    for start in range(first, stop, 1 << 24):
        known.update(np.ascontiguousarray(stream.read(start, min(1 << 24, stop - start)), "<u4").data)
    return int.from_bytes(known.digest(), "little")


def _lowest(
    hashes: npt.NDArray[np.uint64], share: float, sizes: npt.NDArray[np.int64], least: int
) -> npt.NDArray[np.bool_]:
    held = hashes < np.uint64(min(2**64 - 1, int(share * 2**64)))
    if int(sizes[held].sum()) < least:
        order = np.lexsort((np.arange(len(hashes)), hashes))
        enough = int(np.searchsorted(np.cumsum(sizes[order]), least)) + 1
        held |= hashes <= hashes[order[min(enough, len(order)) - 1]] if len(order) else held
    return held


def _joined(ranges: Ranges) -> Ranges:
    """Ranges in order, those that touch made one, empty ones left out."""
    ranges = ranges[ranges[:, 0] < ranges[:, 1]]
    if not len(ranges):
        return ranges
    apart = np.flatnonzero(ranges[1:, 0] != ranges[:-1, 1]) + 1
    return np.stack(
        [ranges[np.append(0, apart), 0], ranges[np.append(apart - 1, len(ranges) - 1), 1]], axis=1
    )
