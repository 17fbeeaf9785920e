"""As much of FlatBuffers as Arrow's metadata needs: tables, numbers, vectors of pairs."""

from __future__ import annotations

import struct
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A table in a buffer; fields by their number in the schema; struct.error or IndexError where it is damaged."""

    data: bytes
    at: int

    @classmethod
    def root(cls, data: bytes) -> Table:
        """The table that a buffer holds."""
        return cls(data, struct.unpack_from("<I", data)[0])

    def has(self, field: int) -> bool:
        """Whether a field is set."""
        return self._place(field) is not None

    def uint8(self, field: int) -> int:
        """A byte; 0 if it is not set."""
        place = self._place(field)
        return self.data[place] if place is not None else 0

    def int64(self, field: int) -> int:
        """A long; 0 if it is not set."""
        place = self._place(field)
        return int(struct.unpack_from("<q", self.data, place)[0]) if place is not None else 0

    def table(self, field: int) -> Table:
        """A table, or a union's."""
        return Table(self.data, self._target(field))

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """A vector of structs of two longs."""
        start = self._target(field)
        count = struct.unpack_from("<I", self.data, start)[0]
        return list(struct.iter_unpack("<qq", self.data[start + 4 : start + 4 + 16 * count]))

    def _place(self, field: int) -> int | None:
        vtable = self.at - struct.unpack_from("<i", self.data, self.at)[0]
        size = struct.unpack_from("<H", self.data, vtable)[0]
        if 4 + 2 * field >= size:
            return None
        offset = struct.unpack_from("<H", self.data, vtable + 4 + 2 * field)[0]
        return self.at + offset if offset else None

    def _target(self, field: int) -> int:
        place = self._place(field)
        if place is None:
            raise IndexError(f"field {field} is not set")
        return place + int(struct.unpack_from("<I", self.data, place)[0])
