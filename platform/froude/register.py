"""A register of scores: what each finished study had forecast, and what came, one immutable part a study.

It is read by people and reports only. No fit, forecast or gate looks at it: an interval that had learned from its own
scores could no longer be judged by them.
"""

from __future__ import annotations

import math
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pyarrow as pa

import froude
from froude import schemas
from froude.attempts import history
from froude.config import ConfigError
from froude.promote.forecast import OTHERS, Forecast, score
from froude.promote.promotion import parameters
from froude.promote.recipe import FILE, Recipe, read
from froude.runlog import LogReader
from froude.store import Location, reported
from froude.study import Study
from froude.sweep.spent import proxies_over_target, run_flops

_KEY, SCHEMA = b"froude.score", b"1"
_PART = re.compile(r"[0-9a-f]{64}\.parquet")
_READERS = 16  # threads: parts are small, so on S3 a read is one round trip
_MEASURED, _JUDGED = ("forecast", "low", "high", "level", "loss", "relative_error"), ("inside", "certified")


def opened(url: str, study: Location) -> Location:
    """The register at this URL; ConfigError where it is no store, holds other files, or lies in the study."""
    register = Location.parse(url)
    if register.within(study):
        raise ConfigError(
            f"a register must be outside the studies that it scores, but {register} lies in {study}; name another"
        )
    _parts(register)
    return register


def keep(register: Location, study: Study, *, trust: bool = False) -> bool:
    """Put the study's score there unless it is there already; False if there is no score to keep, or not yet.

    `trust` lets a model from outside the package be built, to count it. ConfigError if the register can't be written,
    or has something else in the part's place. A recipe or run that can't be read has no score: the report says why.
    """
    try:
        recipe = read(study.location / FILE)
        LogReader(study.location / "runs" / recipe.run.name).head_under(recipe.sha256)
    except ConfigError:
        return False
    place = register / f"{recipe.sha256}.parquet"
    with reported(register, "a register must be readable"):
        there = place.exists()
    if not there:
        try:
            row = row_of(study, recipe, trust=trust)
        except (pl.exceptions.PolarsError, OSError):
            return False
        if row is None:
            return False
        table = schemas.table(schemas.SCORES, [row]).replace_schema_metadata({_KEY: SCHEMA})
        with reported(register, "a register must be writable"):
            place.create(schemas.to_bytes(table))
    _read(place)  # whoever was first, it is this study's score
    return True


def row_of(study: Study, recipe: Recipe, *, trust: bool = False) -> dict[str, Any] | None:
    """The study's row of SCORES; None before its run is finished with a finite loss."""

    run, forecast = recipe.run, recipe.forecast
    past = history(study, run.name)
    if past is None or past.loss is None or not (math.isfinite(past.loss) and past.loss > 0):
        return None
    steps = study.steps(trials=False).filter(pl.col("run") == run.name).sort("tokens").collect()
    scored = score(forecast, past.loss, steps)
    params = parameters(run, trust=trust)
    sealed = datetime.fromisoformat(recipe.sealed_at)
    return {
        "study": study.location.name,
        "run": run.name,
        "recipe": recipe.sha256,
        "fingerprint": run.fingerprint,
        "sealed_at": sealed if sealed.tzinfo else sealed.replace(tzinfo=UTC),
        "finished_at": LogReader(study.location / "runs" / run.name).records()[-1].time,
        "version": froude.__version__,
        "model": run.model.factory,
        "corpus": run.data.corpus,
        "params": params,
        "tokens": run.tokens,
        "batch": run.phases.mean,
        "flops": run_flops(run),
        "forecast": forecast.loss,
        **{name: getattr(forecast, name) for name in ("low", "high", "level", "certified", "status")},
        **{name: _finite(forecast, name) for name in (*OTHERS, "free_loss")},
        "loss": scored.loss,
        "inside": scored.inside,
        "relative_error": scored.relative_error,
        "erred": scored.erred,
        **{
            f"reach_{axis}": recipe.extrapolation.get(axis)
            for axis in ("params", "tokens", "compute", "batch")
        },
        "proxy_cost": _proxy_cost(study, recipe),
        "profile": recipe.profile,
        "overrides": list(recipe.overrides),
        "trainer": recipe.trainer or None,
    }


def scores(register: Location) -> pl.DataFrame:
    """All rows of the register with the columns of `schemas.SCORES`, in the order of their seals.

    ConfigError for a file that is no score.
    """
    with ThreadPoolExecutor(_READERS) as pool:
        parts = list(pool.map(lambda name: _read(register / name), _parts(register)))
    frame = pl.from_arrow(pa.concat_tables([schemas.SCORES.empty_table(), *parts]))
    assert isinstance(frame, pl.DataFrame)
    return frame.sort("sealed_at", "recipe")


def _parts(register: Location) -> list[str]:
    """Names of the register's parts; ConfigError for any other file there."""
    with reported(register, "a register must be readable"):
        names = [name for name in register.children() if not name.startswith(".")]
    if other := [name for name in names if not _PART.fullmatch(name)]:
        raise ConfigError(
            f"a register must hold only its own parts, but {register} has {other[0]}; move it or name another folder"
        )
    return names


def _read(place: Location) -> pa.Table:
    """A part's one row; ConfigError if it is none."""
    with reported(place, "a register must be readable"):
        content = place.read()
    try:
        found = schemas.table_of(content)
        if (found.schema.metadata or {}).get(_KEY) != SCHEMA:
            raise ValueError(f"it is not marked as a score of schema {SCHEMA.decode()}")
        known = [
            name for name in found.column_names if name in schemas.SCORES.names
        ]  # a later version may have more
        table = schemas.conformed(found.select(known), schemas.SCORES)
        rows = table.to_pylist()
        if [row["recipe"] for row in rows] != [place.name.partition(".")[0]]:
            raise ValueError("it is not the score of the recipe that it is named after")
        if not all(isinstance(rows[0][name], float) and math.isfinite(rows[0][name]) for name in _MEASURED):
            raise ValueError(f"{', '.join(_MEASURED)} must be finite")
        if any(rows[0][name] is None for name in _JUDGED):
            raise ValueError(f"{' and '.join(_JUDGED)} must be true or false")
        return table
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(
            f"a register's part must be a score that froude wrote, but {place} is not: {_line(error)}; move it away"
        ) from None


def _proxy_cost(study: Study, recipe: Recipe) -> float | None:
    try:
        return proxies_over_target(study, recipe.run) or None
    except ConfigError:  # a trial that can't be read
        return None


def _finite(forecast: Forecast, name: str) -> float | None:
    value = float(getattr(forecast, name))
    return value if math.isfinite(value) else None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
