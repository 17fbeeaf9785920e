"""One Megatron pair, open to be read: lengths of its documents, and their tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from froude.config import ConfigError
from froude.corpora.megatron_writer import MAGIC, VERSION
from froude.store import Location, reported

#: Megatron's codes of types.
TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
HEAD = len(MAGIC) + 8 + 1 + 8 + 8
#: Bytes of tokens read at once.
BLOCK = 1 << 26


@dataclass(frozen=True)
class Pair:
    """A `.bin` whose `.idx` was read; `lengths` are its documents' in tokens."""

    location: Location
    dtype: np.dtype[Any]
    lengths: npt.NDArray[np.int64]

    def tokens(self) -> npt.NDArray[Any]:
        """All tokens, mapped; only of a local pair."""
        return (
            np.memmap(self.location.path, self.dtype, "r") if self.lengths.sum() else np.empty(0, self.dtype)
        )

    def documents(self) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.int64]]]:
        """Tokens of several whole documents, and their lengths, again and again until the end."""
        most, at, offset = max(1, BLOCK // self.dtype.itemsize), 0, 0
        ends = np.cumsum(self.lengths)
        with reported(self.location, "shards must be readable"), self.location.reader() as source:
            while at < len(ends):
                before = int(ends[at - 1]) if at else 0
                stop = max(at + 1, int(np.searchsorted(ends, before + most, side="right")))
                size = (int(ends[stop - 1]) - before) * self.dtype.itemsize
                yield np.frombuffer(source.read_at(size, offset), self.dtype), self.lengths[at:stop]
                at, offset = stop, offset + size


def read(location: Location) -> Pair:
    """The pair of a `.bin`; ConfigError if its `.idx` is none or does not fit."""
    index = location.parent / f"{location.name.removesuffix('.bin')}.idx"
    with reported(index, "a Megatron .bin must have an .idx beside it"):
        content = index.read()
    size = location.size()
    if size is None:
        raise ConfigError(f"an .idx must have a .bin beside it, but there is no file {location}; restore it")
    code = content[len(MAGIC) + 8] if len(content) >= HEAD else 0
    if content[: len(MAGIC)] != MAGIC or content[len(MAGIC) : len(MAGIC) + 8] != VERSION.to_bytes(
        8, "little"
    ):
        raise ConfigError(
            f"an .idx must begin with MMIDIDX and version 1, but {index} does not; write it anew"
        )
    if code not in TYPES:
        raise ConfigError(f"an .idx must name a type of integers, but {index} has code {code}; write it anew")
    sequences = int.from_bytes(content[HEAD - 16 : HEAD - 8], "little")
    documents = int.from_bytes(content[HEAD - 8 : HEAD], "little")
    dtype = np.dtype(TYPES[code])
    if len(content) != HEAD + sequences * 12 + documents * 8 or not documents:
        raise ConfigError(
            f"an .idx must list its sequences and documents, but {index} was cut; write it anew"
        )
    lengths = np.frombuffer(content, "<i4", sequences, HEAD).astype(np.int64)
    bounds = np.frombuffer(content, "<i8", documents, HEAD + sequences * 12)
    if int(lengths.sum()) * dtype.itemsize != size:
        raise ConfigError(
            f"an .idx must fit its .bin, but {index} has {int(lengths.sum()) * dtype.itemsize} bytes of tokens and "
            f"{location.name} {size}; restore both from one copy"
        )
    starts = np.concatenate([[0], np.cumsum(lengths)])
    if (bounds < 0).any() or (bounds > sequences).any() or (np.diff(bounds) < 0).any():
        raise ConfigError(f"an .idx must list documents in order, but {index} does not; write it anew")
    return Pair(location, dtype, np.diff(starts[bounds]))


def of_folder(place: Location) -> list[Pair]:
    """The pairs of a folder, sorted by name, or one pair; ConfigError if there are none."""
    if place.name.endswith((".bin", ".idx")):
        return [read(place.parent / f"{place.name[:-4]}.bin")]
    with reported(place, "shards must be readable"):
        names = place.children()
    bins = [name for name in names if name.endswith(".bin")]
    if not bins:
        raise ConfigError(
            f"a corpus must have Megatron pairs (.bin and .idx), but {place} has none; name another folder, or "
            "make one with `froude data prepare`"
        )
    return [read(place / name) for name in bins]
