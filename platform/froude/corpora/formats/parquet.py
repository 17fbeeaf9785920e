"""Parquet with a list of token ids a row: row groups are read when they are needed, and stay while there is room."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from froude.config import ConfigError
from froude.corpora.files import File, Local, rewritten, truncated
from froude.corpora.formats import lists
from froude.corpora.formats.shard import Shard, Tokens, unfit
from froude.store import Location, reported

#: Bytes of decoded row groups that a process keeps; the one read last stays in any case.
CAPACITY = 1 << 29


class Group(NamedTuple):
    """A row group as numpy has it: its tokens, and where its rows start and the last ends."""

    values: Tokens
    offsets: npt.NDArray[np.int64]


class _Cache:
    """The row groups read last, of all shards."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[str, int, str, int], Group] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: tuple[str, int, str, int]) -> Group | None:
        with self._lock:
            if (found := self._found.get(key)) is not None:
                self._found.move_to_end(key)
            return found

    def put(self, key: tuple[str, int, str, int], group: Group) -> None:
        with self._lock:
            if (before := self._found.pop(key, None)) is not None:  # two threads have read the same one
                self._bytes -= _size(before)
            self._found[key] = group
            self._bytes += _size(group)
            while self._bytes > CAPACITY and len(self._found) > 1:
                self._bytes -= _size(self._found.popitem(last=False)[1])


def _size(group: Group) -> int:
    return int(group.values.nbytes + group.offsets.nbytes)


_cache = _Cache()


def shard(file: File, column: str, names: Mapping[str, File]) -> Shard:
    """A file, of which only the end is read now, unless its writer counted no nulls."""
    return Parquet(file, column)


def _leaves(kind: pa.DataType) -> int:
    """How many of Parquet's columns a column of this type is: one for each part that is no list, struct or map."""
    kind = getattr(kind, "storage_type", kind)
    return sum(_leaves(kind.field(i).type) for i in range(kind.num_fields)) or 1


class Parquet(Shard):
    """One file; how many tokens a row group has is what its statistics say, and checked when it is read."""

    def __init__(self, file: File, column: str) -> None:
        self._file = file
        self._version: str | None = None  # of an object on S3, when it was first opened
        opened = self._open()
        schema = opened.schema_arrow
        self._column = lists.column(file.url, schema, column)
        leaf = sum(
            _leaves(field.type) for field in itertools.islice(schema, schema.names.index(self._column))
        )
        metadata = opened.metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        counts = [self._count(opened, i, group.column(leaf)) for i, group in enumerate(groups)]
        super().__init__(file.url, counts, [group.num_rows for group in groups])

    def values(self, group: int, first: int, stop: int) -> Tokens:
        return self._group(group).values[first:stop]

    def offsets(self, group: int) -> npt.NDArray[np.int64]:
        return self._group(group).offsets

    def _open(self) -> pq.ParquetFile:
        with reported(Location(self._file.url), "a shard must be a readable file"):
            try:
                self._check()
                if isinstance(self._file, Local):
                    return pq.ParquetFile(self._file.url, memory_map=True)
                filesystem, path = Location(self._file.url).arrow()
                return pq.ParquetFile(path, filesystem=filesystem, pre_buffer=True)
            except pa.ArrowInvalid as error:
                raise unfit(
                    self._file.url,
                    "a shard must be whole Parquet",
                    f"can't be read: {_first(error)}",
                    "restore it",
                ) from None

    def _check(self) -> None:
        """ConfigError if the file is no longer what was listed: pyarrow opens whatever has its name now."""
        if isinstance(self._file, Local):
            self._file.read(0, 0)
            return
        with Location(self._file.url).reader() as now:
            if now.size() != self._file.size:
                raise truncated(self._file, 0, self._file.size)
            self._version = self._version or now.version()
            if now.version() != self._version:
                raise rewritten(self._file)

    def _count(self, opened: pq.ParquetFile, group: int, chunk: Any) -> int:
        """Tokens of a row group: entries of the column less those that stand for an empty list or a null."""
        statistics = chunk.statistics
        if statistics is not None and statistics.has_null_count:
            return int(chunk.num_values - statistics.null_count)
        return len(self._decoded(opened, group).values)

    def _group(self, group: int) -> Group:
        key = (self._file.url, self._file.stamp, self._column, group)
        found = _cache.get(key)
        if found is None:
            found = self._decoded(self._open(), group)
            expected = self._ends[group + 1] - self._ends[group]
            if len(found.values) != expected:
                raise unfit(
                    self._file.url,
                    f"row group {group} must have the {expected} tokens that its statistics count",
                    f"has {len(found.values)}",
                    "write the file again, e.g. with pyarrow",
                )
            _cache.put(key, found)
        return found

    def _decoded(self, opened: pq.ParquetFile, group: int) -> Group:
        try:
            rows = opened.read_row_group(group, columns=[self._column])[self._column].combine_chunks()
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and not isinstance(self._file, Local):
                raise  # the store, which may answer the next time
            raise ConfigError(
                f"a shard must be whole, but row group {group} of {self._file.url} can't be read: {_first(error)}; "
                "restore it"
            ) from None
        self._check()  # what was written again while it was read is neither the one nor the other
        chunks = rows.chunks if isinstance(rows, pa.ChunkedArray) else [rows]
        found = [lists.flat(self._file.url, chunk) for chunk in chunks] or [
            (np.zeros(0, np.int32), np.zeros(1, np.int64))
        ]
        values = [part[0] for part in found]
        lengths = np.concatenate([np.diff(part[1]) for part in found])
        flat = values[0] if len(values) == 1 else np.concatenate(values)
        return Group(flat, np.append(np.zeros(1, np.int64), np.cumsum(lengths)).astype(np.int64))


def _first(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
