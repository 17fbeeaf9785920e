"""Which columns of a table are losses on another validation set: `loss_<name>`."""

from __future__ import annotations

import re

import polars as pl

SET_LOSS = re.compile(r"loss_(\w+)", re.ASCII)
#: What such a name often ends in without being a set's; `--columns` can still map it.
NO_SET = ("std", "sd", "se", "sem", "stderr", "var", "min", "max", "train", "validation", "val")


def is_set(column: pl.Series) -> bool:
    """Whether a column that nobody mapped holds a set's losses."""
    named = SET_LOSS.fullmatch(column.name)
    return named is not None and named[1] not in NO_SET and column.dtype.is_numeric()
