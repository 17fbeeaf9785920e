"""Somebody's table of runs, from a file to rows with the columns of `trials()`: names, words, numbers, all checked."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from froude import schemas
from froude.config import ConfigError
from froude.laws.stats import frames, mixtures_of_experts
from froude.parametrizations import PARAMETRIZATIONS
from froude.promote.imported_runs import repeated_data, table_file
from froude.promote.imported_runs.set_columns import SET_LOSS, is_set
from froude.promote.imported_runs.table_columns import Table, numbers_of, words_of
from froude.section import listing
from froude.store import Location

REQUIRED = ("params", "tokens", "loss")
MAY_BE_ZERO = ("warmup_tokens", "beta2", "weight_decay", "decay_fraction", "seed", "seconds")
#: The columns that a row's fingerprint is made of: later ones must not change those of runs that were imported before.
MARKED = schemas.TRIALS.names[: schemas.TRIALS.names.index("error") + 1]
STATUSES = ("finished", "diverged", "failed", "pruned", "running")
#: Two runs that agree in these (and in params and tokens) differ by their seed only.
SETTINGS = (
    *("width", "depth", "batch", "lr", "warmup_tokens", "beta2", "weight_decay"),
    *("optimizer", "schedule", "parametrization", "precision", "head_dim", "context", "vocab"),
    *("corpus", "decay_fraction"),
)
#: What a table may say of a run, besides what is required: columns of `trials()`.
OPTIONAL = (
    *("run", "trial", "status", "params_with_embeddings", "steps"),
    *SETTINGS,
    *("seed", "flops", "seconds"),
)
WORDED = {field.name for field in schemas.TRIALS if field.type == pa.string()}
#: Parameters that a token passes through: the name of ours for a column that `mixtures_of_experts` does not know.
ACTIVE = "active_params"
#: What a tracker or a scheduler (W&B, MLflow, Optuna, Slurm) calls each status, in small letters. Other words are
#: asked about: Ray Tune's "terminated" means finished, and somebody else's that it was killed.
WORDS = {
    **dict.fromkeys(frames.UNFINISHED, "failed"),
    **dict.fromkeys(("fail", "preempting", "revoked"), "failed"),
    **dict.fromkeys(("out_of_memory", "node_fail", "boot_fail", "deadline"), "failed"),
    **dict.fromkeys(("pending", "queued", "scheduled", "waiting", "suspended", "requeued"), "running"),
    **dict.fromkeys(("complete", "completed", "success", "succeeded"), "finished"),
    **{status: status for status in STATUSES},
}


@dataclass(frozen=True)
class Runs:
    """A table's rows with the columns and types of `trials()`, and how they were read.

    `sets` are losses on other validation sets: rows of `evals()` with the set's name for `split`.
    `columns` maps froude's names to the file's, for the columns that were used; `ignored` are the file's other columns,
    `dropped` the names of froude's that the user mapped to nothing; `repeated` is of `repeated_data`.
    """

    rows: pl.DataFrame
    sets: pl.DataFrame
    columns: Mapping[str, str]
    ignored: tuple[str, ...]
    dropped: tuple[str, ...]
    repeated: Mapping[str, float]


def read(source: str, columns: Mapping[str, str]) -> Runs:
    """The runs in a file; ConfigError as `history.make_study` says."""
    content = table_file.read(Location.parse(source))
    table = _renamed(content, columns, source)
    used = {name: table.theirs[name] for name in table.frame.columns}
    rows = _rows(table, source)
    return Runs(
        rows=rows,
        sets=_set_losses(table, rows),
        columns=used,
        ignored=tuple(name for name in content.columns if name not in used.values()),
        dropped=tuple(name for name, theirs in columns.items() if not theirs),
        repeated=_repeated(table, rows),
    )


def _rows(table: Table, source: str) -> pl.DataFrame:
    """The rows, checked; a row without a finite loss is one that diverged."""
    if not table.frame.height:
        raise ConfigError(f"a table of runs must have rows, but {source} has none; name another file")
    empty = pl.from_arrow(schemas.TRIALS.empty_table())
    assert isinstance(empty, pl.DataFrame)
    kinds = empty.schema
    aside = [*_dense(table), *filter(repeated_data.told_by, table.frame.columns)]
    typed = table.frame.select(pl.exclude(*aside, f"^{SET_LOSS.pattern}$")).with_columns(
        status=_status(table)
    )
    counted = typed["status"].is_in(["finished", "diverged"])
    _words(table)
    for name in typed.columns:
        if name not in WORDED:
            numbers = numbers_of(table, name)
            _check(table, name, numbers, counted)
            typed = typed.with_columns(numbers.alias(name))
    _same_units(table, typed, counted)
    lost = ~pl.col("loss").is_finite().fill_null(False)
    turned = lost & (pl.col("status") == "finished")
    typed = _names(typed, source).with_columns(
        status=pl.when(turned).then(pl.lit("diverged")).otherwise(pl.col("status")),
        reason=pl.when(turned)
        .then(pl.lit("no finite loss in the table"))
        .when(pl.col("status").is_in(["diverged", "failed"]))
        .then(pl.lit("its status in the table")),
        last_loss=pl.when(~lost).then(pl.col("loss")),
    )
    typed = typed.with_columns(
        *(
            pl.col(name).round().cast(kind)
            for name, kind in kinds.items()
            if kind == pl.Int64 and name in typed.columns
        ),
        loss=pl.when(pl.col("status") == "finished").then(pl.col("loss")),
    )
    by_size = 6 * pl.col("params").cast(pl.Float64) * pl.col("tokens")
    typed = typed.with_columns(
        flops=pl.col("flops").fill_null(by_size) if "flops" in typed.columns else by_size
    )
    whole = typed.with_columns(
        pl.lit(None, kind).alias(name) for name, kind in kinds.items() if name not in typed.columns
    ).select(list(kinds))
    marks = [
        hashlib.sha256(json.dumps(row, default=str).encode()).hexdigest()[:16]
        for row in whole.select(MARKED).drop("loss", "seconds").iter_rows()
    ]
    return whole.with_columns(fingerprint=pl.Series(marks, dtype=pl.String))


def _renamed(table: pl.DataFrame, columns: Mapping[str, str], source: str) -> Table:
    spoken_for = set(columns.values())
    sets = [name for name in table.columns if is_set(table[name]) and name not in spoken_for]
    sets += [name for name in columns if SET_LOSS.fullmatch(name)]
    telling = [
        name
        for name in table.columns
        if (mixtures_of_experts.told_by(name) or repeated_data.told_by(name)) and name not in spoken_for
    ]
    names = (*REQUIRED, *OPTIONAL, ACTIVE, repeated_data.UNIQUE, repeated_data.EPOCHS, *telling, *sets)
    known = tuple(dict.fromkeys(names))
    have = ", ".join(table.columns) or "no columns"
    for name, theirs in columns.items():
        if name not in known:
            raise ConfigError(
                f"--columns maps froude's names, but {name!r} is not one of them; known: {', '.join(known)}"
            )
        if not theirs and name in REQUIRED:
            raise ConfigError(
                f"--columns may leave out only columns that are not required, but got {name}=; map it"
            )
        if theirs and theirs not in table.columns:
            raise ConfigError(f"column {theirs!r} (for {name}) is missing; the file has: {have}")
    mapping = {name: columns.get(name, name) for name in known}
    needed = [mapping[name] for name in REQUIRED]
    if twice := [theirs for theirs in needed if needed.count(theirs) > 1]:
        both = " and ".join(name for name in REQUIRED if mapping[name] == twice[0])
        raise ConfigError(
            f"--columns must name a column for each, but {twice[0]!r} is {both}; correct one of them"
        )
    for name in REQUIRED:
        if mapping[name] not in table.columns:
            raise ConfigError(
                f"column {name!r} is missing; the file has: {have}. Say which it is: --columns {name}=…"
            )
    named = table.select(
        pl.col(theirs).alias(name) for name, theirs in mapping.items() if theirs in table.columns
    )
    # both letters that look like mu
    letters = pl.col("^parametrization$").str.to_lowercase().str.replace("^(μ|µ)", "mu")
    read = Table(named, source, mapping)
    words = [words_of(read, name) for name in named.columns if name in WORDED]
    return Table(named.with_columns(words).with_columns(letters), source, mapping)


def _status(table: Table) -> pl.Series:
    """The word of ours for each row's status, finished where there is no column of it."""
    frame = table.frame
    if "status" not in frame.columns:
        return pl.repeat("finished", frame.height, eager=True)
    words = frame["status"].str.strip_chars().str.to_lowercase()
    words = words.str.replace(r"^cancelled by .*", "cancelled")  # sacct's
    found = words.replace_strict(WORDS, default=None, return_dtype=pl.String)
    odd = found.is_null().arg_true()
    if odd.len():
        remedy = "correct it, or leave the column out with --columns status= (then every row is finished)"
        rule = f"one of {', '.join(STATUSES)}, or W&B's, MLflow's or Slurm's word for one"
        raise table.error("status", int(odd[0]), rule, remedy)
    return found


def _set_losses(table: Table, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of `evals()` for the columns `loss_<name>`: of each finished run where it has a value."""
    finished = rows["status"] == "finished"
    found = [schemas.EVALS.empty_table()]
    for column in table.frame.columns:
        if not (named := SET_LOSS.fullmatch(column)):
            continue
        losses = numbers_of(table, column)
        if (low := (finished & ~(losses > 0)).fill_null(False).arg_true()).len():
            rule, remedy = (
                "positive (nats per token)",
                f"correct it, or leave the column out with --columns {column}=",
            )
            raise table.error(column, int(low[0]), rule, remedy)
        own = rows.select("run", "tokens", step="steps", attempt=1, split=pl.lit(named[1]), loss=losses)
        own = own.with_columns(time=None, bits_per_byte=None)
        kept = own.filter(finished & losses.is_finite().fill_null(False))
        found.append(kept.select(schemas.EVALS.names).to_arrow().cast(schemas.EVALS))
    frame = pl.from_arrow(pa.concat_tables(found))
    assert isinstance(frame, pl.DataFrame)
    return frame


def _repeated(table: Table, rows: pl.DataFrame) -> dict[str, float]:
    """Which finished rows saw their data too often."""
    names = [name for name in table.frame.columns if repeated_data.told_by(name)]
    numbers = table.frame.select(numbers_of(table, name).alias(name) for name in ("tokens", *names))
    return repeated_data.repeated(numbers, rows["status"] == "finished")


def _dense(table: Table) -> list[str]:
    """The columns that would tell a mixture of experts; ConfigError where one does."""
    names = [name for name in table.frame.columns if mixtures_of_experts.told_by(name)]
    numbers = table.frame.select(numbers_of(table, name).alias(name) for name in ("params", *names))
    mixtures_of_experts.refuse(numbers, pl.repeat(True, numbers.height, eager=True), table.where)
    return names


def _words(table: Table) -> None:
    """ConfigError where a column of words holds one that means nothing here."""
    frame = table.frame
    if "parametrization" in frame.columns:
        odd = (~frame["parametrization"].is_in(list(PARAMETRIZATIONS))).fill_null(False).arg_true()
        if odd.len():
            raise table.error("parametrization", int(odd[0]), listing(PARAMETRIZATIONS), "correct it")
    unnamed = pl.col("run").is_null() | (pl.col("run").cast(pl.String).str.strip_chars() == "")
    if "run" in frame.columns and (odd := frame.select(unnamed).to_series().arg_true()).len():
        raise ConfigError(
            f"{table.column('run')} must name every run, but is empty in row {odd[0] + 1}; fill it in"
        )


def _check(table: Table, name: str, numbers: pl.Series, counted: pl.Series) -> None:
    """ConfigError where numbers are out of the range that their column must have."""
    if name == "loss":
        if (low := (counted & (numbers <= 0)).fill_null(False).arg_true()).len():
            remedy = "correct it, or leave it empty if the run diverged"
            raise table.error(name, int(low[0]), "positive (nats per token)", remedy)
        return
    least = numbers >= 0 if name in MAY_BE_ZERO else numbers > 0
    bad = numbers.is_not_null() & ~(least & numbers.is_finite())
    needed = name in REQUIRED
    if needed:
        bad |= counted & numbers.is_null()
    if (found := bad.arg_true()).len():
        rule = "zero or more" if name in MAY_BE_ZERO else "positive"
        remedy = "correct it, or drop the row" if needed else "correct it, or leave it empty"
        raise table.error(name, int(found[0]), f"{rule} and finite", remedy)
    if schemas.TRIALS.field(name).type == pa.int64():
        wrong = ((numbers.round() - numbers).abs() > 0.005 * numbers) | (numbers >= 2.0**63)
        if (found := wrong.fill_null(False).arg_true()).len():
            remedy = "write 1.3 billion as 1300000000 or 1.3e9"
            raise table.error(name, int(found[0]), "whole counts below 2^63", remedy)


def _same_units(table: Table, typed: pl.DataFrame, counted: pl.Series) -> None:
    """ConfigError where batch · steps is not tokens within 1%: the batch is then in something else."""
    if not {"batch", "steps"} <= set(typed.columns):
        return
    product = typed["batch"] * typed["steps"]
    off = counted & ((product / typed["tokens"] - 1).abs() > 0.01).fill_null(False)
    if (found := off.arg_true()).len():
        row = int(found[0])
        batch, steps, tokens = (typed[name][row] for name in ("batch", "steps", "tokens"))
        raise ConfigError(
            f"{table.column('batch')} must be in tokens, so that batch · steps is tokens within 1%, but "
            f"{table.where(row)} has {batch:g} · {steps:g} against {tokens:g}; convert sequences to tokens"
        )


def _names(rows: pl.DataFrame, source: str) -> pl.DataFrame:
    """The rows with a `run` of their own each and the `trial` that computed it; ConfigError where one comes twice."""
    rows = rows.with_row_index("_row", offset=1)
    if "run" not in rows.columns:
        digits = math.ceil(math.log10(rows.height + 1))
        # From 0, as version 0.1 named them: a recipe may name the rows by their fingerprints.
        rows = rows.with_columns(run="row" + (pl.col("_row") - 1).cast(pl.String).str.zfill(digits))
        same = [name for name in rows.columns if name not in ("_row", "run")]
    else:
        same = ["run", "tokens"]
    twice = rows.filter(pl.struct(same).is_duplicated())
    if twice.height:
        what = f"run {twice['run'][0]!r}" if "run" in same else "one run"
        raise ConfigError(
            f"{source}: a run must appear once for each number of tokens, but rows {twice['_row'][0]} and "
            f"{twice.filter(pl.struct(same) == pl.struct(same).first())['_row'][1]} are both {what} at "
            f"{twice['tokens'][0]:g} tokens; drop one, or give the runs different names"
        )
    trial = pl.col("trial").fill_null(pl.col("run")) if "trial" in rows.columns else pl.col("run")
    several = pl.col("run").is_duplicated()
    at = pl.concat_str("run", pl.lit("@"), pl.col("tokens").round().cast(pl.Int64).cast(pl.String))
    return rows.with_columns(trial=trial, run=pl.when(several).then(at).otherwise(pl.col("run"))).drop("_row")
