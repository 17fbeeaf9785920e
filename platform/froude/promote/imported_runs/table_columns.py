"""A table under froude's names for its columns, and a column of it as numbers, or what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from froude import schemas
from froude.config import ConfigError
from froude.laws.stats import mixtures_of_experts
from froude.promote.imported_runs import repeated_data, table_file

#: 30,000,000 or 30 000 000 in a column of counts; elsewhere 2,345 may be a decimal comma, and is asked about.
GROUPED = r"^\d{1,3}([,_ \u{a0}\u{2009}\u{202f}]\d{3})+(\.0*)?$"
SEPARATORS = r"[,_ \u{a0}\u{2009}\u{202f}]"
UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmbgt])", re.IGNORECASE)
EXPONENTS = {"k": 3, "m": 6, "b": 9, "g": 9, "t": 12}


@dataclass(frozen=True)
class Table:
    """A table under froude's names for its columns; `theirs` are the file's."""

    frame: pl.DataFrame
    source: str
    theirs: Mapping[str, str]

    def where(self, row: int) -> str:
        """The row as a user finds it: counted from 1, with the run's name where it has one."""
        run = self.frame["run"][row] if "run" in self.frame.columns else None
        return f"row {row + 1}" if run is None else f"row {row + 1} (run {run!r})"

    def column(self, name: str) -> str:
        theirs = self.theirs.get(name, name)
        return f"{self.source}: column {theirs!r}" + (f" ({name})" if theirs != name else "")

    def error(self, name: str, row: int, rule: str, remedy: str) -> ConfigError:
        value = self.frame[name][row]
        held = "is empty" if value is None else f"holds {value!r}"
        return ConfigError(f"{self.column(name)} must be {rule}, but {self.where(row)} {held}; {remedy}")


def numbers_of(table: Table, name: str) -> pl.Series:
    """The column as Float64, also from text; ConfigError for what is no plain number."""
    column = table.frame[name]
    if column.dtype == pl.Null or column.dtype.is_numeric():
        return column.cast(pl.Float64)
    if not isinstance(column.dtype, pl.String | pl.Categorical | pl.Enum):
        raise ConfigError(f"{table.column(name)} must be numeric, but is {column.dtype}; give numbers")
    plain = pl.col(name).cast(pl.String).str.strip_chars()
    plain = pl.when(~plain.is_in(["", *table_file.NOTHING])).then(plain)
    if (
        mixtures_of_experts.told_by(name)
        or repeated_data.told_by(name)
        or (name in schemas.TRIALS.names and schemas.TRIALS.field(name).type == pa.int64())
    ):
        plain = (
            pl.when(plain.str.contains(GROUPED)).then(plain.str.replace_all(SEPARATORS, "")).otherwise(plain)
        )
    text = table.frame.select(plain).to_series()
    found = text.cast(pl.Float64, strict=False)
    if (odd := (text.is_not_null() & found.is_null()).arg_true()).len():
        row = int(odd[0])
        raise table.error(name, row, "numeric", f"write {_plainly(text[row])}")
    return found


def _plainly(text: str) -> str:
    """How a number that was written otherwise is to be written."""
    if unit := UNIT.fullmatch(text):
        return f"{unit[1]}e{EXPONENTS[unit[2].lower()]}"
    return "a plain number such as 1300000 or 1.3e6, without units or commas, or leave it empty"


def words_of(table: Table, name: str) -> pl.Series:
    """The column as text; ConfigError for what is none, such as lists, or bytes that are no UTF-8."""
    column = table.frame[name]
    try:
        return column.cast(pl.String)
    except pl.exceptions.PolarsError:
        raise ConfigError(
            f"{table.column(name)} must be text, but is {column.dtype}; write words, or leave it out with "
            f"--columns {name}="
        ) from None
