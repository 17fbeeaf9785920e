"""dolma's and OLMo's shards: token ids in an `.npy` without numpy's header, and in a `.csv.gz` where documents lie."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from froude.corpora.files import File
from froude.corpora.formats.flat import Flat, check_width
from froude.corpora.formats.shard import Shard, unfit

#: A `.csv.gz` of up to so many bytes is read when the shard is opened, else when documents are asked for.
CHECKED = 1 << 22
NUMPY = b"\x93NUMPY"


def shard(file: File, dtype: str, names: Mapping[str, File]) -> Shard:
    """A shard, with documents if its `.csv.gz` is there."""
    if file.size >= len(NUMPY) and file.read(0, len(NUMPY)).tobytes() == NUMPY:
        raise unfit(
            file.url,
            "an .npy of dolma must have no header",
            "has numpy's",
            "write it with dolma, or by numpy's `tofile` as .bin",
        )
    check_width(file, dtype)
    beside = names.get(file.url.removesuffix(".npy") + ".csv.gz")
    return Flat(file, dtype) if beside is None else Dolma(file, dtype, beside)


class Dolma(Flat):
    """A shard whose `.csv.gz` has rows (start, end, …) in tokens, which must follow one another to its end."""

    def __init__(self, file: File, dtype: str, rows: File) -> None:
        super().__init__(file, dtype, documented=True)
        self._csv = rows
        if rows.size <= CHECKED:
            self.offsets(0)

    def boundaries(self) -> npt.NDArray[np.int64]:
        try:
            text = gzip.decompress(self._csv.read(0, self._csv.size).tobytes())
            rows = [line.split(b",", 2) for line in text.splitlines() if line[:1].isdigit()]
            found = np.array([[int(row[0]), int(row[1])] for row in rows], np.int64).reshape(-1, 2)
        except (OSError, EOFError, zlib.error, ValueError, IndexError, OverflowError) as error:
            raise unfit(
                self._csv.url,
                "a .csv.gz of documents must have rows of start and end",
                f"can't be read: {error}",
                "restore it, or move it away: without it documents are not known",
            ) from None
        ends = np.append(np.zeros(1, np.int64), found[:, 1])
        if (found[:, 0] != ends[:-1]).any() or (np.diff(ends) < 0).any():
            i = int(((found[:, 0] != ends[:-1]) | (np.diff(ends) < 0)).argmax())
            raise unfit(
                self._csv.url,
                "documents must follow one another",
                f"has {found[i, 0]} to {found[i, 1]} in row {i + 1}, after {ends[i]}",
                "restore it, or move it away: without it documents are not known",
            )
        if ends[-1] != self.tokens:
            raise unfit(
                self._csv.url,
                f"documents must end where the shard does, at token {self.tokens} of {self._dtype.name}",
                f"end at {ends[-1]}",
                "set `data.options.dtype` to the type that they were written with, or restore the shard",
            )
        return ends
