"""A column that the package does not have: a line in the schema, a value where it is known; old rows are null there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from froude import schemas
from froude.checkpoint.run_store import RunStore
from froude.config import ConfigError, Run
from froude.promote.fits import fit
from froude.promote.imported_runs.history import make_study
from froude.space import Grid, Space, Trial
from froude.store import Location
from froude.study import Study
from froude.sweep import trial_store
from froude.sweep.agenda import Agenda
from froude.train import rows
from froude.train.api import Unsupervised
from froude.train.observers import Made, Observer
from froude.train.trial import run_trial
from froude.train.worker import run_worker

RUN = Run(tokens=128 * 4, batch=128, slots=2, eval_windows=16, model={"width": 16}, norms_every=0)


class Clipping(Observer):
    """Knows what clipping left of the gradient."""

    def stepped(self, made: Made) -> None:
        made.columns["clipped_to"] = min(1.0, self.loop.run.optimizer.clip / made.result.grad_norm)


@contextmanager
def columns() -> Iterator[None]:
    """A column of trials, known from a run's description, and one of steps, known to an observer."""
    describe = rows.describe
    with pytest.MonkeyPatch.context() as patch:
        for name, field in (
            ("trials", pa.field("base_width", pa.int64())),
            ("steps", pa.field("clipped_to", pa.float64())),
        ):
            schema = schemas.SCHEMAS[name].append(field)
            patch.setattr(schemas, name.upper(), schema)
            patch.setitem(schemas.SCHEMAS, name, schema)
        patch.setattr(rows, "describe", lambda run: {**describe(run), "base_width": run.model.base_width})
        yield
    assert "base_width" not in schemas.TRIALS.names


def write(study: Location, name: str) -> Trial:
    """Train a trial and keep it, as a sweep does."""
    trial = Trial(name, (RUN.replace(name=name, stage="g"),))
    outcome = run_trial(trial.runs, trial=name)
    trial_store.write(study, trial, trials=outcome.trials, steps=outcome.steps, evals=outcome.evals)
    return trial


def train(study: Location, name: str, *observers: Observer) -> None:
    run = RUN.replace(name=name)
    store = RunStore(study / "runs" / name, name)
    run_worker(run, store, Unsupervised(store.open_attempt("recipe")), device="cpu", observers=observers)


@pytest.mark.slow
def test_new_rows_have_it_and_old_ones_are_null(tmp_path: Path) -> None:
    place = Location.parse(tmp_path)
    old = write(place, "old")
    train(place, "old-run")
    assert "base_width" not in Study(place).trials().collect_schema().names()
    with columns():
        new = write(place, "new")
        broken = Trial("broken", (RUN.replace(name="broken", stage="g"),))
        trial_store.write_failed(place, broken, error="no memory", attempts=3)
        train(place, "new-run", Clipping())
        study = Study(place)

        found = study.trials().select("run", "status", "base_width").sort("run").collect().rows()
        assert found == [("broken", "failed", 64), ("new", "finished", 64), ("old", "finished", None)]
        assert study.trials().filter(pl.col("base_width") > 8).select(pl.len()).collect().item() == 2
        assert study.trials().collect_schema().names()[-1] == "base_width"

        left = study.steps().filter(run="new-run").sort("step").collect()
        expected = [min(1.0, RUN.optimizer.clip / norm) for norm in left["grad_norm"]]
        assert left["clipped_to"].to_list() == pytest.approx(expected)
        assert min(expected) < 1
        others = study.steps().filter(pl.col("run") != "new-run").collect()
        assert set(others["run"]) == {"old", "new", "old-run"}
        assert others["clipped_to"].null_count() == others.height

        stored = trial_store.read_all(place)
        assert {name: each.rows["base_width"].to_pylist() for name, each in stored.items()} == {
            "old": [None],
            "new": [64],
            "broken": [64],
        }
        # A sweep goes on from all of them.
        again = Agenda(Space("x", 0, (Grid("g", lambda _: [old, new], "loss_law"),), RUN), stored)
        assert again.next() is None
        assert again.resumed == 2
    after = Study(place).trials().collect()
    assert after.columns == schemas.TRIALS.names
    assert after.height == 3
    with pytest.raises(ConfigError, match="must have been written by this version's sweep"):
        trial_store.read(place, "new")


def test_somebody_elses_runs_keep_their_fingerprints_under_it(tmp_path: Path) -> None:
    table = [
        {"params": 10**5 * width, "tokens": 10**6 * n, "loss": 2 + 5 / width + 9 / n, "width": width}
        for width in (16, 32, 64)
        for n in (2, 4, 8)
    ]
    pl.DataFrame(table).write_csv(tmp_path / "runs.csv")
    before = make_study(str(tmp_path / "runs.csv"), tmp_path / "before").trials().collect()
    with columns():
        study = make_study(str(tmp_path / "runs.csv"), tmp_path / "after")
        after = study.trials().collect()
        assert after["base_width"].null_count() == len(table)
        assert after["fingerprint"].to_list() == before["fingerprint"].to_list()
        assert len({*after["fingerprint"]}) == len(table)


@pytest.mark.slow
def test_fits_of_a_study_before_it_are_what_they_were(small_study: Path) -> None:
    before = fit(Study(small_study))
    with columns():
        under = fit(Study(small_study))
    assert under.fingerprints == before.fingerprints
    assert under.summary() == before.summary()
