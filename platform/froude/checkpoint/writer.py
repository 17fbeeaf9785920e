"""Parquet as the container of torch.distributed.checkpoint (DCP): blocks keyed by tensor and offset, never by rank.

A data part has a row a block. The payload is stored PLAIN in one uncompressed page a row group, so its place in the
file is known and a reader fetches it with one plain range read; the file stays ordinary Parquet.
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import xxhash
from numpy.typing import NDArray
from torch.distributed.checkpoint.metadata import (
    Metadata,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from froude.checkpoint.manifest import BLOCKS, PAYLOADS, Block, Manifest, dtype_name
from froude.checkpoint.parts import HashingSink, create_part
from froude.checkpoint.reader import ParquetReader
from froude.runlog import Part
from froude.store import Location

__all__ = ["ParquetReader", "ParquetWriter", "check_tensors_only"]

# A larger block is split. From 32 MiB on each of the writer's copies is in fresh memory, whose pages cost more than the
# copies: the Parquet writer takes four times as long as with 8 MiB. 4 MiB gain nothing.
BLOCK_BYTES = 8 << 20
ALONE_BYTES = 4 << 20  # from here on a block has a row group, and so a page, of its own
FILE_BYTES = 64 << 30  # an object on S3 has at most 10,000 parts, and pyarrow's have 10 MiB
GROUP_ROWS = 1024  # far below pyarrow's limit of rows in one page
Bytes = NDArray[np.uint8]
MANIFEST = "manifest.parquet"
_WRITE_OPTIONS = {
    "compression": "none",
    "use_dictionary": False,
    "write_statistics": False,
    "store_schema": False,
    "data_page_size": 1 << 30,
    "write_batch_size": GROUP_ROWS,
}


def check_tensors_only(state: dict[str, Any], prefix: str = "") -> None:
    """TypeError naming the first leaf that is no tensor: DCP would pickle it."""
    for key, value in state.items():
        if isinstance(value, dict):
            check_tensors_only(value, f"{prefix}{key}.")
        elif not isinstance(value, torch.Tensor):
            raise TypeError(
                f"a checkpoint's state must hold tensors only, but `{prefix}{key}` is a {type(value).__name__}; "
                "pass it in `scalars`"
            )


def _split(offsets: tuple[int, ...], data: torch.Tensor) -> Iterator[tuple[tuple[int, ...], torch.Tensor]]:
    """Contiguous blocks of at most BLOCK_BYTES, cut along the first dimension longer than 1."""
    if data.numel() == 0:
        return
    if data.nbytes <= BLOCK_BYTES or data.numel() == 1:
        yield offsets, data
        return
    axis = next(i for i, size in enumerate(data.shape) if size > 1)
    rows = max(1, BLOCK_BYTES // (data.nbytes // data.shape[axis]))
    for start in range(0, data.shape[axis], rows):
        place = (*offsets[:axis], offsets[axis] + start, *offsets[axis + 1 :])
        yield from _split(place, data.narrow(axis, start, min(rows, data.shape[axis] - start)))


def _bytes_of(data: torch.Tensor) -> Bytes:
    return data.contiguous().reshape(-1).view(torch.uint8).numpy()


class ParquetWriter(StorageWriter):
    """DCP's writer into `run`/`folder`: a rank's parts and, by the coordinator, the manifest; synchronous.

    A folder is written once. After the save the coordinator's `parts` names every file, the manifest last.
    """

    def __init__(self, run: Location, folder: str, rank: int = 0) -> None:
        self._run, self._folder, self._rank = run, folder, rank
        self.parts: list[Part] = []

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self.parts = []

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: object stores have no folders, and Location makes those of a disk."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO:
                raise TypeError(
                    f"a checkpoint's state must hold tensors only, but `{item.index.fqn}` is not one"
                )
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        groups, blocks = _grouped(plan.items, planner), defaultdict[int, list[Block]](list)
        self.parts = []
        while (first := next(groups, None)) is not None:
            for item, block in self._write_part(itertools.chain([first], groups)):
                blocks[item].append(block)
        future: Future[list[WriteResult]] = Future()
        future.set_result(
            [
                WriteResult(item.index, sum(block.nbytes for block in blocks[i]), (blocks[i], self.parts))
                for i, item in enumerate(plan.items)
            ]
        )
        return future

    def _write_part(self, groups: Iterator[_Group]) -> list[tuple[int, Block]]:
        """Write groups into the next part, until it is full: (number of the write item, block) of each block in it."""
        more = f"-{len(self.parts):03d}" if self.parts else ""
        path = f"{self._folder}/part-{self._rank:05d}{more}.parquet"
        target, written, collected = self._run / path, list[_Group](), list[pq.FileMetaData]()
        with target.output() as raw, HashingSink(raw) as sink:
            with pq.ParquetWriter(sink, PAYLOADS, metadata_collector=collected, **_WRITE_OPTIONS) as writer:
                for group in groups:
                    writer.write_table(group.table(), row_group_size=GROUP_ROWS)
                    group.payloads.clear()
                    written.append(group)
                    if sink.size >= FILE_BYTES:
                        break
        if target.size() != sink.size:
            raise OSError(f"{target} has {target.size()} bytes after writing {sink.size}")
        self.parts.append(Part("data", path, sink.size, sink.hexdigest()))
        return [
            found
            for number, group in enumerate(written)
            for found in group.blocks(target.name, number, collected[0])
        ]

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        found = [result.storage_data for of_rank in results for result in of_rank]
        tensors = {
            fqn: (entry.properties.dtype, entry.size)
            for fqn, entry in metadata.state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }
        manifest = Manifest(tensors, tuple(block for blocks, _ in found for block in blocks))
        written = {part.path: part for _, parts in found for part in parts}
        self.parts = [written[name] for name in sorted(written)]
        self.parts.append(
            create_part(self._run, "manifest", f"{self._folder}/{MANIFEST}", manifest.to_bytes())
        )

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


@dataclass
class _Group:
    """Blocks of one row group: (number of the write item, row without payload), and their bytes."""

    rows: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    payloads: list[Bytes] = field(default_factory=list)
    nbytes: int = 0

    def add(self, item: int, row: dict[str, Any], payload: Bytes) -> None:
        self.rows.append((item, row))
        self.payloads.append(payload)
        self.nbytes += payload.size

    def table(self) -> pa.Table:
        ends = np.cumsum([0, *(payload.size for payload in self.payloads)], dtype=np.int64)
        joined = self.payloads[0] if len(self.payloads) == 1 else np.concatenate(self.payloads)
        payload = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(self.rows), [None, pa.py_buffer(ends), pa.py_buffer(joined)]
        )
        columns = [pa.array([row[f.name] for _, row in self.rows], f.type) for f in BLOCKS]
        return pa.Table.from_arrays([*columns, payload], schema=PAYLOADS)

    def blocks(self, file: str, number: int, metadata: pq.FileMetaData) -> Iterator[tuple[int, Block]]:
        column = metadata.row_group(number).column(len(BLOCKS))
        # A page of PLAIN byte arrays is a header, then for each value four bytes of length and the value.
        at = column.data_page_offset + column.total_compressed_size - self.nbytes - 4 * len(self.rows)
        for i, (item, row) in enumerate(self.rows):
            at += 4
            yield item, Block(**row, file=file, row_group=number, row=i, payload_off=at)
            at += row["nbytes"]


def _grouped(items: Sequence[WriteItem], planner: SavePlanner) -> Iterator[_Group]:
    small = _Group()
    for number, item in enumerate(items):
        assert item.tensor_data is not None
        tensor = planner.resolve_data(item)
        assert isinstance(tensor, torch.Tensor)
        for offsets, block in _split(tuple(item.tensor_data.chunk.offsets), tensor.detach().cpu()):
            payload = _bytes_of(block)
            row = {
                "fqn": item.index.fqn,
                "dtype": dtype_name(block.dtype),
                "offsets": offsets,
                "sizes": tuple(block.shape),
                "nbytes": payload.size,
                "xxh3": xxhash.xxh3_64_hexdigest(payload.data),
            }
            if payload.size >= ALONE_BYTES:
                alone = _Group()
                alone.add(number, row, payload)
                yield alone
                continue
            small.add(number, row, payload)
            if small.nbytes >= ALONE_BYTES or len(small.rows) == GROUP_ROWS:
                yield small
                small = _Group()
    if small.rows:
        yield small
