"""Which documents train and which validate, which are duplicates, and the shards that they are written to."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from froude.corpora import record
from froude.corpora.megatron_writer import hashed_output, index
from froude.corpora.prepare.pieces import Documents, Piece, tokens
from froude.store import Location, reported

SPLITS = ("train", "validation")
FILE = re.compile(rf"({'|'.join(SPLITS)})-\d{{5,}}\.(bin|idx)")  # of a shard, as `Plan` names it
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Shard:
    """A pair of files to write: of each piece, which of its documents (by number), and where each begins and ends."""

    name: str
    split: str
    key: str
    folder: str
    dtype: str
    pieces: tuple[tuple[Piece, npt.NDArray[np.int64], npt.NDArray[np.int64]], ...]

    @property
    def marker(self) -> Location:
        """A file that is there once the shard is: its key, and what data.json says of it."""
        return Location(self.folder) / record.PIECES / f"{self.name}.json"


def held_out(hashes: npt.NDArray[np.uint64], share: float) -> Mask:
    """Which documents are validation: those of the lowest hashes; where none is low enough, the lowest of several."""
    if not share:
        return np.zeros(len(hashes), dtype=bool)
    mask = hashes < np.uint64(share * 2**64)
    if not mask.any() and len(hashes) and (hashes != hashes[0]).any():
        mask = hashes == hashes.min()
    return mask


def repeated(hashes: npt.NDArray[np.uint64], nbytes: npt.NDArray[np.int64]) -> Mask:
    """Which documents were there before, by hash and size."""
    order = np.lexsort((nbytes, hashes))  # stable: of equal ones the first comes first
    same = (hashes[order][1:] == hashes[order][:-1]) & (nbytes[order][1:] == nbytes[order][:-1])
    found = np.zeros(len(hashes), dtype=bool)
    found[order[1:]] = same
    return found


@dataclass(frozen=True)
class Plan:
    """All documents of a corpus in order, and which of them train, validate, are repeated or dropped."""

    pieces: Sequence[Piece]
    hashes: npt.NDArray[np.uint64]
    nbytes: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]  # of each piece, its first document's number
    validation: Mask
    repeated: Mask
    kept: Mask
    empty: int

    @classmethod
    def of(cls, pieces: Sequence[Piece], tables: Sequence[Documents], share: float, *, drop: bool) -> Plan:
        hashes, nbytes, lengths = (
            np.concatenate([getattr(each, name) for each in tables])
            for name in ("hashes", "nbytes", "lengths")
        )
        twice = repeated(hashes, nbytes)
        first = np.concatenate([[0], np.cumsum([len(each.lengths) for each in tables])])
        kept = ~twice if drop else np.ones(len(hashes), dtype=bool)
        empty = sum(each.empty for each in tables)
        return cls(pieces, hashes, nbytes, lengths, first, held_out(hashes, share), twice, kept, empty)

    def of_split(self, split: str) -> npt.NDArray[np.int64]:
        """Numbers of the documents that a split has, in order."""
        return np.flatnonzero(self.kept & (self.validation == (split == "validation")))

    def counts(self, split: str) -> dict[str, int]:
        """What data.json says of a split; duplicates are documents that were there before, kept or dropped."""
        inside, side = self.of_split(split), self.validation == (split == "validation")
        return {
            "documents": len(inside),
            "tokens": int(self.lengths[inside].sum()),
            "bytes": int(self.nbytes[inside].sum()),
            "duplicates": int((self.repeated & side).sum()),
        }

    def shards(self, folder: Location, dtype: np.dtype[Any], most: int) -> Iterator[Shard]:
        """Shards of at most `most` tokens each, unless one document has more."""
        for split in SPLITS:
            inside = self.of_split(split)
            ends = np.cumsum(self.lengths[inside])
            at = number = 0
            while at < len(inside):
                before = ends[at - 1] if at else 0
                stop = max(at + 1, int(np.searchsorted(ends, before + most, side="right")))
                yield self._shard(f"{split}-{number:05d}", split, inside[at:stop], folder, dtype)
                at, number = stop, number + 1

    def _shard(
        self, name: str, split: str, chosen: npt.NDArray[np.int64], folder: Location, dtype: np.dtype[Any]
    ) -> Shard:
        numbers = np.searchsorted(self.first, chosen, side="right") - 1
        pieces = []
        for i in np.unique(numbers):
            own = chosen[numbers == i] - self.first[i]
            ends = np.cumsum(self.lengths[self.first[i] : self.first[i + 1]])
            pieces.append(
                (self.pieces[i], (ends - self.lengths[self.first[i] : self.first[i + 1]])[own], ends[own])
            )
        digest = hashlib.sha256(json.dumps([dtype.str, [piece.key for piece, *_ in pieces]]).encode())
        for _, begin, end in pieces:
            digest.update(begin.tobytes() + end.tobytes())
        return Shard(name, split, digest.hexdigest()[:16], folder.url, dtype.str, tuple(pieces))


def write(shard: Shard) -> list[dict[str, Any]]:
    """Write a shard, unless it is there already; what data.json says of its two files."""
    folder, dtype = Location(shard.folder), np.dtype(shard.dtype)
    if shard.marker.exists():
        kept: dict[str, Any] = json.loads(shard.marker.read())
        done: list[dict[str, Any]] = kept["rows"]
        if kept["key"] == shard.key and all(_there(folder, row) for row in done):
            return done
        shard.marker.delete()  # of a call with other options, which wrote over the files or deleted them
    with hashed_output(folder / f"{shard.name}.bin") as sink:
        for piece, begins, ends in shard.pieces:
            source = tokens(piece, dtype)
            for begin, end in _runs(begins, ends):
                sink.write(source[begin:end].tobytes())
        data = sink.written()
    lengths = np.concatenate([end - begin for _, begin, end in shard.pieces])
    with hashed_output(folder / f"{shard.name}.idx") as sink:
        sink.write(index(lengths, dtype))
        table = sink.written()
    about = {"split": shard.split, "documents": len(lengths), "tokens": int(lengths.sum())}
    rows = [data.to_dict() | about, table.to_dict() | {"split": shard.split}]
    with reported(shard.marker, "shards must be written whole"):
        shard.marker.replace(json.dumps({"key": shard.key, "rows": rows}).encode())
    return rows


def _there(folder: Location, row: Mapping[str, Any]) -> bool:
    place = folder / row["name"]
    return place.exists() and bool(place.size() == row["size"])


def _runs(begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Neighbouring stretches as one."""
    breaks = np.flatnonzero(begins[1:] != ends[:-1])
    firsts, lasts = np.concatenate([[0], breaks + 1]), np.concatenate([breaks, [len(begins) - 1]])
    for first, last in zip(firsts, lasts, strict=True):
        yield int(begins[first]), int(ends[last])
