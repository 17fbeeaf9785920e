"""What a format makes of a file: tokens by number, in groups that are read separately, and documents, if it has any."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from froude.config import ConfigError

Tokens = npt.NDArray[Any]


def unfit(name: str, rule: str, found: str, remedy: str) -> ConfigError:
    """An error about a shard, by name: the rule, what was found, the remedy."""
    return ConfigError(f"{rule}, but {name} {found}; {remedy}")


class Shard(ABC):
    """Tokens of a file, one after the other; `rows` are documents by group, None where the format has no boundaries.

    A format says how groups are read: `values`, and `offsets` if it has documents.
    """

    def __init__(self, name: str, tokens: Sequence[int], rows: Sequence[int] | None = None) -> None:
        self.name = name
        self._ends = list(accumulate(tokens, initial=0))
        self._rows = None if rows is None else list(accumulate(rows, initial=0))
        self.tokens = self._ends[-1]

    @property
    def documented(self) -> bool:
        """Whether it says where documents begin."""
        return self._rows is not None

    @property
    def documents(self) -> int | None:
        """How many documents it has, empty ones too; None where it has no boundaries."""
        return None if self._rows is None else self._rows[-1]

    @abstractmethod
    def values(self, group: int, first: int, stop: int) -> Tokens:
        """Tokens of a group, as integers of any width, read-only."""

    @abstractmethod
    def offsets(self, group: int) -> npt.NDArray[np.int64]:
        """Where each document of a group starts, in tokens from 0, and where the last ends [rows + 1]."""

    def expect(self, first: int, n: int) -> None:  # noqa: B027  nothing to do where reading does not wait
        """Tokens first … first + n - 1 will be read soon."""

    def read(self, first: int, n: int) -> Tokens:
        """Tokens first … first + n - 1, a view where they lie in one group."""
        parts = [self.values(group, start, stop) for group, start, stop in self.groups(first, n)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def groups(self, first: int, n: int) -> Iterator[tuple[int, int, int]]:
        """Where tokens are: group, first and last but one token in it."""
        group, stop = bisect_right(self._ends, first) - 1, first + n
        while True:
            start = self._ends[group]
            end = min(stop, self._ends[group + 1])
            if end > first or n == 0:
                yield group, first - start, end - start
            if end == stop:
                return
            first, group = max(first, end), group + 1

    def document_of(self, first: int, n: int) -> npt.NDArray[np.int64]:
        """The number, in the shard, of the document that each of these tokens belongs to."""
        assert self._rows is not None
        parts = [
            np.searchsorted(self.offsets(group), np.arange(start, stop), side="right") - 1 + self._rows[group]
            for group, start, stop in self.groups(first, n)
        ]
        return np.concatenate(parts).astype(np.int64)

    def starts(self) -> npt.NDArray[np.int64]:
        """Where each document starts, and where the last ends [documents + 1]."""
        assert self._rows is not None
        parts = [self.offsets(group)[:-1] + self._ends[group] for group in range(len(self._ends) - 1)]
        return np.concatenate([*parts, np.array([self.tokens])]).astype(np.int64)
