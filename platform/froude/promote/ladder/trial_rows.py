"""Do the rows that laws are fitted to say what their trials' own descriptions and evaluations say?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from froude import schemas
from froude.config import ConfigError, Run
from froude.space import Trial
from froude.store import Location, reported
from froude.study import Study

#: Columns that laws see; 0.1 described them as this version does, but for the fingerprint.
JUDGED = (
    *("fingerprint", "width", "depth", "tokens", "steps", "lr", "warmup_tokens", "beta2", "weight_decay"),
    *("optimizer", "schedule", "parametrization", "seed"),
)
_READERS = 16  # threads: on S3 each file is one round trip


def contradictions(study: Study, judged: Sequence[str] = JUDGED) -> list[str]:
    """Where a stored trial's row contradicts its description, in the columns `judged`, or its last evaluation.

    Rows of a table have no description, and rows of earlier versions lack some columns: those are not judged.
    ConfigError for a file that is no trial.
    """
    place = study.location / "trials"
    with reported(place, "a study must be readable"):
        files = [place / name for name in place.children() if name.endswith(".parquet")]
    with ThreadPoolExecutor(_READERS) as pool:
        tables = list(pool.map(_described, files))
    losses = _last_losses(study) if any(trial for trial, _ in tables) else {}
    return [
        wrong
        for trial, rows in tables
        if trial is not None
        for run, row in zip(trial.runs, rows, strict=False)
        for wrong in _of_row(run, row, _due(run, row, judged, losses))
    ]


def _described(file: Location) -> tuple[Trial | None, list[dict[str, Any]]]:
    with reported(file, "a study must be readable"):
        content = file.read()
    try:
        told = (pq.read_schema(pa.BufferReader(content)).metadata or {}).get(schemas.TRIAL_KEY)
        if told is None:  # a table's rows, of which there may be millions
            return None, []
        return Trial.from_json(told.decode()), schemas.table_of(content).to_pylist()
    except (pa.ArrowException, ValueError) as error:
        raise ConfigError(f"a trial must be a Parquet file, but {file} is not: {error}; restore it") from None


def _last_losses(study: Study) -> dict[tuple[str, int], float]:
    """The validation loss by run and step."""
    evals = study.evals().filter(pl.col("split") == "validation").select("run", "step", "loss").collect()
    return {(run, step): loss for run, step, loss in evals.iter_rows()}


def _due(
    run: Run, row: dict[str, Any], judged: Sequence[str], losses: dict[tuple[str, int], float]
) -> dict[str, Any]:
    """What the row must say."""
    from froude.train.rows import describe

    told = describe(run)
    due = {name: told[name] for name in judged}
    if row.get("status") == "finished" and (run.name, run.steps) in losses:
        due["loss"] = losses[run.name, run.steps]
    return due


def _of_row(run: Run, row: dict[str, Any], due: dict[str, Any]) -> Iterator[str]:
    for name, value in due.items():
        earlier = run.proxy_fingerprint_0_1 if name == "fingerprint" else None
        if row.get(name) not in (None, value, earlier):
            source = "its last evaluation" if name == "loss" else "its description"
            yield f"the row of trial {run.name} has {name} {row[name]}, where {source} has {value}"
