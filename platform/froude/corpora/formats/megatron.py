"""Megatron's pairs: token ids in `.bin`; in `.idx` their type, each sequence's length and place, and the documents."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from froude.corpora.files import File
from froude.corpora.formats.flat import Flat
from froude.corpora.formats.shard import Shard, unfit

MAGIC = b"MMIDIDX\0\0"
#: What its preprocessing script ends names with (tools/preprocess_data.py): without an .idx the .bin is half of a pair.
NAMES = ("_document.bin", "_sentence.bin")
#: Version, code of the type, sequences, marks of documents.
HEAD = "<QBQQ"
HEADER = len(MAGIC) + struct.calcsize(HEAD)
#: Codes of whole numbers (megatron/core/datasets/indexed_dataset.py, DType); 6 and 7 are floats.
TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
#: Up to so many sequences of a corpus each one's place is checked; of more, so many in PIECES pieces of each shard.
CHECKED, PIECES = 1 << 22, 64


def shard(file: File, dtype: str, names: Mapping[str, File]) -> Shard:
    """A pair by its `.bin`; all that the `.idx` says of it must be so."""
    return Megatron(file, names[index_name(file.url)], most=max(PIECES, CHECKED // max(1, len(names) // 2)))


def index_name(url: str) -> str:
    """The `.idx` of a `.bin`."""
    return url.removesuffix(".bin") + ".idx"


class Megatron(Flat):
    """A pair whose sequences lie one after the other in the `.bin`, as Megatron's writer puts them."""

    def __init__(self, file: File, index: File, most: int = CHECKED) -> None:
        self._index = index
        head = index.read(0, min(HEADER, index.size)).tobytes()
        if len(head) < HEADER or not head.startswith(MAGIC):
            raise self._unfit("must begin with MMIDIDX and its header", "does not", "restore it")
        version, code, self._sequences, entries = struct.unpack(HEAD, head[len(MAGIC) :])
        if version != 1:
            raise self._unfit(
                "must have version 1", f"has {version}", "write it with Megatron's IndexedDataset"
            )
        if code not in TYPES:
            raise self._unfit(
                "must have ids of whole numbers (dtype 1 to 5, or 8)", f"has {code}", "restore it"
            )
        self._entries = entries
        wanted = HEADER + 12 * self._sequences + 8 * entries
        if index.size != wanted:
            raise self._unfit(
                f"of {self._sequences} sequences and {entries} document marks must have {wanted} bytes",
                f"has {index.size}",
                "restore it: it was truncated",
            )
        kind = np.dtype(TYPES[code])
        super().__init__(file, kind, documented=True)
        if file.size % kind.itemsize:
            raise self._unfit(
                f"must fit its .bin: a multiple of {kind.itemsize} bytes ({kind.name})",
                f"stands beside one of {file.size}",
                "restore both",
            )
        self._check(most)

    def boundaries(self) -> npt.NDArray[np.int64]:
        places = np.append(self._pointers(0, self._sequences) // self._width, self.tokens)
        return np.asarray(places[self._documents()])

    def _array(self, start: int, kind: str, first: int, stop: int) -> npt.NDArray[np.int64]:
        width = np.dtype(kind).itemsize
        found = self._index.read(start + first * width, (stop - first) * width).view(kind)
        return found.astype(np.int64)

    def _lengths(self, first: int, stop: int) -> npt.NDArray[np.int64]:
        return self._array(HEADER, "<i4", first, stop)

    def _pointers(self, first: int, stop: int) -> npt.NDArray[np.int64]:
        return self._array(HEADER + 4 * self._sequences, "<i8", first, stop)

    def _documents(self) -> npt.NDArray[np.int64]:
        return self._array(HEADER + 12 * self._sequences, "<i8", 0, self._entries)

    def _check(self, most: int) -> None:
        count = self._sequences
        pieces = 1 if count <= most else PIECES
        each = min(count, most // pieces)
        for i in range(pieces):
            first = i * (count - each) // max(1, pieces - 1)
            self._check_sequences(first, first + each)
        if self._entries > most:
            return
        marks = self._documents()
        if len(marks) < 1 or marks[0] != 0 or marks[-1] != count or (np.diff(marks) < 0).any():
            raise self._unfit(
                f"must have documents from sequence 0 to {count} in order",
                f"has {len(marks)} marks from {marks[0] if len(marks) else '-'} to {marks[-1] if len(marks) else '-'}",
                "write it with Megatron's IndexedDataset",
            )

    def _check_sequences(self, first: int, stop: int) -> None:
        """Each of sequences first … stop - 1 ends where the next begins, the last where the file ends."""
        lengths, places = self._lengths(first, stop), self._pointers(first, stop)
        ends = places + lengths * self._width
        nexts = np.append(places[1:], self._file.size if stop == self._sequences else ends[-1:])
        odd = (lengths < 0) | (ends != nexts)
        if first == 0 and (places[:1] != 0).any():
            odd[0] = True
        if self._sequences == 0:
            if self._file.size:
                raise self._unfit(
                    "without sequences must have an empty .bin", f"has {self._file.size} bytes", "restore it"
                )
        elif odd.any():
            i = int(odd.argmax())
            raise self._unfit(
                f"must fit its .bin: sequences one after the other, up to its {self._file.size} bytes",
                f"has sequence {first + i} at byte {places[i]} with {lengths[i]} tokens, and the next at {nexts[i]}",
                "restore both, or write them again with Megatron's IndexedDataset",
            )

    def _unfit(self, rule: str, found: str, remedy: str) -> Exception:
        return unfit(self._index.url, f"an .idx {rule}", found, remedy)
