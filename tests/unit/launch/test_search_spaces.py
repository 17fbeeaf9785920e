"""The search spaces for teams with GPUs, and for trainers of their own, are valid, and planned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from froude.cli import main
from froude.config import Run
from froude.external.trial import run_trial
from froude.material import Material
from froude.space import Trial, load_space
from froude.train.api import build_model, count_parameters

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "runs", "role"),
    [
        ("lr_transfer", 60, "lr_transfer"),
        ("critical_batch", 0, "critical_batch"),
        ("isoflop", 40, "loss_law"),
    ],
)
def test_a_search_space_is_planned(
    name: str,
    runs: int,
    role: str,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("In the beginning. " * 20_000)
    monkeypatch.setenv("FROUDE_CORPUS", str(corpus))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = root / "search_spaces" / f"{name}.py"
    space = load_space(file, seed=1)
    (stage,) = space.stages
    (trials,) = space.planned().values()
    made = [run for trial in trials for run in trial.runs]
    assert stage.role == role
    assert len(made) == runs or (not runs and len(trials) == 24)
    assert {run.data.path for run in made} == {str(corpus)}
    assert main(["plan", str(file), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["stages"][0]["runs"] == len(made)


def test_the_study_of_an_hour_begins_with_three_sizes_and_horizons(root: Path) -> None:
    space = load_space(root / "search_spaces" / "hour.py", seed=1)
    assert [stage.role for stage in space.stages] == ["search", "lr_transfer", "critical_batch", "loss_law"]
    law = [run for trial in space.planned()["loss_law"] for run in trial.runs]
    assert len({run.model.width for run in law}) == len({run.tokens for run in law}) == 3
    assert all(run.tokens < space.target.tokens for run in law)
    assert {run.schedule.warmup_tokens for run in law} == {space.target.schedule.warmup_tokens}


def test_no_proxy_of_the_study_of_reach_costs_a_tenth_of_its_target(root: Path) -> None:
    space = load_space(root / "search_spaces" / "reach.py", seed=1)
    made = [run for trials in space.planned().values() for trial in trials for run in trial.runs]

    def compute(run: Run) -> int:
        return count_parameters(build_model(run, "meta")).params * run.tokens

    assert max(compute(run) for run in made) * 10 < compute(space.target)
    rates = [run for trial in space.planned()["lr_transfer"] for run in trial.runs]
    assert {run.tokens for run in rates} == {space.target.tokens}
    law = [run for trial in space.planned()["loss_law"] for run in trial.runs]
    assert {run.schedule.warmup_tokens for run in law} == {space.target.schedule.warmup_tokens}


@pytest.mark.parametrize("name", ["space", "nanogpt_space"])
def test_the_spaces_of_other_trainers_are_planned(
    name: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in ("train.py", "model.py"):  # where nanoGPT would be
        (tmp_path / file).write_text("")
    monkeypatch.setenv("NANOGPT", str(tmp_path))
    assert main(["plan", str(root / f"search_spaces/external/{name}.py"), "--json", "--trust"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [stage["runs"] for stage in plan["stages"]] == [3, 24, 12]


def test_the_script_of_the_external_space_trains_as_it_says(root: Path, tmp_path: Path) -> None:
    base = load_space(root / "search_spaces/external/space.py", seed=1).target
    run = base.replace({"tokens": 20 * base.batch, "schedule.warmup_tokens": 2 * base.batch}, name="short")
    rows = run_trial(Trial("t", (run,)), tmp_path, material=Material(), roots=[])
    (row,) = rows.trials
    # It counts its parameters as the space does, or the trial would have failed.
    assert (row["status"], row["params"]) == ("finished", run.trainer.params)
    assert len(rows.steps) == 20
    assert row["loss"] < rows.steps[0]["loss"]
