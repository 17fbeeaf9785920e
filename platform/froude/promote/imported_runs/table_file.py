"""A file of rows, as trackers, spreadsheets and data frames write it: delimited text, Parquet, JSON."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import polars as pl

from froude.config import ConfigError
from froude.promote.imported_runs import tracker_stores
from froude.store import Location, reported

READERS = ("csv", "tsv", "parquet", "jsonl", "ndjson", "json")
DELIMITERS = ",;\t"
#: What stands for no number.
NOTHING = [*("nan", "NaN", "NAN", "inf", "Inf", "-inf", "-Inf"), *("None", "null", "NA")]


def read(source: Location) -> pl.DataFrame:
    """The table of a tracker's store, or of a file by the ending of its name; ConfigError where it is neither."""
    if (table := tracker_stores.read(source)) is not None:
        return table
    kind = source.name.rpartition(".")[2].lower()
    if source.is_local and not source.path.exists():
        raise ConfigError(f"a table of runs must be there, but {source} is not; correct the path")
    if kind not in READERS:
        raise ConfigError(
            "a table of runs must be a .csv (or .tsv), .parquet, .jsonl (or .ndjson) or .json file, a folder of W&B's "
            f"offline runs, or an MLflow store (.db), but got {source}; save it as one of these"
        )
    with reported(source, "a table of runs must be readable"):
        content = source.read()
    try:
        if kind == "parquet":
            return pl.read_parquet(io.BytesIO(content))
        if kind not in ("csv", "tsv"):
            return _json(content, lines=kind != "json")
        return _delimited(content)
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        first = next(iter(str(error).splitlines()), "")
        raise ConfigError(
            f"a table of runs must be valid, but {source} is not: {first}; correct the file"
        ) from None


def _delimited(content: bytes) -> pl.DataFrame:
    """Text with a header; its delimiter is the one that the header has most of, for spreadsheets write ; or tabs."""
    try:
        content.decode()
    except UnicodeDecodeError:  # as spreadsheets save it: every byte has a letter, so this can't fail
        content = content.decode("latin-1").encode()
    header = re.sub(
        '"[^"]*"', "", content.partition(b"\n")[0].decode()
    )  # what is quoted may hold any of them
    table = pl.read_csv(
        io.BytesIO(content),
        separator=max(DELIMITERS, key=header.count),
        infer_schema_length=None,
        null_values=NOTHING,
    )
    for name in table.columns:
        first, number = name.rpartition("_duplicated_")[::2]
        if first in table.columns and number.isdigit():  # Polars' name for it
            raise ValueError(f"its header has the column {first!r} twice")
    empty = [name for name in table.columns if table[name].null_count() == table.height]
    return table.with_columns(pl.col(empty).cast(pl.Float64))  # no cell says which type it would be


def _json(content: bytes, *, lines: bool) -> pl.DataFrame:
    """An object a line, or an array of objects, by Python's parser: Polars' refuses the NaN that Python writes."""
    rows: list[Any] = []
    if lines:
        for number, line in enumerate(content.split(b"\n"), 1):
            try:
                rows += [json.loads(line)] if line.strip() else []
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
    else:
        found = json.loads(content)
        if isinstance(found, dict) and any(isinstance(value, dict | list) for value in found.values()):
            raise ValueError(
                "it must be an array of objects, one per run, but is one object of columns "
                "(pandas writes the array with orient='records')"
            )
        rows = found if isinstance(found, list) else [found]
    for row in rows:
        if not isinstance(row, dict):
            raise ValueError(
                f"a run must be an object {{…}} with one value per column, but one is {row!r:.40}"
            )
    flat = [
        {key: json.dumps(value) if isinstance(value, dict | list) else value for key, value in row.items()}
        for row in rows
    ]
    return pl.from_dicts(flat, infer_schema_length=None, strict=False) if flat else pl.DataFrame()
