"""What a tracker's place must be, as far as it is known before anything is sent to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from froude.config import ConfigError

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


def check_mlflow(place: str) -> None:
    """ConfigError unless it is a URI of a server or a database: MLflow itself writes no folders any more."""
    if place.partition(":")[0].partition("+")[0] not in (*SERVERS, *DATABASES):
        raise ConfigError(
            f"--track mlflow:URI must be a server or a database, but got {place!r}; "
            "write e.g. mlflow:http://host:5000 or mlflow:sqlite:///mlflow.db"
        )


def check_tensorboard(place: str) -> None:
    """ConfigError unless it is a local folder, or may become one."""
    found = Path(place)
    if "://" in place or (found.exists() and not found.is_dir()):
        raise ConfigError(
            f"--track tensorboard:DIR must be a local folder, but {place} is none; name another"
        )
