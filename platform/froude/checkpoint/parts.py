"""Writing, hashing and checking the files that a commit record names."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import xxhash

from froude.runlog import Part
from froude.store import Location

AHEAD_BYTES = 4 << 20  # what a sink collects before its thread gets it; twice that, and a block, is in memory
FLUSH_BYTES = 256 << 20  # what a stream to S3, which takes all that it is given at once, may have on its way


class Corrupt(RuntimeError):
    """A stored file that is needed is missing, or is not the bytes that were committed."""


def digest(data: bytes) -> str:
    """XXH3-128 in 32 hex digits: finds damage, does not authenticate."""
    return xxhash.xxh3_128_hexdigest(data)


@contextmanager
def unreadable_is_corrupt(place: Location) -> Iterator[None]:
    """Corrupt if a file is missing, or if its disk, and no more than that, fails: an older checkpoint may be whole."""
    try:
        yield
    except FileNotFoundError:
        raise Corrupt(f"{place} is missing") from None
    except OSError as error:
        if place.is_local and error.errno in (errno.EIO, errno.EISDIR, errno.ENOTDIR):
            raise Corrupt(f"{place} can't be read: {error.strerror}") from error
        raise


def create_part(run: Location, kind: str, path: str, data: bytes) -> Part:
    """Write a small file, whole or not at all; FileExistsError if other bytes have that name."""
    target = run / path
    if not target.create(data) and target.read() != data:
        raise FileExistsError(f"{target} exists already, with other content")
    return Part(kind, path, len(data), digest(data))


def read_part(run: Location, part: Part) -> bytes:
    """The file's bytes; Corrupt if it is missing or differs."""
    with unreadable_is_corrupt(run / part.path):
        data = (run / part.path).read()
    if len(data) != part.size or digest(data) != part.hash:
        raise Corrupt(f"{run / part.path} is not the {part.size} bytes that were committed")
    return data


class HashingSink:
    """A writable stream that counts and hashes what passes through it, as pyarrow's writers want one.

    What passed before is meanwhile written by a thread; use it in a `with` statement, whose end waits for the last.
    """

    def __init__(self, sink: Any) -> None:
        self._sink, self._hash = sink, xxhash.xxh3_128()
        self._pool = ThreadPoolExecutor(1, "froude-write")
        self._pieces: list[bytes] = []
        self._waiting = 0  # bytes of them
        self._unflushed = 0
        self._writing: Future[None] | None = None
        self.size = 0
        self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._hand_over()
                self._hand_over()  # waits for the one before
        finally:
            self._pool.shutdown()

    def write(self, data: Any) -> int:
        piece = bytes(data)  # bytes come back as they are; a buffer's owner may use it again
        self._hash.update(piece)
        self._pieces.append(piece)
        self._waiting += len(piece)
        self.size += len(piece)
        if self._waiting >= AHEAD_BYTES:
            self._hand_over()
        return len(piece)

    def _hand_over(self) -> None:
        pieces, self._pieces, self._waiting = self._pieces, [], 0
        before, self._writing = self._writing, self._pool.submit(self._put, pieces)
        if before is not None:
            before.result()

    def _put(self, pieces: list[bytes]) -> None:
        self._sink.writelines(pieces)
        self._unflushed += sum(map(len, pieces))
        if self._unflushed >= FLUSH_BYTES:
            self._sink.flush()  # returns when all has arrived, and raises what an upload met
            self._unflushed = 0

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Leave that to the stream underneath."""

    def close(self) -> None:
        """Leave the stream underneath to its owner."""
        self.closed = True
