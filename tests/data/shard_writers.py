"""Small writers of token shards, after each format's specification, for tests that need shards of their own."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Documents = Sequence[Sequence[int]]
CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def joined(documents: Documents, dtype: str = "uint16") -> Any:
    """All tokens, one after the other."""
    return np.array([token for document in documents for token in document], dtype)


def megatron(path: Path, documents: Documents, dtype: str = "uint16") -> None:
    """`path`.bin and `path`.idx; a document is a sequence."""
    lengths = np.array([len(document) for document in documents], np.int32)
    ends = np.cumsum(lengths.astype(np.int64) * np.dtype(dtype).itemsize)
    places = (np.append(0, ends)[:-1]).astype(np.int64)
    marks = np.arange(len(documents) + 1, dtype=np.int64)
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, CODES[dtype], len(lengths), len(marks))
    joined(documents, dtype).tofile(f"{path}.bin")
    Path(f"{path}.idx").write_bytes(head + lengths.tobytes() + places.tobytes() + marks.tobytes())


def dolma(path: Path, documents: Documents, dtype: str = "uint16") -> None:
    """`path`.npy and `path`.csv.gz."""
    joined(documents, dtype).tofile(f"{path}.npy")
    ends = np.cumsum([len(document) for document in documents]).tolist()
    rows = [
        f"{end - len(d)},{end},id,source,{i}\n"
        for i, (d, end) in enumerate(zip(documents, ends, strict=True))
    ]
    Path(f"{path}.csv.gz").write_bytes(gzip.compress("".join(rows).encode()))


def llmc(path: Path, documents: Documents, dtype: str = "uint16") -> None:
    """`path`.bin with llm.c's header; uint32 has another magic number."""
    tokens = joined(documents, dtype)
    header = np.zeros(256, np.int32)
    header[:3] = *((20240520, 1) if dtype == "uint16" else (20240801, 7)), len(tokens)
    Path(f"{path}.bin").write_bytes(header.tobytes() + tokens.tobytes())


def headerless(path: Path, documents: Documents, dtype: str = "uint16") -> None:
    """`path`.bin with nothing but ids."""
    joined(documents, dtype).tofile(f"{path}.bin")


def table(documents: Documents, dtype: str = "int32", *, large: bool = False) -> pa.Table:
    """A column of text, and one of ids."""
    kind = pa.type_for_alias(dtype)
    ids = pa.array([list(d) for d in documents], pa.large_list(kind) if large else pa.list_(kind))
    return pa.table({"text": [f"{i}" for i in range(len(documents))], "input_ids": ids})


def parquet(path: Path, documents: Documents, dtype: str = "int32") -> None:
    """`path`.parquet in row groups of 7 rows."""
    pq.write_table(table(documents, dtype), f"{path}.parquet", row_group_size=7)


def arrow(path: Path, documents: Documents, dtype: str = "int32") -> None:
    """`path`.arrow, a file of batches of 7 rows."""
    made = table(documents, dtype, large=True)
    with pa.ipc.new_file(f"{path}.arrow", made.schema) as writer:
        writer.write_table(made, max_chunksize=7)


def stream(path: Path, documents: Documents, dtype: str = "int32") -> None:
    """`path`.arrow, a stream of batches of 7 rows."""
    made = table(documents, dtype)
    with pa.ipc.new_stream(f"{path}.arrow", made.schema) as writer:
        writer.write_table(made, max_chunksize=7)


#: Writers by name, and whether the format knows where documents begin.
WRITERS: dict[str, tuple[Callable[..., None], bool]] = {
    "megatron": (megatron, True),
    "dolma": (dolma, True),
    "llm.c": (llmc, False),
    "headerless": (headerless, False),
    "parquet": (parquet, True),
    "arrow": (arrow, True),
    "stream": (stream, True),
}
