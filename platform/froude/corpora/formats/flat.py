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
    check_width(file, dtype)
    shard = Flat(file, dtype)
    if dtype == "uint16" and _is_wider(shard.values(0, 0, min(shard.tokens, PROBED))):
        raise unfit(
            file.url,
            "a shard of uint16 must have ids of 2 bytes",
            f"has next to nothing in every second of its first {min(shard.tokens, PROBED)}, as ids of 4 bytes do",
            "restore the .idx if it is Megatron's, else set `data.options.dtype` to uint32",
        )
    return shard


def _is_wider(ids: Tokens) -> bool:
    """Whether these are the halves of ids of 4 bytes: of any vocabulary below 2^19 the upper ones are less than 8."""
    upper, lower = ids[1::2], ids[::2]
    return len(ids) >= LEAST and bool(upper.max() < 8 <= lower.max())


def check_width(file: File, dtype: str) -> None:
    """ConfigError unless the file is a whole number of such ids."""
    width = np.dtype(dtype).itemsize
    if file.size % width:
        raise unfit(
            file.url,
            f"a shard of {dtype} must have a multiple of {width} bytes",
            f"has {file.size}: it was truncated, or has another type",
            "restore it, or set `data.options.dtype`",
        )
