"""The study that an earlier version swept, promoted and began: copies of it, and what that version said of it."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch

from froude.runlog import LogReader
from froude.store import Location
from froude.train.exact import environment

FOLDER = Path(__file__).parent / "study_0_1_interrupted"
SPACE = FOLDER / "space.py"
EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text())
STOPPED, STEPS = 80, 240  # the step of the last checkpoint, and those of the whole run
UNFINISHED = "the run is finished"
OVERRIDES = {
    "validation_leak": "windows of 16 bytes repeat themselves",
    "seeds": "one size has two",
    "lr_points": "five rates suffice for a joint fit",
    "sizes_agree": "so small a model need not follow the law",
    "forecast_certified": "the study is here for its files",
}


def copied(folder: Path) -> Path:
    """A copy of the study below this folder."""
    return shutil.copytree(FOLDER / "study", folder / "study")


def override_options() -> list[str]:
    """Those of `froude promote` with which the recipe was written."""
    given = [("--override", name, "--reason", reason) for name, reason in OVERRIDES.items()]
    return [part for options in given for part in options]


def log_of(study: Path) -> LogReader:
    """The commit log of the target run."""
    return LogReader(Location.parse(study) / "runs" / "large")


def hashes(study: Path) -> dict[str, str]:
    """SHA-256 of every file, by its path below the study."""
    files = sorted(path for path in study.rglob("*") if path.is_file())
    return {str(path.relative_to(study)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def same_build() -> bool:
    """Whether bits here are those of the machine that began the run."""
    here = environment.describe(torch.device("cpu"))
    return not environment.difference(log_of(FOLDER / "study").records()[0].meta["build"], here)
