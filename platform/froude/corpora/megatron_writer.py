"""Token shards as Megatron-LM has them: a `.bin` of tokens and an `.idx` that says where each document is."""

from __future__ import annotations

import contextlib
import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from froude.corpora.formats.megatron import HEAD, MAGIC, TYPES
from froude.store import Location, reported

CODES = {np.dtype(kind): code for code, kind in TYPES.items()}


def dtype_for(vocab: int) -> np.dtype[Any]:
    """The smallest type of ours that holds all token ids below `vocab`."""
    return np.dtype("<u2") if vocab <= 1 << 16 else np.dtype("<i4")


def index(lengths: npt.NDArray[np.int64], dtype: np.dtype[Any]) -> bytes:
    """The `.idx` of documents of these lengths (tokens), each one sequence."""
    pointers = np.zeros(len(lengths), dtype="<i8")
    np.cumsum(lengths[:-1] * dtype.itemsize, out=pointers[1:])
    head = MAGIC + struct.pack(HEAD, 1, CODES[dtype], len(lengths), len(lengths) + 1)
    documents = np.arange(len(lengths) + 1, dtype="<i8")
    return head + lengths.astype("<i4").tobytes() + pointers.tobytes() + documents.tobytes()


@dataclass(frozen=True)
class Written:
    """A file that was written: its name, bytes and SHA-256."""

    name: str
    size: int
    sha256: str

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "size": self.size, "sha256": self.sha256}


@contextlib.contextmanager
def hashed_output(location: Location) -> Iterator[Any]:
    """A sink whose `written()` tells, at the end, what is in the file."""
    with reported(location, "shards must be written whole"), location.output() as sink:
        yield _Hashed(sink, location.name)


class _Hashed:
    def __init__(self, sink: Any, name: str) -> None:
        self._sink, self._name, self._size, self._digest = sink, name, 0, hashlib.sha256()

    def write(self, data: bytes) -> None:
        self._sink.write(data)
        self._size += len(data)
        self._digest.update(data)

    def written(self) -> Written:
        return Written(self._name, self._size, self._digest.hexdigest())
