"""Arrow IPC, as `datasets` and pyarrow write it: buffers of a column are found by its metadata and read in place."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from froude.corpora.files import File
from froude.corpora.formats import lists
from froude.corpora.formats.flatbuffer import Table
from froude.corpora.formats.shard import Shard, Tokens, unfit

MAGIC = b"ARROW1\0\0"  # of a file, which is a stream with an index of its batches at the end
CONTINUES = b"\xff\xff\xff\xff"
SCHEMA, BATCH = 1, 3  # types of message that matter here (format/Message.fbs)


class Batch(NamedTuple):
    """Where a record batch has its token ids and where its rows start: bytes of the file."""

    values: int
    offsets: int
    first: int
    tokens: int
    rows: int


class Place(NamedTuple):
    """Where a column is in the metadata of a batch: its first node and buffer."""

    node: int
    buffer: int
    kind: pa.DataType


def shard(file: File, column: str, names: Mapping[str, File]) -> Shard:
    """A file or a stream, of which only the metadata and the ends of the rows are read now."""
    return Arrow(file, column)


class Arrow(Shard):
    """One file or stream, uncompressed."""

    def __init__(self, file: File, column: str) -> None:
        self._file = file
        self._batches: list[Batch] = []
        place: Place | None = None
        for kind, header, body, message in self._messages():
            if kind == SCHEMA:
                schema = pa.ipc.read_schema(pa.py_buffer(message))
                place = _place(file.url, schema, lists.column(file.url, schema, column))
            elif kind == BATCH:
                if place is None:
                    raise self._unfit("has a batch before its schema")
                self._batches.append(self._batch(header, body, place))
        if place is None:
            raise self._unfit("has no schema")
        self._ids = np.dtype(place.kind.value_type.to_pandas_dtype()).newbyteorder("<")
        self._wide = pa.types.is_large_list(place.kind)
        super().__init__(
            file.url, [batch.tokens for batch in self._batches], [batch.rows for batch in self._batches]
        )

    def values(self, group: int, first: int, stop: int) -> Tokens:
        return self._file.read(*self._where(group, first, stop)).view(self._ids)

    def expect(self, first: int, n: int) -> None:
        for place in self.groups(first, n):
            self._file.expect(*self._where(*place))

    def offsets(self, group: int) -> npt.NDArray[np.int64]:
        batch = self._batches[group]
        if not batch.rows:
            return np.zeros(1, np.int64)
        found = self._offsets(batch.offsets, 0, batch.rows + 1, wide=self._wide)
        return np.asarray(found - found[0])

    def _where(self, group: int, first: int, stop: int) -> tuple[int, int]:
        batch, width = self._batches[group], self._ids.itemsize
        return batch.values + (batch.first + first) * width, (stop - first) * width

    def _messages(self) -> Iterator[tuple[int, Table, int, bytes]]:
        """Type, header, place of the body, and bytes of each message; a stream ends with a length of 0, or the file."""
        at = len(MAGIC) if self._read(0, len(MAGIC)) == MAGIC else 0
        while at < self._file.size:
            head = self._read(at, 8)
            if head[:4] != CONTINUES:
                raise self._unfit(f"has no message at byte {at}")
            (length,) = struct.unpack("<i", head[4:])
            if length == 0:
                return
            message = self._read(at, 8 + length) if length > 0 else b""
            try:
                table = Table.root(message[8:])
                kind, header, body = table.uint8(1), table.table(2), table.int64(3)
            except (struct.error, IndexError):
                raise self._unfit(f"has a damaged message at byte {at}") from None
            at += 8 + length
            if body < 0 or at + body > self._file.size:
                raise self._unfit(f"ends within a batch of {body} bytes at byte {at}: it was truncated")
            yield kind, header, at, message
            at += body

    def _batch(self, header: Table, body: int, place: Place) -> Batch:
        url = self._file.url
        if header.has(3):
            raise unfit(
                url,
                "an Arrow shard must not be compressed",
                "is",
                "write it without compression, or as Parquet",
            )
        nodes, buffers = header.pairs(1), header.pairs(2)
        rows, nulls = nodes[place.node]
        tokens, missing = nodes[place.node + 1]
        if nulls or missing:
            raise lists.nulls(url, nulls or missing, "rows" if nulls else "tokens")
        offsets, values = body + buffers[place.buffer + 1][0], body + buffers[place.buffer + 3][0]
        wide = pa.types.is_large_list(place.kind)
        first = stop = 0
        if rows:
            first = int(self._offsets(offsets, 0, 1, wide=wide)[0])
            stop = int(self._offsets(offsets, rows, rows + 1, wide=wide)[0])
        if not 0 <= first <= stop <= tokens:
            raise self._unfit(
                f"has rows of tokens {first} to {stop}, of {tokens}, in the batch at byte {body}"
            )
        return Batch(values, offsets, first, stop - first, rows)

    def _offsets(self, start: int, first: int, stop: int, *, wide: bool) -> npt.NDArray[np.int64]:
        width = 8 if wide else 4
        found = self._file.read(start + first * width, (stop - first) * width)
        return found.view("<i8" if wide else "<i4").astype(np.int64)

    def _read(self, offset: int, length: int) -> bytes:
        if offset + length > self._file.size:
            raise self._unfit(f"ends at byte {self._file.size}, within a message: it was truncated")
        return self._file.read(offset, length).tobytes()

    def _unfit(self, found: str) -> Exception:
        return unfit(self._file.url, "a shard must be a whole Arrow file or stream", found, "restore it")


def _place(name: str, schema: pa.Schema, column: str) -> Place:
    """Nodes and buffers of the columns before this one are its place (docs: Columnar Format, Recursion)."""
    node = buffer = 0
    for field in schema:
        if field.name == column:
            return Place(node, buffer, field.type)
        nodes, buffers = _size(name, field.type)
        node, buffer = node + nodes, buffer + buffers
    raise AssertionError(column)


def _size(name: str, kind: pa.DataType) -> tuple[int, int]:
    """Nodes and buffers of a column, with its children's."""
    if isinstance(kind, pa.BaseExtensionType):
        return _size(name, kind.storage_type)
    if kind.has_variadic_buffers:
        raise unfit(
            name,
            "columns before the token ids must be of a plain layout",
            f"has one of {kind}",
            "put them behind it",
        )
    own = 0 if pa.types.is_null(kind) else kind.num_buffers
    below = [_size(name, kind.field(i).type) for i in range(kind.num_fields)]
    if pa.types.is_dictionary(kind):
        own, below = 2, []
    return 1 + sum(nodes for nodes, _ in below), own + sum(buffers for _, buffers in below)
