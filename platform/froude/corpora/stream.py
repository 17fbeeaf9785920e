"""Shards as one stream of tokens, or parts of it joined: where a token is, and which document it belongs to."""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from froude.corpora.formats.shard import Shard, Tokens

Ranges = npt.NDArray[np.int64]


class Stream:
    """All tokens of shards in their order, or those of `ranges` [n, 2] (first and last but one) of them, joined."""

    def __init__(self, shards: Sequence[Shard], ranges: Ranges | None = None) -> None:
        self.shards = shards
        self._starts = list(accumulate((shard.tokens for shard in shards), initial=0))
        pieces = self._cut(ranges) if ranges is not None else list(pairwise(self._starts))
        self._first = [first for first, _ in pieces]  # token of all shards that a piece begins with
        self._shard = [bisect_right(self._starts, first) - 1 for first in self._first]
        self._at = list(accumulate((stop - first for first, stop in pieces), initial=0))
        self.tokens = self._at[-1]

    def _cut(self, ranges: Ranges) -> list[tuple[int, int]]:
        """Ranges, divided where shards end."""
        pieces = []
        for first, stop in ranges.tolist():
            while first < stop:
                end = min(stop, self._starts[bisect_right(self._starts, first)])
                pieces.append((first, end))
                first = end
        return pieces

    def read(self, first: int, n: int) -> Tokens:
        """Tokens first … first + n - 1 of the stream, read-only where they are a view."""
        piece = bisect_right(self._at, first) - 1
        if first + n <= self._at[piece + 1]:
            number = self._shard[piece]
            return self.shards[number].read(
                first - self._at[piece] + self._first[piece] - self._starts[number], n
            )
        parts = [self.shards[number].read(start, count) for number, start, count in self.places(first, n)]
        return np.concatenate(parts)

    def places(self, first: int, n: int) -> Iterator[tuple[int, int, int]]:
        """Where tokens of the stream are: shard, first token in it, how many."""
        piece, stop = bisect_right(self._at, first) - 1, first + n
        while first < stop:
            count = min(stop, self._at[piece + 1]) - first
            if count > 0:
                number = self._shard[piece]
                yield number, first - self._at[piece] + self._first[piece] - self._starts[number], count
            first, piece = first + max(0, count), piece + 1

    def document_of(self, first: int, n: int) -> npt.NDArray[np.int64]:
        """The number of the document, over all shards, that each token of the stream belongs to."""
        before = self._before
        return np.concatenate(
            [
                self.shards[number].document_of(start, count) + before[number]
                for number, start, count in self.places(first, n)
            ]
        )

    def expect(self, first: int, n: int) -> None:
        """Tokens of the stream that will be read soon."""
        for number, start, count in self.places(first, n):
            self.shards[number].expect(start, count)

    @property
    def remote(self) -> bool:
        """Whether a read may have to wait for a store, so that it is worth asking ahead."""
        return any(shard.name.startswith("s3://") for shard in self.shards)

    @property
    def documented(self) -> bool:
        """Whether all shards say where documents begin."""
        return all(shard.documented for shard in self.shards)

    @functools.cached_property
    def _before(self) -> list[int]:
        """Documents of the shards before each."""
        return list(accumulate((shard.documents or 0 for shard in self.shards), initial=0))


def each_document(shards: Sequence[Shard]) -> Iterator[tuple[int, int]]:
    """First and last but one token of each document of all shards, in their order."""
    before = 0
    for shard in shards:
        for first, stop in pairwise(shard.starts().tolist()):
            yield before + first, before + stop
        before += shard.tokens
