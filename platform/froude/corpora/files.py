"""Bytes of a shard, local or on S3: memory-mapped, or blocks of it fetched when they are asked for."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import resource
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from froude.config import ConfigError
from froude.corpora import blocks
from froude.s3 import Reader
from froude.store import Location, reported

Bytes = npt.NDArray[np.uint8]
#: Bytes that are asked for before they are read: a quarter of what is kept, where each lies over an end of a block.
AHEAD = blocks.CAPACITY // 8


class File(Protocol):
    """A file whose size is known, to be read at any place; `stamp` changes when it is written again."""

    url: str
    size: int
    stamp: int

    def read(self, offset: int, length: int) -> Bytes:
        """Exactly these bytes, read-only; ConfigError if the file has become shorter."""

    def expect(self, offset: int, length: int) -> None:
        """These bytes will be read soon."""


def truncated(file: File, offset: int, length: int) -> ConfigError:
    """What is said of a file that ends before what was to be read."""
    return ConfigError(
        f"a shard must stay as it is while it is read, but {file.url} no longer has {file.size} bytes, of which those "
        f"from {offset} to {offset + length} were to be read; restore it"
    )


def rewritten(file: File) -> ConfigError:
    """What is said of a file that is no longer the one that was opened."""
    return ConfigError(
        f"a shard must stay as it is while it is read, but {file.url} was written again; restore it, or start again"
    )


def in_turn(parts: Iterable[tuple[File, int, int]]) -> Iterator[Bytes]:
    """The bytes of each part (file, offset, length), while those of the next ones are on their way."""
    waiting: deque[tuple[File, int, int]] = deque()
    ahead = 0
    for part in itertools.chain(parts, [None]):
        if part is not None:
            file, offset, length = part
            file.expect(offset, length)
            waiting.append(part)
            ahead += max(length, blocks.BLOCK)
        while waiting and (ahead > AHEAD or part is None):
            file, offset, length = waiting.popleft()
            ahead -= max(length, blocks.BLOCK)
            yield file.read(offset, length)


class Local:
    """A local file, mapped into memory when it is first read, as long as it stays as it was listed."""

    def __init__(self, url: str, size: int, stamp: int) -> None:
        self.url, self.size, self.stamp = url, size, stamp
        self._mapped: tuple[mmap.mmap | None, Bytes] | None = None

    def read(self, offset: int, length: int) -> Bytes:
        """As File.read, a view."""
        data, mapped = self._mapped or self._map()
        # What is mapped and no longer there ends the process (SIGBUS) when it is touched.
        if offset + length > self.size or (data is not None and data.size() != self.size):
            raise truncated(self, offset, length)
        with contextlib.suppress(FileNotFoundError):  # what is mapped stays, though its name is gone
            self._check(os.stat(self.url))
        return mapped[offset : offset + length]

    def expect(self, offset: int, length: int) -> None:
        """Nothing to do: the kernel reads ahead."""

    def _map(self) -> tuple[mmap.mmap | None, Bytes]:
        with reported(Location(self.url), "a shard must be a readable file"), open(self.url, "rb") as file:
            self._check(os.fstat(file.fileno()))
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.size else None
        self._mapped = data, np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
        _opened(self)
        return self._mapped

    def _check(self, now: os.stat_result) -> None:
        """ConfigError if it was written, in place or anew, since it was listed."""
        if now.st_size != self.size:
            raise ConfigError(
                f"a shard must stay as it is while it is read, but {self.url} has {now.st_size} bytes instead of "
                f"{self.size}; restore it, or start again"
            )
        if now.st_mtime_ns != self.stamp:
            raise rewritten(self)

    def close(self) -> None:
        """Unmap it, as soon as nothing refers to its bytes."""
        self._mapped = None


_open: deque[Local] = deque()


def _opened(file: Local) -> None:
    """Close the file that has been open longest where half of the descriptors that a process may have are in use."""
    _open.append(file)
    while len(_open) > max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2):
        _open.popleft().close()


class Remote:
    """An object on S3, read in aligned blocks that stay in a bounded cache, which all objects of a process share."""

    def __init__(self, url: str, size: int, stamp: int) -> None:
        self.url, self.size, self.stamp = url, size, stamp
        self._reader: Reader | None = None
        self._lock = threading.Lock()

    def read(self, offset: int, length: int) -> Bytes:
        """As File.read, a copy."""
        if offset + length > self.size:
            raise truncated(self, offset, length)
        numbers = self._blocks(offset, length)
        blocks.CACHE.expect(self, numbers)
        found = [blocks.CACHE.get(self, number) for number in numbers]
        start = offset % blocks.BLOCK
        if len(found) == 1:
            return np.frombuffer(found[0], np.uint8)[start : start + length]
        return np.frombuffer(b"".join(found), np.uint8)[start : start + length]

    def expect(self, offset: int, length: int) -> None:
        """As File.expect: begins to fetch them, and does not wait."""
        blocks.CACHE.expect(self, self._blocks(offset, length))

    def fetch(self, number: int) -> bytes:
        """A block, from the store."""
        first = number * blocks.BLOCK
        wanted = min(blocks.BLOCK, self.size - first)
        source = self._open()
        found = source.read_at(wanted, first)
        if len(found) != wanted:
            raise truncated(self, first, wanted)
        # Asked after its bytes came: what was written again before or meanwhile is no longer what was opened.
        if Location(self.url).reader().version() != source.version():
            raise rewritten(self)
        return found

    def _open(self) -> Reader:
        with self._lock:
            if self._reader is None:
                self._reader = Location(self.url).reader()
                if self._reader.size() != self.size:
                    raise truncated(self, 0, self.size)
            return self._reader

    @staticmethod
    def _blocks(offset: int, length: int) -> range:
        return range(offset // blocks.BLOCK, -(-(offset + length) // blocks.BLOCK))


def opened(url: str, size: int, stamp: int) -> File:
    """A file by its URL as `Location` has it, with what a listing said of it."""
    return Remote(url, size, stamp) if url.startswith("s3://") else Local(url, size, stamp)
