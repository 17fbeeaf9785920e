"""Writing, hashing and checking the files that a commit record names."""

from __future__ import annotations

from typing import Any

import xxhash

from froude.runlog import Part
from froude.store import Location


class Corrupt(RuntimeError):
    """A stored file is missing or is not the bytes that were committed."""


def digest(data: bytes) -> str:
    """XXH3-128 in 32 hex digits: finds damage, does not authenticate."""
    return xxhash.xxh3_128_hexdigest(data)


def create_part(run: Location, kind: str, path: str, data: bytes) -> Part:
    """Write a small file, whole or not at all; FileExistsError if other bytes have that name."""
    target = run / path
    if not target.create(data) and target.read() != data:
        raise FileExistsError(f"{target} exists already, with other content")
    return Part(kind, path, len(data), digest(data))


def read_part(run: Location, part: Part) -> bytes:
    """The file's bytes; Corrupt if it is missing or differs."""
    try:
        data = (run / part.path).read()
    except FileNotFoundError:
        raise Corrupt(f"{run / part.path} is missing") from None
    if len(data) != part.size or digest(data) != part.hash:
        raise Corrupt(f"{run / part.path} is not the {part.size} bytes that were committed")
    return data


class HashingSink:
    """A writable stream that counts and hashes what passes through it, as pyarrow's writers want one."""

    def __init__(self, sink: Any) -> None:
        self._sink, self._hash = sink, xxhash.xxh3_128()
        self.size = 0
        self.closed = False

    def write(self, data: Any) -> int:
        self._sink.write(data)
        self._hash.update(data)
        self.size += len(data)
        return len(data)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._sink.flush()

    def close(self) -> None:
        """Leave the stream underneath to its owner."""
        self.closed = True
