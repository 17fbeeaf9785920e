"""How a table of runs was read, so that a wrong mapping is seen before its forecast is believed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import polars as pl

from froude.promote.imported_runs.run_table import SETTINGS
from froude.study import Study

#: Names of columns that hold what a mapping should name: `State`, `info.state`, `params.lr`, `lr_max`, `dataset`.
LOOKS_LIKE = {
    "status": re.compile(r"(?:^|[./ ])(run_?|trial_?)?(status|state)$", re.IGNORECASE),
    "lr": re.compile(
        r"(?:^|[./ ])((params|config|hparams|optimizer|opt|peak|max|base|init|initial)_?)?"
        r"(lr|learning[_ ]?rate)(_?(max|peak))?$",
        re.IGNORECASE,
    ),
    "corpus": re.compile(r"(?:^|[./ ])(data_?set|data_?source|corpus)(_?name)?$", re.IGNORECASE),
    "schedule": re.compile(r"(?:^|[./ ])(lr_?)?schedule(r)?(_?(type|name))?$", re.IGNORECASE),
}
IGNORED = {
    "status": "every row counts as finished",
    "lr": "runs off their rate count as seeds",
    "corpus": "runs on several corpora count as on one",
    "schedule": "checkpoints of a decay count as runs that ended",
}
FEW_EACH = 0.1  # tokens per parameter: where no run has more, tokens are probably in a larger unit
FEW = 1e4  # parameters or tokens: fewer are probably millions or billions
LONGEST_SEQUENCE_BATCH = 4096  # a batch below it is probably in sequences
MOST_NATS = 15.0  # per token: a guess among three million tokens has as many, and a trained model fewer
EVERY_RUN_HAS = ("width", "depth", "batch", "lr")  # of the settings
#: FLOPs over 6·params·tokens: attention and embeddings stay within it, another unit does not.
BY_SIZE = (0.2, 5.0)
RANGES = ("params", "tokens", "loss", "batch")


@dataclass(frozen=True)
class Reading:
    """What a study took from its table.

    `status` counts rows, `columns` maps froude's names to the file's, `ranges` holds least and largest of the rows that
    count (loss in nats per token, batch in tokens), `vary` the settings with more than one value among them.
    """

    rows: int
    status: dict[str, int]
    columns: dict[str, str]
    ignored: tuple[str, ...]
    ranges: dict[str, tuple[float, float]]
    vary: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**vars(self), **{key: list(getattr(self, key)) for key in ("ignored", "vary", "warnings")}}

    def lines(self) -> list[str]:
        """The same for people."""
        statuses = ", ".join(f"{count} {status}" for status, count in self.status.items())
        used = ", ".join(
            name if name == theirs else f"{name} ← {theirs}" for name, theirs in self.columns.items()
        )
        ranges = ", ".join(f"{name} {low:.4g} to {high:.4g}" for name, (low, high) in self.ranges.items())
        found = [
            f"table           {self.rows} rows: {statuses}",
            f"columns         {used}" + (f"; ignored: {', '.join(self.ignored)}" if self.ignored else ""),
            f"ranges          {ranges or 'none: no row counts'}",
            f"settings        {'these vary: ' + ', '.join(self.vary) if self.vary else 'none varies'}",
        ]
        return found + [f"warning         {each}" for each in self.warnings]


def reading(study: Study) -> Reading:
    """How the table that the study was just made of was read."""
    said = study.meta["table"]
    rows = study.trials().collect()
    counted = rows.filter(pl.col("status").is_in(["finished", "diverged"]))
    ranges = {
        name: (float(values.min()), float(values.max()))  # type: ignore[arg-type]
        for name in RANGES
        if (values := counted[name].drop_nulls()).len()
    }
    counts = rows.group_by("status").len().sort("len", "status", descending=[True, False])
    columns, ignored = dict(said["columns"]), tuple(said["ignored"])
    return Reading(
        rows=rows.height,
        status=dict(counts.iter_rows()),
        columns=columns,
        ignored=ignored,
        ranges=ranges,
        vary=tuple(name for name in SETTINGS if counted[name].drop_nulls().n_unique() > 1),
        warnings=(
            *_overlooked(columns, ignored, said["dropped"]),
            *_units(ranges, stepless=not counted["steps"].count()),
            *_few_tokens(counted),
            *_flops(counted),
            *_loss(counted),
            *_empty(counted),
        ),
    )


def _overlooked(columns: dict[str, str], ignored: tuple[str, ...], dropped: list[str]) -> list[str]:
    found = []
    for name, pattern in LOOKS_LIKE.items():
        theirs = next((column for column in ignored if pattern.search(column)), None)
        if theirs is not None and name not in columns and name not in dropped:
            found.append(
                f"column {theirs!r} is ignored, so {IGNORED[name]}; is it --columns {name}={theirs}?"
            )
    return found


def _units(ranges: dict[str, tuple[float, float]], *, stepless: bool) -> list[str]:
    found = []
    for name, unit in (("params", "millions"), ("tokens", "billions")):
        if name in ranges and (least := ranges[name][0]) < FEW:
            found.append(f"{name} are as few as {least:g}; are they {unit}? They are read as plain counts")
    if stepless and "batch" in ranges and (least := ranges["batch"][0]) < LONGEST_SEQUENCE_BATCH:
        found.append(
            f"batch is read as tokens, but is as small as {least:g}; is it sequences? Multiply by their length"
        )
    return found


def _few_tokens(counted: pl.DataFrame) -> list[str]:
    most = counted.select((pl.col("tokens") / pl.col("params")).max()).item()
    if most is None or most >= FEW_EACH:
        return []
    return [
        f"no run has more than {most:.2g} tokens per parameter; are tokens thousands, or millions? They are read as "
        "plain counts"
    ]


def _flops(counted: pl.DataFrame) -> list[str]:
    """Where the table's FLOPs are in another unit; rows that tell none have those by size."""
    ratio = pl.col("flops") / (6 * pl.col("params").cast(pl.Float64) * pl.col("tokens"))
    told = counted.select(ratio).to_series()
    median = told.filter(told != 1).median()
    if not isinstance(median, float) or BY_SIZE[0] <= median <= BY_SIZE[1]:
        return []
    return [
        f"flops are {median:.2g} times 6·params·tokens (the median); are they in another unit, or of a step? They are "
        "read as FLOPs of the whole run"
    ]


def _loss(counted: pl.DataFrame) -> list[str]:
    least = counted.filter(pl.col("loss").is_finite())["loss"].min()
    if not isinstance(least, float) or least <= MOST_NATS:
        return []
    return [
        f"no loss is below {least:.3g}; are they perplexities, or sums over a sequence? They are read as nats per token"
    ]


def _empty(counted: pl.DataFrame) -> list[str]:
    """Where a run does not say what sets the others of its size and horizon apart: it counts as one more setting."""
    found = []
    for name in EVERY_RUN_HAS:
        several = pl.col(name).drop_nulls().n_unique().over("params", "tokens") > 1
        odd = counted.filter(pl.col(name).is_null() & several)
        if odd.height:
            found.append(
                f"run {odd['run'][0]!r} does not say its {name}, by which others of its size and horizon differ"
                f"{f' ({odd.height} such runs)' if odd.height > 1 else ''}; fill it in, or the law may leave it out"
            )
    return found
