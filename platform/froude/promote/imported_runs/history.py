"""Runs that froude did not train: a study of them, and what its rows can tell each law."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from froude import schemas
from froude.config import ConfigError, Data, Run
from froude.laws.lr.levels import SAME
from froude.parametrizations import STANDARD
from froude.promote.imported_runs import repeated_data
from froude.promote.imported_runs.points import POINT, alike, run_name, with_horizon
from froude.promote.imported_runs.run_table import SETTINGS
from froude.promote.imported_runs.run_table import read as read_table
from froude.schedules import SCHEDULES
from froude.store import Location, probe_writable, reported
from froude.study import Study

ROLE = "history"
REPORT = "report.html"
RATES = 3  # that make a curve of loss against learning rate
MANY = 0.5  # of a setting's runs that diverged, from which on the others are the lucky ones
#: Schedules under which a checkpoint is the end of a shorter run, by the names that trainers give them.
STEADY = r"(?i)^(constant|inv(erse)?[-_ ]?sqrt|noam|schedule[-_ ]?free)"
_TOLD = {name: f"_{name}" for name in SETTINGS}
#: What rows must say of a run to tell a role.
TOLD = {"search": ("lr", "batch", "schedule"), "lr_transfer": ("lr", "width")}


def make_study(
    source: str,
    out: str | Location,
    *,
    columns: Mapping[str, str] | None = None,
    target: Run | None = None,
    fresh: bool = False,
) -> Study:
    """Write a study of the runs in a CSV, Parquet or JSON file, one row a run or a checkpoint of one, and return it.

    `columns` maps froude's names (those of `trials()`) to the file's, where they differ, or to "" to ignore a column;
    params, tokens and loss must be there, batch is in tokens; a column `loss_<name>` has losses on another validation
    set. Rows of one `run` at several tokens are one trial. A null, NaN or infinite loss means diverged. `target` is
    what the study is for. `fresh` replaces a study that was made of a table and that nothing was added to; one of the
    same table stays. ConfigError for a file of another kind, a missing column, a value out of range, rows that come
    twice, and where there is anything else at `out` already.
    """
    place = Location.parse(out)
    study = Study(place)
    goes_on = not fresh and study.exists and _of_table(study)  # promoted since, maybe
    if not goes_on and not _replaceable(study):
        what = "more than a study that was made of a table" if fresh else "something"
        raise ConfigError(
            f"a study of imported runs must be new, but there is {what} at {place} already; choose another directory"
        )
    read = read_table(source, columns or {})
    stage = {"role": ROLE, "trials": read.rows["trial"].n_unique(), "extends": False}
    rows = read.rows.with_columns(stage=pl.lit(ROLE))
    probe_writable(place)
    content: dict[str, Any] = {
        "froude": "study",
        "schema": 1,
        "space": place.name,
        "seed": 0,
        "stages": {ROLE: stage | ({"repeated": read.repeated} if read.repeated else {})},
        "source": Location.parse(source).name,
        "table": {"columns": read.columns, "ignored": read.ignored, "dropped": read.dropped},
    }
    if target is not None:
        content["target"] = target.to_dict()
    tables = {"trials": rows.to_arrow().cast(schemas.TRIALS)}
    if read.sets.height:
        tables["evals"] = read.sets.to_arrow().cast(schemas.EVALS)
    files = {f"{kind}/{ROLE}.parquet": schemas.to_bytes(table) for kind, table in tables.items()}
    files["study.json"] = json.dumps(content, indent=1).encode() + b"\n"
    if goes_on:
        if all((place / name).exists() and (place / name).read() == held for name, held in files.items()):
            return study
        raise ConfigError(
            f"a study of imported runs must be new, but there is one of another table at {place} already; choose "
            "another directory" + (", or replace that study with --fresh" if _replaceable(study) else "")
        )
    with reported(place, "a study must be writable"):
        (place / REPORT).delete()  # of the study that this one replaces
        (place / "evals" / f"{ROLE}.parquet").delete()
        for name, held in files.items():
            (place / name).replace(held)
    return study


def _replaceable(study: Study) -> bool:
    """Whether there is nothing at the study's place but what `make_study` writes, and a report of it."""
    return set(study.location.children()) <= {"study.json", "trials", "evals", REPORT} and _of_table(study)


def _of_table(study: Study) -> bool:
    """Whether the study's rows are those of a table alone."""
    if any(set((study.location / kind).children()) - {f"{ROLE}.parquet"} for kind in ("trials", "evals")):
        return False
    # `study.json` comes last: without it, this is what an import left that was ended before.
    return not study.exists or set(study.meta.get("stages", {})) == {ROLE}


def holds_table(meta: Mapping[str, Any]) -> bool:
    """Whether the study of this study.json was made of a table."""
    return any(stage.get("role") == ROLE for stage in meta.get("stages", {}).values())


def as_planned(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows, a diverged one with the tokens of the run that it was to be: it says how far it came.

    Those are the least to which a run of its size, width and batch finished that are not less than its own; where there
    is none it stays.
    """
    if not (rows["status"] == "diverged").any():
        return rows
    shared = ["params", "width", "batch"]
    keyed = rows.with_columns(pl.col(shared).fill_null(-1).name.prefix("_"))
    by = [f"_{name}" for name in shared]
    ends = keyed.filter(pl.col("status") == "finished").select(*by, _end="tokens").unique().sort("_end")
    found = (
        keyed.with_row_index("_at")
        .with_columns(_near=(pl.col("tokens") / (1 + SAME)).ceil().cast(pl.Int64))
        .sort("_near")
        .join_asof(ends, left_on="_near", right_on="_end", by=by, strategy="forward", check_sortedness=False)
        .sort("_at")["_end"]
    )
    moved = pl.when(pl.col("status") == "diverged").then(found).fill_null(pl.col("tokens"))
    return rows.with_columns(tokens=moved)


def best(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows for the loss law: of each size and horizon all seeds of the settings with the least mean loss.

    Settings that diverge often (MANY) are passed over where another does not. Of a point at which every run diverged
    these are kept, so that nobody is told to run it again.
    """
    finished = pl.col("status") == "finished"
    steady = finished & ~pl.col("_shaky")
    used = steady | (finished & ~steady.any().over(POINT))
    marked = _marked(rows)
    mean = pl.when(finished).then("loss").mean().over(*POINT, *_TOLD.values())
    marked = marked.with_columns(_mean=pl.when(used).then(mean))
    least = pl.col("_mean") == pl.col("_mean").min().over(POINT)
    kept = marked.filter(least.fill_null(value=False) | ~finished.any().over(POINT))
    return kept.select(rows.columns)


def _marked(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows that count, their horizons and settings (`_TOLD`), and whether many runs of these diverged (`_shaky`).

    An empty cell is what the others of the same size and horizon say, where they say one thing.
    """
    ended = with_horizon(rows.filter(pl.col("status").is_in(["finished", "diverged"])))
    told = ended.with_columns(alike(ended[name]).alias(key) for name, key in _TOLD.items())
    told = told.with_columns(
        pl.when((pl.col(key).min() == pl.col(key).max()).over(POINT))
        .then(pl.col(key).max().over(POINT))
        .otherwise(key)
        .alias(key)
        for key in _TOLD.values()
    )
    share = (pl.col("status") == "diverged").mean().over(*POINT, *_TOLD.values())
    return told.with_columns(_shaky=share >= MANY)


def doubts(rows: pl.DataFrame, stages: Mapping[str, Mapping[str, Any]] | None = None) -> tuple[str, ...]:
    """Why a forecast from these rows, of a study of these stages, is not to be certified.

    Runs not told apart, points of lucky survivors, checkpoints in the middle of a decay, and repeated data.
    """
    repeated = repeated_data.doubts((stages or {}).get(ROLE, {}))
    return (*_untold(rows), *_survivors(rows), *_undecayed(rows), *repeated)


def _undecayed(rows: pl.DataFrame) -> tuple[str, ...]:
    """The reason where checkpoints are no ends: their rate had still to fall.

    Rows that tell the share of their tail (`decay_fraction`), of a schedule that has one, are branches that decayed to
    their ends.
    """
    falling = ~pl.col("schedule").str.contains(STEADY)
    tailless = [name for name, spec in SCHEDULES.items() if not spec.has_tail]
    whole = (pl.col("decay_fraction") > 0) & (pl.col("decay_fraction") < 1)
    whole &= ~pl.col("schedule").str.to_lowercase().is_in(tailless).fill_null(False)
    finished = rows.filter(pl.col("status") == "finished").with_columns(_name=run_name())
    early = finished.filter(
        falling & ~whole.fill_null(False) & (pl.col("tokens") < pl.col("tokens").max().over("_name"))
    ).sort("_name", "tokens")
    if early.is_empty():
        return ()
    first = early.row(0, named=True)
    return (
        f"checkpoints before the end of a run count as ends ({early.height} of these, e.g. run {first['_name']!r} "
        f"at {first['tokens']:g} tokens, schedule {first['schedule']}), but their rate had still to fall, so their "
        "losses are too high: give the last row of each run only",
    )


def _survivors(rows: pl.DataFrame) -> tuple[str, ...]:
    """The reason where at some points every setting diverges often."""
    finished = _marked(rows).filter(pl.col("status") == "finished")
    alone = finished.filter(pl.col("_shaky").all().over(POINT)).sort(POINT)
    if alone.is_empty():
        return ()
    first, points = alone.row(0, named=True), alone.select(POINT).n_unique()
    where = "1 size and horizon" if points == 1 else f"{points} sizes and horizons"
    return (
        f"at {where} (e.g. params {first['params']:g}, tokens {first['tokens']:g}) at least half "
        "of the runs of each setting diverged, and the losses are those of the luckier ones: add runs that finish, at "
        "a lower rate or with a longer warmup, or leave these out",
    )


def _untold(rows: pl.DataFrame) -> tuple[str, ...]:
    """The reason where the table does not say how runs differ."""
    same = [*POINT, *_TOLD.values(), "seed"]
    finished = _marked(rows).filter(pl.col("status") == "finished")
    untold = finished.filter(pl.struct(same).is_duplicated()).sort(POINT)
    if untold.is_empty():
        return ()
    first = untold.row(0, named=True)
    points = untold.select(POINT).n_unique()
    return (
        f"the table does not say how several runs of one size and horizon differ ({points} of these, e.g. params "
        f"{first['params']:g}, tokens {first['tokens']:g}): badly tuned ones may be averaged as seeds; map lr, seed, "
        "or run",
    )


def unnamed_data(stages: Mapping[str, Any], run: Run) -> str:
    """What a run that froude would train is on, in words, where its study is a table of runs and it names no data."""
    if set(stages) != {ROLE} or run.trainer.command or run.data != Data():
        return ""
    return (
        f"the target names none, so `froude train` would train it on {run.data.source}, whatever the table's runs were "
        "trained on; name them under [data] in the target, or promote with --for external"
    )


def rates(
    rows: pl.DataFrame, parametrization: str, target: Run | None = None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows for the transfer of the learning rate: the horizon and batch at which most widths have 3 rates or more.

    Rows that do not name their parametrization count as standard (SP). Of several such horizons it is the longest.
    Where some rows are of the target's optimizer or schedule, those of others are left out. The second frame has the
    curves of these widths at other horizons, which show whether the optimum moves; another checkpoint of the same run
    would not.
    """
    own = rows.filter(
        pl.col("parametrization").fill_null(STANDARD.name) == parametrization,
        pl.col("width").is_not_null(),
        pl.col("lr").is_not_null(),
    )
    own = own.with_columns(alike(own["lr"]))
    if target is not None:
        own = _of_targets(
            _of_targets(own, "optimizer", target.optimizer.name), "schedule", target.schedule.name
        )
    curves = own.filter(pl.col("lr").n_unique().over("tokens", "batch", "width") >= RATES)
    widths = curves.with_columns(_widths=pl.col("width").n_unique().over("tokens", "batch"))
    ranked = widths.sort("_widths", "tokens", "batch", descending=True, nulls_last=True).head(1)
    if ranked.is_empty():
        return curves, curves
    horizon, batch = ranked.select("tokens", "batch").row(0)
    curves = curves.filter(pl.col("batch").eq_missing(pl.lit(batch, pl.Int64)))
    here = curves.filter(pl.col("tokens") == horizon)
    others = curves.filter(pl.col("width").is_in(here["width"].implode())).join(here, on="trial", how="anti")
    return here, others.filter(pl.col("lr").n_unique().over("tokens", "width") >= RATES)


def _of_targets(rows: pl.DataFrame, column: str, wanted: str) -> pl.DataFrame:
    """Rows that have the target's value or do not say, if any has it; else all."""
    same = pl.col(column).str.to_lowercase() == wanted.lower()
    return rows.filter(same | pl.col(column).is_null()) if rows.filter(same).height else rows


def remedy(rows: pl.DataFrame, target: Run, missing: Sequence[str]) -> str:
    """What a table must say, or have, so that its rows tell the roles that are missing."""
    asked = dict.fromkeys(name for role in missing for name in TOLD.get(role, ()))
    columns = [name for name in asked if rows[name].is_null().all()]
    said = [f"map {', '.join(columns)}"] if columns else []
    kinds = sorted(rows["parametrization"].fill_null(STANDARD.name).unique())
    if "lr_transfer" in missing and target.parametrization not in kinds:
        said.append(
            f"map parametrization, or set the target's (it has {target.parametrization}, the rows "
            f"{', '.join(kinds)}; those that name none count as {STANDARD.name})"
        )
    if said:
        return "; ".join(said)
    wanted = {
        "search": f"finished runs of the target's schedule, {target.schedule.name}, that tell rate and batch",
        "lr_transfer": f"{RATES} rates or more of a width, all at one horizon and batch",
    }
    return "add " + ", and ".join(wanted.get(role, "finished runs of several sizes") for role in missing)


def settings(rows: pl.DataFrame, target: Run | None) -> pl.DataFrame:
    """Rows that beta2 and warmup can be taken from; what a table does not say of them is as in the target."""
    if target is None:
        return rows.clear()
    share = target.schedule.warmup_tokens / target.tokens
    return rows.with_columns(
        # At another batch as at the target's: by one half-life in tokens.
        pl.col("beta2").fill_null(target.optimizer.beta2 ** (pl.col("batch") / target.batch).fill_null(1.0)),
        pl.col("warmup_tokens").fill_null((share * pl.col("tokens")).round().cast(pl.Int64)),
    )


def untold(rows: pl.DataFrame) -> frozenset[tuple[str, str]]:
    """Run and name of each setting that `settings` takes from the target, since the table does not tell it."""
    return frozenset(
        (run, name)
        for name in ("beta2", "warmup_tokens")
        for run in rows.filter(pl.col(name).is_null())["run"]
    )
