"""Tables of runs out of what trackers keep on disk: W&B's offline folders, MLflow's stores; one row a run.

Settings (config, params) keep their names; so do final values (summary, metrics), but for names that both have, which
are `summary.NAME` or `metric.NAME`: a rate that was set is not the one that was logged last.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

import polars as pl

from froude.config import ConfigError
from froude.promote.imported_runs import wandb_files
from froude.store import Location

DATABASES = (".db", ".sqlite", ".sqlite3")
ENDED = {0: "finished", None: "running"}  # by exit code; others failed


def read(source: Location) -> pl.DataFrame | None:
    """The table at a place that is a tracker's; None for another place."""
    if source.name.endswith(".wandb"):
        return _table(_of_wandb(source), source)
    if source.name.endswith(DATABASES) and source.exists():
        return _table(_of_mlflow(f"sqlite:///{source.path.resolve()}"), source)
    if source.is_local and source.path.is_dir():
        if next(source.path.glob("*/meta.yaml"), None):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # no longer written, but still read
            return _table(_of_mlflow(source.path.resolve().as_uri()), source)
        if next(source.path.rglob("*.wandb"), None):
            return _table(_of_wandb(source), source)
    return None


def _of_wandb(source: Location) -> list[dict[str, Any]]:
    runs = wandb_files.read(source)
    named = Counter(run.name for run in runs)
    rows = []
    for run in runs:
        name = run.name if named[run.name] == 1 else f"{run.name} ({run.id})"
        config, summary = wandb_files.flat(run.config), wandb_files.flat(run.summary)
        rows.append(
            {"run": name, "status": ENDED.get(run.exit_code, "failed"), **_joined(config, summary, "summary")}
        )
    return rows


def _of_mlflow(uri: str) -> list[dict[str, Any]]:
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise ConfigError(
            "an MLflow store needs the package mlflow, which is not installed here; pip install 'froude[mlflow]'"
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
        values = _joined(run.data.params, run.data.metrics, "metric")
        rows.append({"run": name, "status": run.info.status.lower(), **values})
    return rows


def _joined(settings: Mapping[str, Any], finals: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {**settings, **{f"{prefix}.{k}" if k in settings else k: v for k, v in finals.items()}}


def _table(rows: list[dict[str, Any]], source: Location) -> pl.DataFrame:
    if not rows:
        raise ConfigError(f"a table of runs must have rows, but {source} has no run; name another place")
    plain = [{k: json.dumps(v) if isinstance(v, list | dict) else v for k, v in row.items()} for row in rows]
    return pl.from_dicts(plain, infer_schema_length=None, strict=False)
