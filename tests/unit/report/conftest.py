"""A study whose target run went 3 → 2 → 3 workers, its recipe sealed, written the way the launcher writes one."""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_study import Ladder

from froude import Study, schemas
from froude.config import Run
from froude.promote.fits import Fits, fit
from froude.promote.promotion import promote
from froude.promote.recipe import Recipe
from froude.runlog import NO_BASE, Part, Record, record_name

#: attempt: workers, seconds after the first record at which it opened, seconds to its first step, last step kept.
LIVES = ((3, 0.0, 9.0, 433), (2, 40.0, 7.5, 900), (3, 95.0, 6.0, 1300))
STEP_SECONDS = 0.05
BEGAN = datetime(2025, 3, 1, 12, tzinfo=UTC)
FINAL = 1.245
OVERRIDES = {
    "forecast_certified": "a study of minutes has too few sizes",
    "lr_points": "five rates suffice for a joint fit",
}


def rows_of(
    run: Run, attempt: int, first: int, last: int, began: datetime
) -> dict[str, list[dict[str, Any]]]:
    """Steps, evals and ledger rows of one attempt that made the steps `first` to `last`."""
    noise = np.random.default_rng(attempt)
    world = LIVES[attempt - 1][0]
    steps, evals, ledger = [], [], []
    for step in range(first, last + 1):
        time = began + timedelta(seconds=STEP_SECONDS * (step - first))
        done = step / run.steps
        loss = FINAL + 1.9 * math.exp(-9 * done) + 0.35 * (1 - done) ** 1.5 - 0.02
        base = {
            "run": run.name,
            "attempt": attempt,
            "step": step,
            "tokens": run.phases.tokens_at(step),
            "time": time,
        }
        steps.append(
            {
                **base,
                "loss": loss + 0.05 * noise.standard_normal(),
                "lr": 0.005,
                "grad_norm": 1.0,
                "world": world,
            }
        )
        if step % 100 == 0:
            evals.append({**base, "split": "validation", "loss": loss + 0.02 if step < run.steps else FINAL})
        samples = run.phases.factor_at(step - 1) * run.windows_per_slot
        for slot in range(run.slots):
            sample = run.phases.tokens_at(step - 1) // run.model.context + slot * samples
            ledger.append(
                {
                    "run": run.name, "attempt": attempt, "step": step, "slot": slot, "first_sample": sample,
                    "samples": samples, "tokens": samples * run.model.context,
                    "digest": f"{sample:016x}", "disposition": "trained",
                }
            )  # fmt: skip
    return {"steps": steps, "evals": evals, "ledger": ledger}


def train(
    study: Study, recipe: Recipe, lives: int = len(LIVES), meta: Mapping[int, dict[str, Any]] | None = None
) -> None:
    """Write the commit log of the recipe's run and its parts, for so many of the attempts above.

    `meta` maps an attempt to what its record says besides the name of its driver.
    """
    run = recipe.run
    place = study.location / "runs" / run.name
    before: Record | None = None
    base, done = NO_BASE, 0

    def commit(kind: str, attempt: int, step: int, time: datetime, **more: Any) -> Record:
        record = Record(
            run=run.name, seq=before.seq + 1 if before else 0, parent=before.digest if before else None,
            base=base, attempt=attempt, generation=f"g{attempt}", kind=kind, step=step,
            tokens=run.phases.tokens_at(step), time=time, world=LIVES[attempt - 1][0], recipe=recipe.sha256, **more,
        )  # fmt: skip
        content = record.to_bytes()
        assert (place / "commits" / record_name(record.seq)).create(content)
        return replace(record, digest=hashlib.sha256(content).hexdigest())

    for attempt, (_, opened, starting, last) in enumerate(LIVES[:lives], 1):
        began = BEGAN + timedelta(seconds=opened)
        before = commit(
            "attempt", attempt, done, began, meta={"run_id": "one driver", **(meta or {}).get(attempt, {})}
        )
        first_step = began + timedelta(seconds=starting)
        parts = []
        for kind, content in rows_of(run, attempt, done + 1, last, first_step).items():
            part = Part(kind, f"parts/{kind}-g{attempt}-{last:012d}-r0.parquet", 0, "")
            assert (place / part.path).create(schemas.to_bytes(schemas.table(schemas.SCHEMAS[kind], content)))
            parts.append(part)
        kind = "finished" if last == run.steps else "checkpoint"
        ended = first_step + timedelta(seconds=STEP_SECONDS * (last - done - 1))
        before = commit(kind, attempt, last, ended, parts=tuple(parts))
        base, done = before.seq, last


@dataclass(frozen=True)
class Promoted:
    """A promoted study without a run, to be copied; `fits` are its laws."""

    study: Study
    recipe: Recipe
    fits: Fits

    def copy(self, folder: Path, lives: int = 0, meta: Mapping[int, dict[str, Any]] | None = None) -> Study:
        """A copy whose run has lived through so many attempts."""
        shutil.copytree(self.study.location.path, folder)
        study = Study(folder)
        if lives:
            train(study, self.recipe, lives, meta)
        return study


@pytest.fixture(scope="session")
def promoted(tmp_path_factory: pytest.TempPathFactory, study_factory: Callable[..., Path]) -> Promoted:
    noisy = Ladder(noise=0.003)  # so that the rows do not outweigh the prior
    study = Study(study_factory(tmp_path_factory.mktemp("promoted") / "towing-tank", rates=5, ladder=noisy))
    fits = fit(study)
    return Promoted(study, promote(study, overrides=OVERRIDES, fits=fits), fits)


@pytest.fixture(scope="session")
def finished(promoted: Promoted, tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A study whose target run is finished; read only."""
    return promoted.copy(tmp_path_factory.mktemp("finished") / "towing-tank", lives=3)
