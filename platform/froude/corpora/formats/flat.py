"""Files of nothing but token ids: nanoGPT's `.bin`, and the token part of other formats."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from froude.corpora.files import File
from froude.corpora.formats.shard import Shard, Tokens, unfit

#: Ids of which the type is guessed, and as few of them as say nothing.
PROBED, LEAST = 2048, 64


class Flat(Shard):
    """Token ids of one type, from a byte of a file on; where documents start is asked for when it is needed, once."""

    def __init__(
        self,
        file: File,
        dtype: npt.DTypeLike,
        *,
        header: int = 0,
        tokens: int = -1,
        documented: bool = False,
    ) -> None:
        self._file, self._dtype, self._header = file, np.dtype(dtype).newbyteorder("<"), header
        self._width = self._dtype.itemsize
        count = (file.size - header) // self._width if tokens < 0 else tokens
        super().__init__(file.url, [count], [0] if documented else None)
        self._starts: npt.NDArray[np.int64] | None = None

    @property
    def documents(self) -> int | None:
        return None if self._rows is None else len(self.offsets(0)) - 1

    def values(self, group: int, first: int, stop: int) -> Tokens:
        width = self._width
        return self._file.read(self._header + first * width, (stop - first) * width).view(self._dtype)

    def expect(self, first: int, n: int) -> None:
        self._file.expect(self._header + first * self._width, n * self._width)

    def offsets(self, group: int) -> npt.NDArray[np.int64]:
        if self._starts is None:
            self._starts = self.boundaries()
        return self._starts

    def boundaries(self) -> npt.NDArray[np.int64]:
        """Where each document starts, and where the last ends, from the file that says so; without one it is one."""
        return np.array([0, self.tokens])


def headerless(file: File, dtype: str, names: Mapping[str, File]) -> Shard:
    """nanoGPT's: ids of the named type and nothing else; it says neither what they are nor where documents end."""
    check_width(file, dtype, "restore the .idx if it is Megatron's, else ")
    return Flat(file, dtype)


def _wider(ids: Tokens) -> int:
    """The bytes of the ids of which these are parts; 0 where they may be whole.

    The upper half of an id of 4 bytes is less than 8 in any vocabulary below 2^19, that of one of 8 bytes is 0.
    """
    upper, lower, width = ids[1::2], ids[::2], ids.itemsize
    if len(ids) < LEAST or not upper.max() < 8 <= np.quantile(lower, 0.75):
        return 0
    return 8 if width == 4 or not ids[2::4].any() else 4


def check_width(file: File, dtype: str, first: str = "") -> None:
    """ConfigError unless the file is a whole number of such ids, as far as it shows; `first` begins a remedy."""
    width = np.dtype(dtype).itemsize
    if file.size % width:
        raise unfit(
            file.url,
            f"a shard of {dtype} must have a multiple of {width} bytes",
            f"has {file.size}: it was truncated, or has another type",
            "restore it, or set `data.options.dtype`",
        )
    count = min(file.size // width, PROBED)
    if found := _wider(file.read(0, count * width).view(np.dtype(dtype).newbyteorder("<"))):
        shorter = (
            "write them as uint32 (`ids.astype('uint32').tofile(name)`), and set `data.options.dtype` to that"
        )
        raise unfit(
            file.url,
            f"a shard of {dtype} must have ids of {width} bytes",
            f"has next to nothing in every second of its first {count}, as ids of {found} bytes do",
            first + ("set `data.options.dtype` to uint32" if found == 4 else shorter),
        )
