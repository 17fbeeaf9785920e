"""A small exact run of a sealed recipe, trained here and now, for tests that look at what is stored of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import torch

from froude.checkpoint.parts import digest
from froude.checkpoint.run_store import RunStore
from froude.config import Run
from froude.promote.forecast import Forecast
from froude.promote.recipe import Recipe, seal
from froude.promote.verify import locate, verify_run
from froude.runlog import LogReader, Part, Record
from froude.schemas import SCHEMAS, to_bytes
from froude.store import Location
from froude.train.api import Unsupervised
from froude.train.exact import environment
from froude.train.worker import run_worker

FORECAST = Forecast(1.298, 1.251, 1.341, 0.9, False, "prior_driven", ("one split",), 1.42)
RUN = Run(
    name="large",
    tokens=768 * 5,
    batch=768,
    slots=12,
    reduction="exact",
    workers=(1, 3),
    checkpoint_every=2,
    eval_windows=64,
    model={"width": 32},
)


def sealed(folder: Path | Location, forecast: Forecast = FORECAST, run: Run = RUN) -> Recipe:
    """The run's recipe, written there."""
    made = seal(
        run=run,
        profile="production",
        fits={},
        fingerprints={},
        extrapolation={},
        checks=(),
        forecast=forecast,
    )
    made.write(Location.parse(folder) / "recipe.toml")
    return made


def train(folder: Path, recipe: Recipe) -> None:
    """On one worker, this process."""
    store = RunStore(Location.parse(folder) / "runs" / RUN.name, RUN.name)
    environment.make_deterministic(torch.device("cpu"))
    here = environment.describe(torch.device("cpu"))
    host = Unsupervised(attempt=store.open_attempt(recipe.sha256, {"build": here}))
    run_worker(RUN.replace(workers=1), store, host, device="cpu")


def failed(folder: Path | Location, **options: bool) -> list[str]:
    """The checks of `verify-run` that the study there does not pass."""
    study, recipe = locate(str(folder))
    return [check.name for check in verify_run(study, recipe, **options) if check.passed is False]


def unknown(folder: Path | Location) -> list[str]:
    """The checks of `verify-run` that can't be told there."""
    return [check.name for check in verify_run(*locate(str(folder))) if check.passed is None]


def records(folder: Path) -> list[Record]:
    return LogReader(Location.parse(folder) / "runs" / "large").records()


def rewrite(folder: Path, change: Callable[[Record], Record]) -> None:
    """Each record changed, and named anew by the next."""
    parent = None
    for file in sorted((folder / "runs" / "large" / "commits").iterdir()):
        content = replace(change(Record.from_bytes(file.read_bytes())), parent=parent).to_bytes()
        file.write_bytes(content)
        parent = hashlib.sha256(content).hexdigest()


def forge(folder: Path, kind: str, change: Callable[[pl.DataFrame], pl.DataFrame], at: int = -1) -> None:
    """Change the rows of a part of this kind, its hash, and the records' hashes."""
    part = [part for record in records(folder) for part in record.parts if part.kind == kind][at]
    file = folder / "runs" / "large" / part.path
    content = to_bytes(change(pl.read_parquet(file)).to_arrow().cast(SCHEMAS[kind]))
    file.write_bytes(content)
    new = Part(kind, part.path, len(content), digest(content))
    rewrite(folder, lambda r: replace(r, parts=tuple(new if p.path == part.path else p for p in r.parts)))
