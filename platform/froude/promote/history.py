"""Runs that froude did not train: from somebody's table to a study, and what its rows can tell each law."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Mapping
from typing import Any

import polars as pl
import pyarrow as pa

from froude import records
from froude.config import ConfigError, Run
from froude.laws import frames
from froude.store import Location, probe_writable, reported
from froude.study import Study

ROLE = "history"
REQUIRED = ("params", "tokens", "loss")
MAY_BE_ZERO = ("warmup_tokens", "beta2", "weight_decay", "seed", "seconds")
STATUSES = ("finished", "diverged", "failed", "pruned", "running")
#: Two runs that agree in these (and in params and tokens) differ by their seed only.
SETTINGS = (
    "width",
    "depth",
    "batch",
    "lr",
    "warmup_tokens",
    "beta2",
    "weight_decay",
    "optimizer",
    "schedule",
    "parametrization",
    "precision",
)
#: What a table may say of a run, besides what is required: columns of `trials()`.
OPTIONAL = (
    *("run", "trial", "status", "params_with_embeddings", "steps"),
    *SETTINGS,
    *("seed", "flops", "seconds"),
)
#: What a CSV writes for no number.
NOTHING = [*("nan", "NaN", "NAN", "inf", "Inf", "-inf", "-Inf"), *("None", "null", "NA")]
PARAMETRIZATIONS = ("mup", "sp")
#: The columns that a row's fingerprint is made of: later ones must not change those of runs that were imported before.
MARKED = records.TRIALS.names[: records.TRIALS.names.index("error") + 1]
RATES = 3  # that make a curve of loss against learning rate


def make_study(
    source: str, out: str | Location, *, columns: Mapping[str, str] | None = None, target: Run | None = None
) -> Study:
    """Write a study of the runs in a CSV or Parquet file, one row a run or a checkpoint of one, and return it.

    `columns` maps froude's names (those of `trials()`) to the file's, where they differ; params, tokens and loss must
    be there, batch is in tokens. Rows of one `run` at several tokens are one trial. A null, NaN or infinite loss means
    diverged. `target` is the large run that the study is for. ConfigError for a file that is none of both kinds, for
    a missing column, a value out of range, rows that come twice, and where there is something at `out` already.
    """
    place = Location.parse(out)
    study = Study(place)
    if place.children():
        raise ConfigError(
            f"a study of other runs must be new, but there is something at {place} already; choose another directory"
        )
    rows = _rows(_table(Location.parse(source)), columns or {}, source)
    probe_writable(place)
    content: dict[str, Any] = {
        "froude": "study",
        "schema": 1,
        "space": place.name,
        "seed": 0,
        "stages": {ROLE: {"role": ROLE, "trials": rows["trial"].n_unique(), "extends": False}},
        "source": Location.parse(source).name,
    }
    if target is not None:
        content["target"] = target.to_dict()
    table = rows.to_arrow().cast(records.TRIALS)
    with reported(place, "a study must be writable"):
        (place / "trials" / f"{ROLE}.parquet").replace(records.to_bytes(table))
        (place / "study.json").replace(json.dumps(content, indent=1).encode() + b"\n")
    return study


def best(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows for the loss law: of each (params, tokens) all seeds of the settings with the least mean loss."""
    point = ["params", "tokens"]
    mean = pl.col("loss").mean().over(*point, *SETTINGS)
    finished = rows.filter(pl.col("status") == "finished").with_columns(_mean=mean)
    return finished.filter(pl.col("_mean") == pl.col("_mean").min().over(point)).drop("_mean")


def rates(rows: pl.DataFrame, parametrization: str) -> pl.DataFrame:
    """Rows for the transfer of the learning rate: the horizon and batch at which most widths have 3 rates or more.

    Rows that do not name their parametrization count as standard (SP). Of several such horizons it is the longest.
    """
    own = rows.filter(
        pl.col("parametrization").fill_null("sp") == parametrization,
        pl.col("width").is_not_null(),
        pl.col("lr").is_not_null(),
    )
    curves = own.filter(pl.col("lr").n_unique().over("tokens", "batch", "width") >= RATES)
    widths = curves.with_columns(_widths=pl.col("width").n_unique().over("tokens", "batch"))
    ranked = widths.sort("_widths", "tokens", "batch", descending=True, nulls_last=True).head(1)
    here = (
        (
            pl.col(name).eq_missing(pl.lit(value, pl.Int64))
            for name, value in zip(("tokens", "batch"), ranked.select("tokens", "batch").row(0), strict=True)
        )
        if ranked.height
        else ()
    )
    return curves.filter(*here)


def settings(rows: pl.DataFrame, target: Run | None) -> pl.DataFrame:
    """Rows that beta2 and warmup can be taken from; what a table does not say of them is as in the target."""
    if target is None:
        return rows.clear()
    share = target.schedule.warmup_tokens / target.tokens
    return rows.with_columns(
        pl.col("beta2").fill_null(target.optimizer.beta2),
        pl.col("warmup_tokens").fill_null((share * pl.col("tokens")).round().cast(pl.Int64)),
    )


def _table(source: Location) -> pl.DataFrame:
    kind = source.name.rpartition(".")[2].lower()
    if kind not in ("csv", "parquet"):
        raise ConfigError(
            f"a table of runs must be a .csv or .parquet file, but got {source}; save it as one of these"
        )
    with reported(source, "a table of runs must be readable"):
        content = source.read()
    try:
        if kind == "csv":
            table = pl.read_csv(io.BytesIO(content), infer_schema_length=None, null_values=NOTHING)
            empty = [name for name in table.columns if table[name].null_count() == table.height]
            return table.with_columns(
                pl.col(empty).cast(pl.Float64)
            )  # no cell says of which type it would be
        return pl.read_parquet(io.BytesIO(content))
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        first = next(iter(str(error).splitlines()), "")
        raise ConfigError(
            f"a table of runs must be valid, but {source} is not: {first}; mend the file"
        ) from None


def _rows(table: pl.DataFrame, columns: Mapping[str, str], source: str) -> pl.DataFrame:
    """The table with the columns and types of `trials()`, checked."""
    named = _renamed(table, columns)
    if not named.height:
        raise ConfigError(f"a table of runs must have rows, but {source} has none; name another file")
    if "status" in named.columns:
        _check(named, "status", source)
    try:
        frames.read(named, ["params", "tokens"], loss=True)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{source}: {error}") from None
    for name in named.columns:
        _check(named, name, source)
    empty = pl.from_arrow(records.TRIALS.empty_table())
    assert isinstance(empty, pl.DataFrame)
    kinds = empty.schema
    exact = [
        pl.col(name).cast(pl.Float64).round().cast(kind) if kind == pl.Int64 else pl.col(name).cast(kind)
        for name, kind in kinds.items()
        if name in named.columns and name not in ("run", "trial", "status", "loss", "parametrization")
    ]
    lost = ~pl.col("loss").cast(pl.Float64).is_finite().fill_null(False)
    status = pl.col("status") if "status" in named.columns else pl.lit("finished")
    turned, told = lost & (status == "finished"), status.is_in(["diverged", "failed"])
    typed = named.with_columns(
        status=pl.when(turned).then(pl.lit("diverged")).otherwise(status),
        reason=pl.when(turned)
        .then(pl.lit("no finite loss in the table"))
        .when(told)
        .then(pl.lit("its status in the table")),
    )
    loss = pl.col("loss").cast(pl.Float64)
    typed = _names(typed, source).with_columns(
        *exact,
        pl.when(pl.col("status") == "finished").then(loss).alias("loss"),
        pl.when(~lost).then(loss).alias("last_loss"),
    )
    if "flops" not in named.columns:
        typed = typed.with_columns(flops=6 * pl.col("params").cast(pl.Float64) * pl.col("tokens"))
    whole = typed.with_columns(
        pl.lit(None, kind).alias(name) for name, kind in kinds.items() if name not in typed.columns
    ).select(list(kinds))
    marks = [
        hashlib.sha256(json.dumps(row, default=str).encode()).hexdigest()[:16]
        for row in whole.select(MARKED).drop("loss", "seconds").iter_rows()
    ]
    return whole.with_columns(fingerprint=pl.Series(marks, dtype=pl.String), stage=pl.lit(ROLE))


def _renamed(table: pl.DataFrame, columns: Mapping[str, str]) -> pl.DataFrame:
    known = (*REQUIRED, *OPTIONAL)
    have = ", ".join(table.columns) or "no columns"
    for name, theirs in columns.items():
        if name not in known:
            raise ConfigError(
                f"--columns maps froude's names, but {name!r} is none; known: {', '.join(known)}"
            )
        if theirs not in table.columns:
            raise ConfigError(f"column {theirs!r} (for {name}) is missing; the file has: {have}")
    mapping = {name: columns.get(name, name) for name in known}
    for name in REQUIRED:
        if mapping[name] not in table.columns:
            raise ConfigError(
                f"column {name!r} is missing; the file has: {have}. Say which it is: --columns {name}=…"
            )
    named = table.select(
        pl.col(theirs).alias(name) for name, theirs in mapping.items() if theirs in table.columns
    )
    # both letters that look like mu
    letters = pl.col("^parametrization$").cast(pl.String).str.to_lowercase().str.replace("^(μ|µ)", "mu")
    return named.with_columns(letters)


def _check(named: pl.DataFrame, name: str, source: str) -> None:
    """ConfigError where an optional column has another type than it must, or values out of range."""
    column = named[name]
    kind = records.TRIALS.field(name).type
    if name == "status":
        odd = column.cast(pl.String).filter(~column.cast(pl.String).is_in(STATUSES).fill_null(False))
        if odd.len():
            raise ConfigError(
                f"{source}: column 'status' must be one of {', '.join(STATUSES)}, but holds {odd[0]!r}; correct it"
            )
    if name == "parametrization":
        odd = column.filter(~column.is_in(PARAMETRIZATIONS).fill_null(True))
        if odd.len():
            raise ConfigError(
                f"{source}: column 'parametrization' must be sp or mup, but holds {odd[0]!r}; correct it"
            )
    if kind == pa.string() or name == "loss":
        return
    if column.dtype != pl.Null and not column.dtype.is_numeric():
        raise ConfigError(f"{source}: column {name!r} must be numeric, but is {column.dtype}; convert it")
    values = column.cast(pl.Float64)
    least = values >= 0 if name in MAY_BE_ZERO else values > 0
    bad = (values.is_not_null() & ~(least & values.is_finite())).arg_true()
    if bad.len():
        rule = "zero or more" if name in MAY_BE_ZERO else "positive"
        raise ConfigError(
            f"{source}: column {name!r} must be {rule} and finite, but row {bad[0]} holds {column[int(bad[0])]!r}; "
            "correct it, or leave it empty"
        )
    if kind == pa.int64():
        whole = values.round()
        wrong = ((whole - values).abs() > 0.005 * values) | (values >= 2.0**63)
        broken = (values.is_not_null() & wrong).arg_true()
        if broken.len():
            raise ConfigError(
                f"{source}: column {name!r} must hold whole counts below 2^63, but row {broken[0]} holds "
                f"{column[int(broken[0])]!r}; write 1.3 billion as 1300000000 or 1.3e9"
            )


def _names(rows: pl.DataFrame, source: str) -> pl.DataFrame:
    """The rows with a `run` of their own each and the `trial` that computed it; ConfigError where one comes twice."""
    rows = rows.with_row_index("_row")
    if "run" not in rows.columns:
        rows = rows.with_columns(
            run="row" + pl.col("_row").cast(pl.String).str.zfill(math.ceil(math.log10(rows.height + 1)))
        )
        same = [name for name in rows.columns if name not in ("_row", "run")]
    else:
        if rows["run"].null_count():
            raise ConfigError(
                f"{source}: column 'run' must name every run, but is empty in a row; fill it in"
            )
        rows = rows.with_columns(pl.col("run").cast(pl.String))
        same = ["run", "tokens"]
    twice = rows.filter(pl.struct(same).is_duplicated())
    if twice.height:
        what = f"run {twice['run'][0]!r}" if "run" in same else "one run"
        raise ConfigError(
            f"{source}: a run must come once for each number of tokens, but rows {twice['_row'][0]} and "
            f"{twice.filter(pl.struct(same) == pl.struct(same).first())['_row'][1]} are both {what} at "
            f"{twice['tokens'][0]:g} tokens; drop one, or name the runs apart"
        )
    trial = (
        pl.col("trial").cast(pl.String).fill_null(pl.col("run")) if "trial" in rows.columns else pl.col("run")
    )
    several = pl.col("run").is_duplicated()
    at = pl.concat_str(
        "run", pl.lit("@"), pl.col("tokens").cast(pl.Float64).round().cast(pl.Int64).cast(pl.String)
    )
    return rows.with_columns(trial=trial, run=pl.when(several).then(at).otherwise(pl.col("run"))).drop("_row")
