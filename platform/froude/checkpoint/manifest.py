"""The manifest of a checkpoint: which bytes of which file hold which block of which tensor."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from froude.checkpoint.parts import Corrupt
from froude.config import ConfigError
from froude.runlog import Part
from froude.schemas import MOST_VALUES, table_of

SCHEMA_VERSION = 1
MOST_BYTES = 2**60  # of a tensor
WHOLE_NUMBERS = {"bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
_KEY = b"froude"
_LIST = pa.list_(pa.field("item", pa.int64(), nullable=False))


def _required(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])


#: Columns of a data part; the block's bytes, little endian and row major, follow in `payload`.
BLOCKS = _required(
    fqn=pa.string(), dtype=pa.string(), offsets=_LIST, sizes=_LIST, nbytes=pa.int64(), xxh3=pa.string()
)
PAYLOADS = BLOCKS.append(pa.field("payload", pa.large_binary(), nullable=False))
_ROWS = (
    BLOCKS.append(pa.field("file", pa.string(), nullable=False))
    .append(pa.field("row_group", pa.int64(), nullable=False))
    .append(pa.field("row", pa.int64(), nullable=False))
    .append(pa.field("payload_off", pa.int64(), nullable=False))
)


@dataclass(frozen=True)
class Block:
    """One stored block of a tensor: place in the tensor (elements) and in the file (bytes), XXH3-64 of its bytes."""

    fqn: str
    dtype: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    nbytes: int
    xxh3: str
    file: str
    row_group: int
    row: int  # within the row group
    payload_off: int


def manifest_of(parts: Iterable[Part]) -> Part:
    """The one part that is a checkpoint's manifest; Corrupt if its record names none, or several."""
    found = [part for part in parts if part.kind == "manifest"]
    if len(found) != 1:
        raise Corrupt(f"a checkpoint's record must name one manifest, but it names {len(found)}")
    return found[0]


@dataclass(frozen=True)
class Manifest:
    """All blocks of a checkpoint, and each tensor's dtype and shape (a tensor without elements has no block)."""

    tensors: dict[str, tuple[torch.dtype, torch.Size]]
    blocks: tuple[Block, ...]

    def to_bytes(self) -> bytes:
        """One Parquet file: a row a block, the tensors as JSON in the file's metadata."""
        tensors = {fqn: [dtype_name(dtype), list(size)] for fqn, (dtype, size) in self.tensors.items()}
        content = json.dumps({"schema": SCHEMA_VERSION, "tensors": tensors})
        schema = _ROWS.with_metadata({_KEY: content.encode()})
        values = sum(max(len(block.sizes), 1) for block in self.blocks)
        if values > MOST_VALUES:
            raise ConfigError(
                f"a checkpoint's manifest must have at most {MOST_VALUES:,} sizes, or it could not be read again, but "
                f"its {len(self.blocks):,} blocks have {values:,}; let fewer workers share a model (hsdp)"
            )
        columns = [
            pa.array([getattr(block, field.name) for block in self.blocks], field.type) for field in schema
        ]
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_arrays(columns, schema=schema), sink, compression="zstd")
        return sink.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Corrupt if this is no manifest; ConfigError if a newer froude wrote it."""
        try:
            table = table_of(data)
            content = json.loads((table.schema.metadata or {})[_KEY])
            version = content["schema"]
            if version == SCHEMA_VERSION:
                sizes = {
                    fqn: (_dtype(name), torch.Size(size)) for fqn, (name, size) in content["tensors"].items()
                }
                return cls(sizes, tuple(_blocks(table)))._checked()
        except (
            pa.ArrowException,
            OSError,
            OverflowError,
            KeyError,
            AttributeError,
            TypeError,
            ValueError,
            RuntimeError,
        ) as error:
            raise Corrupt(f"a checkpoint's manifest can't be read: {error}") from error
        raise ConfigError(
            f"a checkpoint must have schema {SCHEMA_VERSION}, but got {version!r}; use the froude that wrote it"
        )

    def _checked(self) -> Manifest:
        """Itself; ValueError unless the blocks of each tensor cover each of its elements once."""
        placed: dict[str, list[Block]] = {fqn: [] for fqn in self.tensors}
        for block in self.blocks:
            dtype, shape = self.tensors[block.fqn]
            inside = len(block.offsets) == len(block.sizes) == len(shape) and all(
                offset >= 0 and size > 0 and offset + size <= whole
                for offset, size, whole in zip(block.offsets, block.sizes, shape, strict=True)
            )
            elements = math.prod(block.sizes)
            if not inside or block.dtype != dtype_name(dtype) or block.nbytes != elements * dtype.itemsize:
                raise ValueError(f"a block of `{block.fqn}` at {list(block.offsets)} does not fit")
            if block.payload_off < 0:
                raise ValueError(f"a block of `{block.fqn}` begins before its file")
            placed[block.fqn].append(block)
        for fqn, (dtype, shape) in self.tensors.items():
            if math.prod(max(size, 1) for size in shape) * dtype.itemsize >= MOST_BYTES:
                raise ValueError(f"`{fqn}` of shape {list(shape)} is larger than any memory")
            elements = sum(math.prod(block.sizes) for block in placed[fqn])
            if min(shape, default=0) < 0 or elements != math.prod(shape):
                raise ValueError(f"the blocks of `{fqn}` hold {elements} elements of {math.prod(shape)}")
            if shape and (at := _overlap(placed[fqn])):
                raise ValueError(f"two blocks of `{fqn}` hold the elements at {list(at)}")
        return self

    def check_within(self, sizes: Mapping[str, int]) -> None:
        """Corrupt if a block would lie beyond the end of its file, given the files' bytes by name."""
        for block in self.blocks:
            if block.file not in sizes:
                raise Corrupt(f"{block.file} is missing: no record names it")
            if block.payload_off + block.nbytes > sizes[block.file]:
                raise Corrupt(f"a block of `{block.fqn}` lies beyond the end of {block.file}")


def _overlap(blocks: list[Block]) -> tuple[int, ...] | None:
    """Offsets of a block of one tensor that shares elements with another; a sweep over the first dimension."""
    open_: list[Block] = []
    for block in sorted(blocks, key=lambda block: block.offsets):
        open_ = [other for other in open_ if other.offsets[0] + other.sizes[0] > block.offsets[0]]
        for other in open_:
            ranges = zip(block.offsets, block.sizes, other.offsets, other.sizes, strict=True)
            if all(a < b + m and b < a + n for a, n, b, m in ranges):
                return block.offsets
        open_.append(block)
    return None


def _blocks(table: pa.Table) -> Iterable[Block]:
    for row in table.select(_ROWS.names).to_pylist():
        yield Block(**{**row, "offsets": tuple(row["offsets"]), "sizes": tuple(row["sizes"])})


def dtype_name(dtype: torch.dtype) -> str:
    """`torch.bfloat16` -> "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    # Quantised and packed ones have no plain elements.
    if not isinstance(found, torch.dtype) or not (
        found.is_floating_point or found.is_complex or name in WHOLE_NUMBERS
    ):
        raise ValueError(f"no such dtype: {name!r}")
    return found
