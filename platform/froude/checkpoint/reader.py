"""Reading checkpoints in Parquet through torch.distributed.checkpoint (DCP): range reads, each block verified."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from froude import s3
from froude.checkpoint.manifest import Block, Manifest
from froude.checkpoint.parts import Corrupt, unreadable_is_corrupt
from froude.runlog import Part
from froude.store import Location

READ_THREADS = 4
Bytes = NDArray[np.uint8]


def read_into(file: Any, offset: int, data: Bytes) -> int:
    """Fill `data` from the file; bytes read, fewer at its end. A local file needs no buffer of pyarrow's between."""
    done = 0
    with unreadable_is_corrupt(Location.parse(file.name)):
        if isinstance(file, s3.Reader):
            fetched = np.frombuffer(file.read_at(data.size, offset), np.uint8)
            data[: fetched.size] = fetched
            return int(fetched.size)
        while done < data.size and (count := os.preadv(file.fileno(), [data[done:].data], offset + done)):
            done += count
    return done


def open_part(run: Location, part: Part) -> Any:
    """A data part, open for range reads; Corrupt if it is missing or has another size than was committed."""
    place = run / part.path
    with unreadable_is_corrupt(place):
        if place.is_local:
            file: Any = open(place.path, "rb", buffering=0)  # noqa: SIM115 - the caller closes it
            size = os.fstat(file.fileno()).st_size
        else:
            file = place.reader()
            size = file.size()
    if size != part.size:
        file.close()
        raise Corrupt(f"{place} has {size} bytes, not the {part.size} committed")
    return file


def read_block(file: Any, block: Block, dtype: torch.dtype, into: torch.Tensor | None = None) -> torch.Tensor:
    """A block's elements in its shape; Corrupt unless its bytes have the hash in the manifest.

    They are read into `into`, a contiguous tensor of that shape, if there is one, before their hash is known.
    """
    data = np.empty(block.nbytes, np.uint8) if into is None else into.reshape(-1).view(torch.uint8).numpy()
    if (
        read_into(file, block.payload_off, data) != block.nbytes
        or xxhash.xxh3_64_hexdigest(data.data) != block.xxh3
    ):
        raise Corrupt(
            f"{file.name}: the bytes of `{block.fqn}` at {list(block.offsets)} are not those committed"
        )
    return torch.from_numpy(data).view(dtype).reshape(block.sizes)


class ParquetReader(StorageReader):
    """DCP's reader of a checkpoint's data parts; the load fails if a block has not its hash."""

    def __init__(self, run: Location, parts: Sequence[Part], manifest: Manifest) -> None:
        self._run, self._manifest = run, manifest
        self._parts = {part.path.rpartition("/")[2]: part for part in parts if part.kind == "data"}
        self._blocks = {(block.fqn, block.offsets): block for block in manifest.blocks}
        manifest.check_within({name: part.size for name, part in self._parts.items()})

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing is kept between loads."""

    def read_metadata(self) -> Metadata:
        chunks: dict[str, list[ChunkStorageMetadata]] = defaultdict(list)
        for block in self._manifest.blocks:
            chunks[block.fqn].append(ChunkStorageMetadata(torch.Size(block.offsets), torch.Size(block.sizes)))
        return Metadata(
            {
                fqn: TensorStorageMetadata(TensorProperties(dtype), size, chunks[fqn])
                for fqn, (dtype, size) in self._manifest.tensors.items()
            }
        )

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Nothing to do: the manifest says it all."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        wanted: dict[Block, list[ReadItem]] = defaultdict(list)
        for item in plan.items:
            offsets = tuple(item.storage_index.offset or ())
            wanted[self._blocks[item.storage_index.fqn, offsets]].append(item)
        with contextlib.ExitStack() as stack:
            files = {name: stack.enter_context(self._open(name)) for name in {block.file for block in wanted}}
            pool = stack.enter_context(ThreadPoolExecutor(READ_THREADS))
            loads = [pool.submit(self._load, files[b.file], b, items, planner) for b, items in wanted.items()]
            for load in loads:
                load.result()
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _open(self, name: str) -> Any:
        part = self._parts.get(name)
        if part is None:
            raise Corrupt(f"{name} of {self._run} is missing: no record names it")
        return open_part(self._run, part)

    def _load(self, file: Any, block: Block, items: list[ReadItem], planner: LoadPlanner) -> None:
        dtype, _ = self._manifest.tensors[block.fqn]
        targets = [planner.resolve_tensor(item).detach() for item in items]
        for target in targets:
            if target.dtype != dtype:
                raise ValueError(f"`{block.fqn}` must be {dtype} as in the checkpoint, but is {target.dtype}")
        whole = len(items) == 1 and targets[0].shape == block.sizes
        if whole and targets[0].is_contiguous() and targets[0].device.type == "cpu":
            read_block(file, block, dtype, into=targets[0])  # a quarter less CPU than by a copy
        else:
            source = read_block(file, block, dtype)
            for item, target in zip(items, targets, strict=True):
                window = zip(item.storage_offsets, item.lengths, strict=True)
                target.copy_(source[tuple(slice(o, o + n) for o, n in window)])
        for item, target in zip(items, targets, strict=True):
            planner.commit_tensor(item, target)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True
