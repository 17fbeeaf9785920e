"""Where the target run leaves the ladder of proxies that its loss law was fitted to.

The law has two variables, parameters and tokens. All else that a run is made of must be as in the ladder, or have been
measured by it; otherwise the forecast may be right, but nobody has seen that it is, so it is not certified. What the
rows do not say (null: tables, and studies of older versions) is not held against the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import polars as pl

from froude.config import Data, Run
from froude.laws import CriticalBatch
from froude.material import commands
from froude.promote.imported_runs.history import ROLE
from froude.promote.ladder.precision_cost import Cost
from froude.schedules import SCHEDULES

#: What helps where only some rows are of the target's kind.
MIXED = "one law of several kinds is that of none: leave the others out, or give them a stage of their own"
LIKE = math.log(2) / 4  # in ln batch: within half the half octave by which batches are looked at
SHOWN = 4  # values of an axis that a reason lists


class Axis(NamedTuple):
    """A column of `trials()`: what it is called, the target's value, and what helps where the ladder lacks that."""

    column: str
    called: str
    of: Callable[[Run], Any]
    remedy: str = "train the ladder as the target"


#: Part of what makes a model large: a ladder that varies them has measured them along with params.
SIZED = (
    Axis("width", "width", lambda run: run.model.width, "give the ladder several widths"),
    Axis("depth", "depth", lambda run: run.model.depth, "add depths on the way there"),
    Axis("head_dim", "head size", lambda run: run.model.head_dim, "add head sizes on the way there"),
)
BATCH = Axis(
    "batch", "batch", lambda run: run.phases.mean, "add proxies of that batch, or measure the critical one"
)


def _tail(run: Run) -> float | None:
    """The share of the run that the schedule's tail takes, if it has one."""
    return run.schedule.decay_fraction if SCHEDULES[run.schedule.name].has_tail else None


#: What no law here corrects for.
KINDS = (
    Axis("model", "model class", commands.model),
    Axis("context", "context length", lambda run: run.model.context),
    Axis("vocab", "vocabulary", lambda run: run.model.vocab),
    Axis("corpus", "data source", commands.corpus),
    Axis("data_options", "data mixture", lambda run: run.data.settings_of(run.tokens)),
    Axis("optimizer", "optimizer", lambda run: run.optimizer.name),
    Axis("schedule", "schedule", lambda run: run.schedule.name),
    Axis("decay_fraction", "decay, as a share of the run,", _tail),
    Axis("parametrization", "parametrization", lambda run: run.parametrization),
    Axis("precision", "precision", lambda run: run.precision),
)


def doubts(
    ladder: pl.DataFrame, target: Run | None, critical: CriticalBatch | None = None, cost: Cost | None = None
) -> tuple[str, ...]:
    """Return a reason for each axis on which the loss law's finished rows have not measured what the target is.

    `ladder` has columns of `trials()`; `critical` is the study's critical batch, `cost` what a stage of its own has
    found of the target's precision. Without a target the rows must be of one kind, whichever it is.
    """
    finished = ladder.filter(pl.col("status") == "finished")
    found = []
    if target is None:
        kinds = ((axis.called, finished[axis.column].drop_nulls()) for axis in KINDS)
        return tuple(_mixed(called, values) for called, values in kinds if len({*map(_plain, values)}) > 1)
    for axes, measured in ((SIZED, _sized), ((BATCH,), _batch), (KINDS, _kind)):
        for axis in axes:
            if axis.column == "precision" and cost is not None:
                continue
            rows = finished.filter(pl.col(axis.column).is_not_null())
            wanted = _wanted(axis, target, rows)
            if wanted is None and axis.column == "decay_fraction":  # the target's schedule has no tail
                continue
            if rows.height and not measured(rows, axis.column, wanted, critical):
                found.append(_reason(axis, wanted, rows[axis.column]))
    drifts = (cost.drift,) if cost is not None and cost.drift else ()
    return (*found, *drifts, *_started(target))


def _wanted(axis: Axis, target: Run, rows: pl.DataFrame) -> Any:
    """The target's value, None where it has none; of data that it leaves unnamed a table's corpus is its own."""
    unnamed = axis.column == "corpus" and target.data.source == Data().source
    if unnamed and rows.height and (rows["stage"] == ROLE).all():
        return rows["corpus"][0]
    return axis.of(target)


def _started(target: Run) -> tuple[str, ...]:
    """A target that goes on from a checkpoint: its proxies, of other sizes, cannot have started there."""
    start = target.model.options.get("init") if target.model.factory.startswith("froude.") else None
    if not start:
        return ()
    return (
        f"the target starts from the weights in {start}, which the laws did not see: the proxies start from their "
        "seeds (score the run against the forecast, and expect to end below it)",
    )


def _sized(rows: pl.DataFrame, column: str, wanted: int, _: CriticalBatch | None) -> bool:
    """Whether the ladder has the value, or varies the axis and reaches half of the way, in logs, to the value.

    How far a width may reach is bounded by its parameters, which the gate and the law's certificate look at.
    """
    values = rows[column].unique()
    low, high = (math.log(float(end)) for end in (values.min(), values.max()))  # type: ignore[arg-type]
    beyond = max(math.log(wanted) - high, low - math.log(wanted))
    return beyond <= 0 or (len(values) > 1 and (column == "width" or beyond <= high - low))


def _batch(rows: pl.DataFrame, column: str, wanted: int, critical: CriticalBatch | None) -> bool:
    """Whether the batch is among the ladder's, or it and theirs are below a critical one, where a loss hardly moves."""
    values: list[int] = rows[column].to_list()
    if any(abs(math.log(wanted / value)) <= LIKE for value in values):
        return True
    known = critical is not None and critical.status == "ok"
    return known and max(wanted, *values) <= critical.b_crit  # type: ignore[union-attr]


def _kind(rows: pl.DataFrame, column: str, wanted: object, _: CriticalBatch | None) -> bool:
    """Whether all rows are of the target's kind: one law of several kinds is that of none."""
    return all(_plain(value) == _plain(wanted) for value in rows[column])


def _plain(value: object) -> object:
    """A name in small letters; of a corpus with a hash the file's name does not count."""
    if not isinstance(value, str):
        return value
    first, *more = value.lower().split(" ")
    return (first, more[-1]) if more and more[-1].startswith("sha256:") else value.lower()


def _mixed(called: str, column: pl.Series) -> str:
    return (
        f"the rows of the loss law are of more than one {called} ({_listed(column)}): one law of several kinds is that "
        "of none, so give each a table of its own"
    )


def _listed(column: pl.Series) -> str:
    values = column.unique().sort().to_list()
    return f"{values[0]} to {values[-1]}" if len(values) > SHOWN else ", ".join(map(str, values))


def _reason(axis: Axis, wanted: object, column: pl.Series) -> str:
    values, have = column.unique().to_list(), _listed(column)
    mixed = len(values) > 1 and any(_plain(value) == _plain(wanted) for value in values)
    remedy = MIXED if mixed else axis.remedy
    return f"the target's {axis.called} is {wanted}, the proxies' {have}: not measured ({remedy})"
