"""A small exact run of a sealed recipe, trained here and now, for tests that look at what is stored of it."""

from __future__ import annotations

from pathlib import Path

import torch

from froude.checkpoint.run_store import RunStore
from froude.config import Run
from froude.promote.forecast import Forecast
from froude.promote.recipe import Recipe, seal
from froude.promote.verify import locate, verify_run
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
