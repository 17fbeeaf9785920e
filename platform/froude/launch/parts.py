"""A finished trial's files in its study, and how a sweep reads them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from froude import records
from froude.config import ConfigError
from froude.space import Trial
from froude.store import Location, reported

_KEY = b"froude.trial"
_READERS = 16  # threads: parts are small, so on S3 a read is one round trip
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Stored:
    """A trial as the study has it: its description and its rows of `Study.trials()`."""

    trial: Trial
    rows: pa.Table

    @property
    def failed(self) -> bool:
        return "failed" in self.rows["status"].to_pylist()


def write(study: Location, trial: Trial, *, trials: Rows, steps: Rows = (), evals: Rows = ()) -> None:
    """Write a trial's metrics, then its rows with its whole description: with those it is in the study.

    Trials are computed anew after a failure only, so what is replaced was never read.
    """
    name = f"{trial.name}.parquet"
    if steps:
        (study / "steps" / name).replace(records.to_bytes(records.table(records.STEPS, steps)))
    if evals:
        (study / "evals" / name).replace(records.to_bytes(records.table(records.EVALS, evals)))
    table = records.table(records.TRIALS, trials).replace_schema_metadata({_KEY: trial.to_json().encode()})
    (study / "trials" / name).replace(records.to_bytes(table))


def write_failed(study: Location, trial: Trial, *, error: str, attempts: int) -> None:
    """Record a trial that raised an error in each of its attempts: a row per run, status `failed`."""
    from froude.train.loop import describe

    told = {
        "status": "failed",
        "error": error,
        "reason": error,
        "attempts": attempts,
        "trial": trial.name,
        "time": datetime.now(UTC),
    }
    write(study, trial, trials=[{**describe(run), **told, "workers": run.max_workers} for run in trial.runs])


def read(study: Location, name: str) -> Stored:
    """The stored trial of this name; ConfigError if the file is none that a sweep wrote."""
    place = study / "trials" / f"{name}.parquet"
    with reported(place, "a study must be readable"):
        content = place.read()
    try:
        table = records.table_of(content)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(f"a trial must be a Parquet file, but {place} is not: {error}; delete it") from None
    metadata = table.schema.metadata or {}
    known = {field.name: field.type for field in records.TRIALS}
    if _KEY not in metadata or any(known.get(field.name) != field.type for field in table.schema):
        raise ConfigError(
            f"a trial must have been written by this version's sweep, but {place} was not; use --fresh"
        )
    # A version before this one may not have known all columns.
    columns = {
        name: table[name] if name in table.column_names else pa.nulls(table.num_rows, kind)
        for name, kind in known.items()
    }
    return Stored(Trial.from_json(metadata[_KEY].decode()), pa.table(columns, schema=records.TRIALS))


def read_all(study: Location) -> dict[str, Stored]:
    """All stored trials by name."""
    with reported(study, "a study must be readable"):
        found = (study / "trials").children()
    names = [name.removesuffix(".parquet") for name in found if name.endswith(".parquet")]
    with ThreadPoolExecutor(_READERS) as pool:
        return dict(zip(names, pool.map(lambda name: read(study, name), names), strict=True))
