"""Tables of runs out of what trackers keep on disk: W&B's offline folders, MLflow's stores; one row a run.

Settings (config, params) keep their names; so do final values (summary, metrics), but for names that both have, which
are `summary.NAME` or `metric.NAME`: a rate that was set is not the one that was logged last.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import polars as pl

from froude.config import ConfigError
from froude.promote.imported_runs import wandb_files
from froude.store import Location

DATABASES = (".db", ".sqlite", ".sqlite3")
OLD_STORES = "MLFLOW_ALLOW_FILE_STORE"
ENDED = {0: "finished", None: "running"}  # by exit code; others failed


def read(source: Location) -> pl.DataFrame | None:
    """The table at a place that is a tracker's; None for another place."""
    if source.name.endswith(".wandb"):
        return _table(_of_wandb(source), source)
    if source.name.endswith(DATABASES) and source.exists():
        _check_database(source)
        return _table(_of_mlflow(f"sqlite:///{source.path.resolve()}"), source)
    if source.is_local and source.path.is_dir():
        if next(source.path.glob("*/meta.yaml"), None):
            with _old_stores():
                return _table(_of_mlflow(source.path.resolve().as_uri()), source)
        if next(source.path.rglob("*.wandb"), None):
            return _table(_of_wandb(source), source)
    return None


@contextmanager
def _old_stores() -> Iterator[None]:
    """MLflow opens a folder, which it no longer wants to write to, only where this variable says so."""
    before = os.environ.get(OLD_STORES)
    os.environ[OLD_STORES] = "true"
    try:
        yield
    finally:
        os.environ.pop(OLD_STORES)
        if before is not None:
            os.environ[OLD_STORES] = before


def _check_database(source: Location) -> None:
    """ConfigError unless MLflow made it: where it finds no tables of its own it would make them."""
    try:
        with closing(sqlite3.connect(f"{source.path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            database.execute("select run_uuid from runs limit 1")
    except sqlite3.Error as error:
        raise ConfigError(
            f"an MLflow store must be a database that MLflow made, but {source} is not: {error}; name another"
        ) from None


def _of_wandb(source: Location) -> list[dict[str, Any]]:
    runs = wandb_files.read(source)
    named = Counter(run.name for run in runs)
    rows = []
    for run in runs:
        name = run.name if named[run.name] == 1 else f"{run.name} ({run.id})"
        config, summary = wandb_files.flat(run.config), wandb_files.flat(run.summary)
        own = {"run": name, "status": ENDED.get(run.exit_code, "failed")}
        rows.append(_joined(own, config, summary, "summary"))
    return rows


def _of_mlflow(uri: str) -> list[dict[str, Any]]:
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise ConfigError(
            "an MLflow store needs the package mlflow, which is not installed here; "
            "pip install -e '.[mlflow]' in froude's checkout"
        ) from None
    runs, token = [], None
    try:
        client = MlflowClient(tracking_uri=uri)
        ids = [each.experiment_id for each in client.search_experiments()]
        while ids:
            page = client.search_runs(ids, page_token=token)
            runs += list(page)
            token = page.token
            if not token:
                break
    except MlflowException as error:
        first = next(iter(str(error).splitlines()), "")
        raise ConfigError(
            f"an MLflow store must be one of this version's, but {uri} is not: {first}; "
            "see `mlflow db upgrade`, or export its runs to a .csv file"
        ) from None
    named = Counter(run.info.run_name for run in runs)
    rows = []
    for run in runs:
        name = run.info.run_name
        name = name if name and named[name] == 1 else f"{name} ({run.info.run_id[:8]})"
        own = {"run": name, "status": run.info.status.lower()}
        rows.append(_joined(own, run.data.params, run.data.metrics, "metric"))
    return rows


def _joined(
    own: dict[str, Any], settings: Mapping[str, Any], finals: Mapping[str, Any], prefix: str
) -> dict[str, Any]:
    """A run's row: what the tracker says of it comes first, and stays where a setting has such a name, too."""
    values = {**settings, **{f"{prefix}.{k}" if k in settings else k: v for k, v in finals.items()}}
    return own | values | own


def _table(rows: list[dict[str, Any]], source: Location) -> pl.DataFrame:
    if not rows:
        raise ConfigError(f"a table of runs must have rows, but {source} has no run; name another place")
    plain = [{k: json.dumps(v) if isinstance(v, list | dict) else v for k, v in row.items()} for row in rows]
    return pl.from_dicts(plain, infer_schema_length=None, strict=False)
