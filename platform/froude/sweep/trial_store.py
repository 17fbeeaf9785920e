"""A finished trial's files in its study, and how a sweep reads them back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import pyarrow as pa

from froude import schemas
from froude.config import ConfigError
from froude.material import Material
from froude.runlog import BrokenLog, LogReader
from froude.space import Trial
from froude.store import Location, reported

_MATERIAL = b"froude.material"
_READERS = 16  # threads: parts are small, so on S3 a read is one round trip
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Stored:
    """A trial as the study has it: its description, its rows of `Study.trials()`, and what it was made of.

    `material` is None where that was not recorded: by froude 0.1, and for a trial that failed.
    """

    trial: Trial
    rows: pa.Table
    material: Material | None = None

    @property
    def failed(self) -> bool:
        return "failed" in self.rows["status"].to_pylist()


def write(
    study: Location,
    trial: Trial,
    *,
    trials: Rows,
    steps: Rows = (),
    evals: Rows = (),
    material: Material | None = None,
) -> None:
    """Write a trial's metrics, then its rows with its whole description: with those it is in the study.

    Trials are computed anew after a failure only, so what is replaced was never read; metrics that another one of this
    name left, such as an attempt that was killed, are deleted.
    """
    name = f"{trial.name}.parquet"
    for kind, schema, found in (("steps", schemas.STEPS, steps), ("evals", schemas.EVALS, evals)):
        if found:
            (study / kind / name).replace(schemas.to_bytes(schemas.table(schema, found)))
        else:
            (study / kind / name).delete()
    described = {schemas.TRIAL_KEY: trial.to_json().encode()}
    if material is not None:
        described[_MATERIAL] = material.to_json().encode()
        trials = [{**row, "material": material.digest} for row in trials]
    table = schemas.table(schemas.TRIALS, trials).replace_schema_metadata(described)
    (study / "trials" / name).replace(schemas.to_bytes(table))


def write_failed(study: Location, trial: Trial, *, error: str, attempts: int) -> None:
    """Record a trial that raised an error in each of its attempts: a row per run, status `failed`."""
    write(study, trial, trials=_failed_rows(trial, error, attempts))


def as_failed(trial: Trial) -> Stored:
    """The trial as a stage saw it that was laid out when it had failed."""
    return Stored(
        trial, schemas.table(schemas.TRIALS, _failed_rows(trial, "it failed in an earlier sweep", 1))
    )


def _failed_rows(trial: Trial, error: str, attempts: int) -> Rows:
    from froude.train.rows import describe

    told = {
        "status": "failed",
        "error": error,
        "reason": error,
        "attempts": attempts,
        "trial": trial.name,
        "time": datetime.now(UTC),
    }
    return [{**describe(run), **told, "workers": run.max_workers} for run in trial.runs]


def read(study: Location, name: str, trial: Trial | None = None) -> Stored:
    """The stored trial of this name; ConfigError if no sweep wrote the file.

    `trial` saves parsing its description again.
    """
    place = study / "trials" / f"{name}.parquet"
    with reported(place, "a study must be readable"):
        content = place.read()
    try:
        table = schemas.table_of(content)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(f"a trial must be a Parquet file, but {place} is not: {error}; delete it") from None
    metadata = table.schema.metadata or {}
    try:
        if schemas.TRIAL_KEY not in metadata:
            raise ValueError("no description of a trial")
        rows = schemas.conformed(table, schemas.TRIALS)
    except ValueError:
        raise ConfigError(
            f"a trial must have been written by this version's sweep, but {place} was not; sweep into another "
            "--out"
        ) from None
    material = Material.from_dict(json.loads(metadata[_MATERIAL])) if _MATERIAL in metadata else None
    trial = trial or Trial.from_json(metadata[schemas.TRIAL_KEY].decode())
    return Stored(trial, rows, material)


def read_all(study: Location) -> dict[str, Stored]:
    """All stored trials by name."""
    with reported(study, "a study must be readable"):
        found = (study / "trials").children()
    names = [name.removesuffix(".parquet") for name in found if name.endswith(".parquet")]
    with ThreadPoolExecutor(_READERS) as pool:
        return dict(zip(names, pool.map(lambda name: read(study, name), names), strict=True))


def make_room(study: Location, trial: Trial, material: Material, changed: Stored | None, folder: str) -> None:
    """Retire what the study has under the trial's name that it can't go on with: another trial, `changed`, or a log."""
    if changed:
        retire(study, [changed.trial], folder)
    elif begun_otherwise(study, trial, material):
        retire(study, [trial], folder)


def begun_otherwise(study: Location, trial: Trial, material: Material) -> bool:
    """Whether an earlier trial of this name has left a log that this one can't go on with.

    Such a trial had several workers, and has failed, or was interrupted. This one can't where its settings, corpus or
    code are others, or where it has one worker and so no log. A log that is broken is not judged: who goes on with it
    says so.
    """
    if trial.workers == 1:
        return any((log / "commits").children() for log in _logs(study, trial))
    try:
        head = LogReader(study / "runs" / trial.runs[0].name).head()
    except BrokenLog:
        return False
    before = head.meta.get("material") if head else None
    return head is not None and (
        head.recipe != trial.runs[0].fingerprint
        or bool(before and Material.from_dict(before).changes(material))
    )


def _logs(study: Location, trial: Trial) -> list[Location]:
    """What lies below `runs/` under the names of the trial's runs; its workers may have been more than they are now."""
    there = (study / "runs").children()
    return [study / "runs" / run.name for run in trial.runs if run.name in there]


def retire(study: Location, trials: Iterable[Trial], folder: str) -> None:
    """Move what the study has of these trials to `retired/FOLDER`, which `Study` can read, too.

    A trial's rows go last, and a log's newest record goes first: after an interruption it is found changed, and
    retired, once more.
    """
    for trial in trials:
        runs = (reversed(log.walk()) for log in _logs(study, trial))
        own = [study / kind / f"{trial.name}.parquet" for kind in ("steps", "evals", "trials")]
        for file in chain(*runs, own):
            file.move(study / "retired" / folder / file.url.removeprefix(f"{study.url}/"))
