"""Columns of lists of token ids: which one it is, and a list array as numpy has it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from froude.corpora.formats.shard import Tokens, unfit

PREFERRED = "input_ids"  # what tokenizers of Hugging Face call it


def is_ids(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists of whole numbers."""
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(lists and pa.types.is_integer(kind.value_type))


def column(name: str, schema: pa.Schema, wanted: str) -> str:
    """The column that is named, else `input_ids`, else the only one with lists of whole numbers."""
    able = [field.name for field in schema if is_ids(field.type)]
    known = ", ".join(f"{field.name} ({field.type})" for field in schema)
    rule = "a shard must have a column of lists of token ids"
    if wanted:
        if wanted in able:
            return wanted
        raise unfit(
            name, f"{rule} called {wanted!r}", f"has {known or 'none'}", "correct `data.options.column`"
        )
    if PREFERRED in able or len(able) == 1:
        return PREFERRED if PREFERRED in able else able[0]
    if able:
        raise unfit(name, rule, f"has {', '.join(able)}", "name one as `data.options.column`")
    raise unfit(name, rule, f"has {known or 'none'}", "tokenise it first, or name another path")


def flat(name: str, rows: Any) -> tuple[Tokens, npt.NDArray[np.int64]]:
    """Tokens of a list array, and where its rows start and the last ends; ConfigError for nulls."""
    if rows.null_count:
        raise nulls(name, rows.null_count, "rows")
    offsets = rows.offsets.to_numpy(zero_copy_only=True).astype(np.int64)
    values = rows.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    if values.null_count:
        raise nulls(name, values.null_count, "tokens")
    return values.to_numpy(zero_copy_only=True), offsets - offsets[0]


def nulls(name: str, count: int, what: str) -> Exception:
    """An error: what is no token can't be trained on."""
    return unfit(name, f"a shard must have no null {what}", f"has {count}", "drop them, or write empty lists")
