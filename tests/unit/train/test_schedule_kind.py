"""A schedule from outside the package: planned, trained, resumed, branched, fitted, promoted; no trace of it stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from played_sweep import play
from small_study import TARGET

from froude import Study, schedules
from froude.checkpoint.run_store import RunStore
from froude.checkpoint.tensors import digest
from froude.config import ConfigError, Run
from froude.promote.fits import fit
from froude.promote.monitor import alarms
from froude.promote.promotion import promote
from froude.promote.recipe import read
from froude.runlog import LogReader
from froude.schedules import SCHEDULES, Planned, Spec
from froude.space import Choice, Grid, Search, Space, Trial
from froude.store import Location
from froude.sweep.agenda import Agenda
from froude.sweep.plan import plan
from froude.train.api import Unsupervised
from froude.train.speed import timing as speed
from froude.train.trial import run_trial
from froude.train.worker import run_worker


def until(run: Planned) -> float:
    return run.tokens * (1 - run.schedule.decay_fraction)


def share(run: Planned, tokens: float) -> float:
    """Falls with a power of the tokens (Shen et al. 2408.13359) and then linearly to zero."""
    left = min(1.0, (run.tokens - tokens) / (run.tokens - until(run)))
    return left * (1 + tokens / run.batch) ** -0.25


POWER = Spec(name="power", share=share, trunk=until)
STEPS = 6
RUN = {"batch": 128, "slots": 2, "eval_windows": 16, "model": {"width": 16}, "norms_every": 0}


@pytest.fixture
def power() -> Iterator[Spec]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SCHEDULES, POWER.name, POWER)
        yield POWER
    assert POWER.name not in SCHEDULES


def run_with(name: str = "power", steps: int = STEPS, **changes: object) -> Run:
    run = Run(name="large", tokens=128 * steps, **RUN)  # type: ignore[arg-type]
    return run.replace({"schedule.name": name, "schedule.decay_fraction": 0.5, **changes})


@pytest.mark.usefixtures("power")
def test_a_run_takes_it_from_python_and_from_toml() -> None:
    run = run_with()
    again = Run.from_toml(
        'tokens = 768\nbatch = 128\nslots = 2\n[schedule]\nname = "power"\ndecay_fraction = 0.5'
    )
    assert again.schedule == run.schedule
    assert Run.from_toml(run.to_toml()) == run
    assert run.fingerprint != run_with("wsd").fingerprint


@pytest.mark.parametrize("wrong", ["power", 3, ["wsd"], None])
def test_what_is_not_registered_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError) as error:
        Run(tokens=768, schedule={"name": wrong})
    assert str(error.value) == (
        "`schedule.name` must be 'constant', 'linear', 'cosine', 'wsd', 'inverse_sqrt', 'noam', 'multi_step' or "
        f"'restarts', but got {wrong!r}"
    )


@pytest.mark.usefixtures("power")
def test_its_rates_are_those_of_the_steps_warmup_and_tail_included() -> None:
    run = run_with(**{"schedule.warmup_tokens": 2 * 128})
    outcome = run_trial([run], trial="t")
    ramp, tail = [0.25, 0.75, 1, 1, 1, 1], [1, 1, 1, 2.5 / 3, 1.5 / 3, 0.5 / 3]
    shares = [ramp[i] * tail[i] * (1.5 + i) ** -0.25 for i in range(STEPS)]
    assert [row["lr"] for row in outcome.steps] == pytest.approx([run.optimizer.lr * each for each in shares])
    (row,) = outcome.trials
    assert (row["schedule"], row["warmup_tokens"], row["status"]) == ("power", 256, "finished")


@dataclass
class Stopping(Unsupervised):
    """A host that ends its attempt after a step."""

    after: int = STEPS

    def poll(self, step: int) -> str:  # type: ignore[override]
        return "stop" if step == self.after else "none"


def trained(folder: Path, run: Run, *attempts: int) -> tuple[str, list[float]]:
    """The digest of the state, and each step's loss, after attempts that stop at these steps."""
    place = Location.parse(folder) / "runs" / run.name
    for after in attempts:
        store = RunStore(place, run.name)
        run_worker(run, store, Stopping(store.open_attempt("recipe"), after), device="cpu")
    losses = Study(folder).steps().sort("step").collect()["loss"].to_list()
    return digest(place, LogReader(place).lineage()[-1]), losses


@pytest.mark.long
@pytest.mark.usefixtures("power")
def test_an_interrupted_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", run_with(), STEPS)
    assert trained(tmp_path / "cut", run_with(), 2, 4, STEPS) == whole
    assert trained(tmp_path / "other", run_with("wsd"), STEPS) != whole


@pytest.mark.usefixtures("power")
def test_branches_leave_its_trunk_where_it_says_and_are_the_runs_trained_alone() -> None:
    runs = [run_with(steps=steps).replace(name=f"n{steps}") for steps in (4, 6, 10)]
    trial = Trial("t", tuple(runs))
    assert trial.steps == 5 + 2 + 3 + 5  # the trunk's, and half of each
    together = run_trial(trial.runs, trial="t")
    for run, row in zip(runs, together.trials, strict=True):
        alone = run_trial([run], trial="alone")
        assert row["loss"] == alone.trials[0]["loss"]
        mine = [step for step in together.steps if step["run"] == run.name]
        assert [(step["lr"], step["loss"]) for step in mine] == [(s["lr"], s["loss"]) for s in alone.steps]


def test_without_a_trunk_it_has_no_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULES, "power", replace(POWER, trunk=None))
    runs = tuple(run_with(steps=steps).replace(name=f"n{steps}") for steps in (4, 6))
    with pytest.raises(ConfigError) as error:
        Trial("t", runs)
    assert str(error.value) == (
        "branches of a trial need a schedule with a trunk (wsd), but those of 't' have power; make them trials of "
        "their own"
    )
    assert Trial("t", runs[:1]).steps == 4


@pytest.mark.usefixtures("power")
def test_a_plan_counts_its_trunk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_time", lambda run: 0.001)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    runs = tuple(run_with(steps=steps).replace(name=f"n{steps}") for steps in (4, 6, 10))
    space = Space("own", 1, (Grid("law", lambda rows: [Trial("t", runs)], "loss_law"),), run_with(steps=20))
    (stage,) = plan(space, workers=1).stages
    assert (stage.runs, stage.tokens) == (3, 15 * 128)


@pytest.mark.usefixtures("power")
def test_a_search_sweeps_it_as_one_of_its_choices() -> None:
    axes = {"schedule.name": Choice(("wsd", "power"))}
    search = Search("search", run_with(), axes, trials=6, startup=3, default={"schedule.name": "wsd"})
    space = Space("own", 1, (search,), run_with())
    assert len(space.planned()["search"]) == 6
    agenda = Agenda(space, {})
    play(agenda, lambda run: 2.0 + (run.schedule.name == "power"))
    found = pl.concat([pl.from_arrow(stored.rows) for stored in agenda.results.values()])  # type: ignore[type-var]
    assert set(found["schedule"]) == {"wsd", "power"}


@pytest.mark.slow
def test_fits_and_promotion_read_its_rows_and_the_monitor_knows_its_rates(
    tmp_path: Path, study_factory: Callable[..., Path]
) -> None:
    def renamed(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "schedule": {"wsd": "power"}.get(row["schedule"], row["schedule"])}

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SCHEDULES, "power", POWER)
        target = TARGET.replace({"schedule.name": "power"})
        study = Study(study_factory(tmp_path / "study", change=renamed, target=target))
        found = fit(study)
        assert found.best is not None
        assert found.best["schedule"] == "power"
        recipe = promote(study, overrides={"forecast_certified": "a study of minutes"}, fits=found)
        run = recipe.run
        assert run.schedule.name == "power"
        assert run.schedule.warmup_tokens > 0

        def seen(scheduled: Run) -> list[str]:
            at = range(1, run.steps + 1)
            lr = [run.optimizer.lr * schedules.at_step(scheduled, step - 1) for step in at]
            steps = pl.DataFrame({"tokens": [run.batch * step for step in at], "loss": 2.0, "lr": lr})
            return [alarm.kind for alarm in alarms(recipe.forecast, run, steps)]

        assert seen(run) == []
        assert "rate" in seen(run.replace({"schedule.name": "wsd"}))
    for use in (lambda: fit(study), lambda: read(study.location)):
        with pytest.raises(ConfigError, match=r"`schedule\.name` must be 'constant', .*, but got 'power'"):
            use()
