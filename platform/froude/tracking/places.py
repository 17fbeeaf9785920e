"""What a tracker's place must be, as far as it is known before anything is sent to it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Literal

from froude.config import ConfigError
from froude.section import without_secrets

SERVERS = ("http", "https", "databricks")
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")


def mode() -> Literal["online", "offline"]:
    """Whether W&B speaks to its service, by its own settings, of which WANDB_MODE comes first."""
    import wandb

    said = os.environ.get("WANDB_MODE") or wandb.setup().settings.mode
    return "offline" if said in ("offline", "dryrun", "disabled") else "online"


def check_wandb(place: str) -> None:
    """ConfigError where W&B is online and nobody is logged in."""
    import wandb

    if mode() == "online" and not wandb.api.api_key:
        raise ConfigError(
            "--track wandb needs an account where it is online, but nobody is logged in; run `wandb login`, set "
            "WANDB_API_KEY, or set WANDB_MODE=offline"
        )
    # W&B itself would write to a temporary folder instead.
    _check_folder("wandb, which writes below WANDB_DIR,", Path(os.environ.get("WANDB_DIR") or "."))


def check_mlflow(place: str) -> None:
    """ConfigError unless it is a URI of a server or a database: MLflow itself writes no folders any more."""
    if place.partition(":")[0].partition("+")[0] not in (*SERVERS, *DATABASES):
        raise ConfigError(
            f"--track mlflow:URI must be a server or a database, but got {without_secrets(place)!r}; "
            "write e.g. mlflow:http://host:5000 or mlflow:sqlite:///mlflow.db"
        )
    if place.startswith("sqlite") and (name := place.partition("///")[2].partition("?")[0]):
        _check_sqlite(Path(name))


def _check_sqlite(file: Path) -> None:
    """ConfigError unless there is an SQLite database, or may be one: MLflow would try for minutes."""
    _check_folder("mlflow:sqlite:///FILE", file.parent)
    try:
        if file.exists():
            with contextlib.closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=rw", uri=True)) as found:
                found.execute("PRAGMA schema_version")
    except sqlite3.Error as error:
        raise ConfigError(
            f"--track mlflow:sqlite:///FILE must be an SQLite database, but {file} is none ({error}); name another"
        ) from None


def check_tensorboard(place: str) -> None:
    """ConfigError unless it is a local folder, or may become one."""
    found = Path(place)
    if "://" in place or (found.exists() and not found.is_dir()):
        raise ConfigError(
            f"--track tensorboard:DIR must be a local folder, but {place} is none; name another"
        )
    _check_folder("tensorboard:DIR", found)


def _check_folder(what: str, folder: Path) -> None:
    """ConfigError unless the folder is there, or can be made, and may be written to."""
    why = "it may not be written to"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError as error:
        writable, why = False, error.strerror or type(error).__name__
    if not writable:
        raise ConfigError(
            f"--track {what} must have a folder that can be written to, but {folder} is none ({why}); name another"
        )
