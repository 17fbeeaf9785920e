"""Reading a user's frame: one place decides which rows count and which values are errors."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from froude.laws.stats import mixtures_of_experts

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

# Besides the statuses of trials, "ok" counts, so that a law's own frame of optima can be fed to the next law.
COUNTED = ("finished", "diverged", "ok")
# These say that a run, or a fit, did not end well; other words may mean the opposite, and are asked about.
UNFINISHED = (
    "failed",
    "pruned",
    "running",
    "pending",
    "queued",
    "crashed",
    "killed",
    "preempted",
    "stopped",
    "error",
    "aborted",
    "cancelled",
    "canceled",
    "interrupted",
    "skipped",
    "timeout",
)
UNFITTED = ("edge", "flat", "not_convex", "too_few_points", "prior_driven", "at_bound")
NEAR = 0.01  # relative: values of a setting so near are one, rounded by whatever wrote them
SPAN = 1e30  # no sweep is wider, and beyond it the powers in a fit overflow


@dataclass(frozen=True, eq=False)
class Sample:
    """The rows of a frame that a law fits.

    `frame` holds every input row and column, `used` marks the rows that enter the fit, `values` maps each
    column read to the Float64 values of the used rows, `diverged` marks counted rows without a usable loss.
    `weights` and `groups` (group codes from 0) are aligned with the used rows.
    """

    frame: pl.DataFrame
    used: Mask
    diverged: Mask
    columns: dict[str, Array]
    weights: Array
    groups: NDArray[np.intp]

    def __getitem__(self, name: str) -> Array:
        return self.columns[name][self.used]

    @property
    def size(self) -> int:
        """Number of rows that enter the fit."""
        return int(self.used.sum())

    @property
    def n_groups(self) -> int:
        """Number of groups among the rows that enter the fit."""
        return int(self.groups.max()) + 1 if self.size else 0

    def rows(self, fitted: Array, residual: Array, outlier: Mask) -> pl.DataFrame:
        """Return every input row with `fitted`, `residual` and `outlier`, null where a row did not enter the fit.

        The fit says nothing of a row where `fitted` is NaN: null too.
        """
        values = np.full((2, self.frame.height), np.nan)
        values[0, self.used], values[1, self.used] = fitted, residual
        marks = np.zeros(self.frame.height, dtype=bool)
        marks[self.used] = outlier
        entered = pl.Series(self.used & ~np.isnan(values[0]))
        new = {"fitted": pl.Series(values[0]), "residual": pl.Series(values[1]), "outlier": pl.Series(marks)}
        return self.frame.with_columns(pl.when(entered).then(new[name]).alias(name) for name in new)

    def without(self, rows: Mask) -> "Sample":
        """Return the sample with some of the used rows (a mask over them) counted as diverged instead."""
        where = np.flatnonzero(self.used)[rows]
        used, diverged = self.used.copy(), self.diverged.copy()
        used[where], diverged[where] = False, True
        _, groups = np.unique(self.groups[~rows], return_inverse=True)
        return replace(self, used=used, diverged=diverged, weights=self.weights[~rows], groups=groups)

    def unfitted(self) -> pl.DataFrame:
        """Return every input row with null `fitted`, `residual` and `outlier`."""
        return self.frame.with_columns(
            pl.lit(None, pl.Float64).alias("fitted"),
            pl.lit(None, pl.Float64).alias("residual"),
            pl.lit(None, pl.Boolean).alias("outlier"),
        )


def read(
    frame: object,
    columns: Sequence[str],
    *,
    loss: bool = False,
    weights: str | None = None,
    groups: str | Sequence[str] | None = None,
    zero: Sequence[str] = (),
    setting: str = "",
    within: Sequence[str] = (),
) -> Sample:
    """Validate `frame` and return its rows that count.

    `columns` must be positive and finite in every counted row (those in `zero` may be 0); with `loss=True`
    the column `loss` is read too, where null, NaN and inf mean diverged. With a `status` column only
    finished and diverged rows count, and a word that is not known is an error. Raises TypeError for
    anything but a polars frame and for non-numeric columns, ValueError for a missing column, for a value out
    of range, where batch · steps differs from tokens by more than 1%, and for a mixture of experts, as far as a column
    tells (`mixtures_of_experts`); each names the column. Values of `setting` that differ by rounding become one
    (`without_rounding`).
    """
    table = without_rounding(collect(frame), setting, within)
    if weights is not None and not isinstance(weights, str):
        raise ValueError(f"weights must name one column, but got {weights!r}.")
    keys = _names(groups)
    numeric = list(dict.fromkeys([*columns, *([weights] if weights is not None else [])]))
    for name in [*numeric, *(["loss"] if loss else []), *keys]:
        if name not in table.columns:
            raise ValueError(
                f"Column {name!r} is missing. The frame has: {', '.join(table.columns) or 'no columns'}."
            )
    counted, diverged = _status(table)
    _same_units(table, counted)
    mixtures_of_experts.refuse(table, pl.Series(counted), lambda row: f"row {row}")
    read_columns = {name: _positive(table, name, counted, zero=name in zero) for name in numeric}
    if loss:
        values, lost = _loss(table, counted)
        read_columns["loss"] = values
        diverged = diverged | lost
    used = counted & ~diverged
    ones = np.ones(int(used.sum()))
    sample = Sample(
        frame=table,
        used=used,
        diverged=diverged,
        columns=read_columns,
        weights=read_columns[weights][used] if weights is not None else ones,
        groups=_codes(table, keys, used),
    )
    if weights is not None:
        plausible(sample, [weights])
    return sample


def without_rounding(table: pl.DataFrame, setting: str, within: Sequence[str] = ()) -> pl.DataFrame:
    """Return the rows with values of a setting that differ by rounding made one, among rows alike in `within`.

    Values up to NEAR above the lowest become that one; others stay bit for bit.
    """
    if not {setting, *within} <= {*table.columns} or not table[setting].dtype.is_numeric():
        return table
    own = pl.col(setting).cast(pl.Float64)
    found = table.with_columns(
        own.map_batches(_one_level).over(within) if within else own.map_batches(_one_level)
    )
    return table if found[setting].equals(table[setting]) else found


def _one_level(values: pl.Series) -> pl.Series:
    known = values.filter(values.is_finite() & (values > 0)).unique().sort()
    found = {value: first for value, first in zip(known, firsts(known, NEAR), strict=True) if value != first}
    return values.replace(found) if found else values


def firsts(ascending: Iterable[float], width: float) -> Iterator[float]:
    """Of each value the first of its group; a group is at most `width` wide as a whole, relative to its first."""
    first = None
    for value in ascending:
        if first is None or value > first * (1 + width):
            first = value
        yield first


def plausible(sample: Sample, names: Sequence[str]) -> None:
    """Raise ValueError if the used values of a column span more than SPAN: powers of them would overflow."""
    for name in names:
        values = sample[name][sample[name] > 0]
        if values.size and np.log(values.max()) - np.log(values.min()) > np.log(SPAN):
            raise ValueError(
                f"Column {name!r} must not span more than {SPAN:g}, but goes from {values.min():g} to {values.max():g}."
                " Correct its units, or filter these rows."
            )


def _names(groups: str | Sequence[str] | None) -> list[str]:
    keys = [groups] if isinstance(groups, str) else groups if groups is not None else []
    if not isinstance(keys, (list, tuple)) or not all(isinstance(key, str) for key in keys):
        raise ValueError(f"groups must name a column or a list of columns, but got {groups!r}.")
    return list(keys)


def collect(frame: object) -> pl.DataFrame:
    """Return a DataFrame from a polars DataFrame or LazyFrame; TypeError for anything else."""
    if isinstance(frame, pl.LazyFrame):
        return frame.collect()
    if isinstance(frame, pl.DataFrame):
        return frame
    raise TypeError(f"A law takes a polars DataFrame or LazyFrame, but got {type(frame).__name__}.")


def _status(table: pl.DataFrame) -> tuple[Mask, Mask]:
    if "status" not in table.columns:
        return np.ones(table.height, dtype=bool), np.zeros(table.height, dtype=bool)
    status = table["status"]
    if status.dtype != pl.Null and not isinstance(status.dtype, (pl.String, pl.Categorical, pl.Enum)):
        raise TypeError(f"Column 'status' must hold text (finished, diverged, …), but is {status.dtype}.")
    text = status.cast(pl.String)
    unknown = text.filter(
        text.is_not_null() & ~text.is_in(COUNTED) & ~text.str.to_lowercase().is_in((*UNFINISHED, *UNFITTED))
    )
    if unknown.len():
        raise ValueError(
            f"Column 'status' must say finished or diverged for rows that count, but holds {unknown[0]!r}"
            f" ({unknown.len()} such row{'s' if unknown.len() > 1 else ''}), which is neither that nor one of"
            f" {', '.join(UNFINISHED)}. Rename it, or filter these rows."
        )
    counted = text.is_in(COUNTED).fill_null(False).to_numpy()
    return counted, (text == "diverged").fill_null(False).to_numpy()


def _numbers(table: pl.DataFrame, name: str) -> Array:
    column = table[name]
    if column.dtype != pl.Null and not column.dtype.is_numeric():
        raise TypeError(f"Column {name!r} must be numeric, but is {column.dtype}. Cast it first.")
    return np.array(column.cast(pl.Float64).fill_null(np.nan).to_numpy(), dtype=np.float64)


def _positive(table: pl.DataFrame, name: str, counted: Mask, *, zero: bool = False) -> Array:
    values = _numbers(table, name)
    bad = np.flatnonzero(counted & ~(np.isfinite(values) & ((values >= 0) if zero else (values > 0))))
    if bad.size:
        row, rule = int(bad[0]), "zero or more" if zero else "positive"
        raise ValueError(
            f"Column {name!r} must be {rule} and finite, but row {row} holds {table[name][row]!r}"
            f" ({bad.size} such row{'s' if bad.size > 1 else ''}). Correct or filter these rows."
        )
    return values


def _loss(table: pl.DataFrame, counted: Mask) -> tuple[Array, Mask]:
    values = _numbers(table, "loss")
    bad = np.flatnonzero(counted & (values <= 0))
    if bad.size:
        raise ValueError(
            f"Column 'loss' must be positive (nats per token), but row {int(bad[0])} holds {float(values[bad[0]])!r}."
            " A diverged run has a null loss."
        )
    return values, counted & ~np.isfinite(values)


def _same_units(table: pl.DataFrame, counted: Mask) -> None:
    names = ("batch", "steps", "tokens")
    if any(name not in table.columns or not table[name].dtype.is_numeric() for name in names):
        return
    batch, steps, tokens = (_numbers(table, name) for name in names)
    known = counted & (batch > 0) & (steps > 0) & (tokens > 0)
    known &= np.isfinite(batch) & np.isfinite(steps) & np.isfinite(tokens)
    gap = np.log(batch[known]) + np.log(steps[known]) - np.log(tokens[known])
    bad = np.flatnonzero(np.abs(np.expm1(np.clip(gap, -50, 50))) > 0.01)
    if bad.size:
        row = int(np.flatnonzero(known)[bad[0]])
        raise ValueError(
            f"Column 'batch' is in tokens, so batch · steps must equal tokens within 1%, but row {row} has"
            f" {batch[row]:g} · {steps[row]:g} against {tokens[row]:g}. Convert sequences or examples to tokens."
        )


def _codes(table: pl.DataFrame, keys: list[str], used: Mask) -> NDArray[np.intp]:
    if not keys:
        return np.arange(int(used.sum()), dtype=np.intp)
    rows = table.select(keys).filter(pl.Series(used))
    for name in keys:
        if rows[name].null_count():
            raise ValueError(
                f"Column {name!r} names the groups and must not be null. Fill or filter these rows."
            )
    # Names of ours, which the joins below cannot meet again.
    rows.columns = [f"key{i}" for i in range(len(keys))]
    names = rows.unique(maintain_order=True).with_row_index("_group")
    joined = rows.with_row_index("_row").join(names, on=rows.columns, how="left").sort("_row")
    return joined["_group"].to_numpy().astype(np.intp)
