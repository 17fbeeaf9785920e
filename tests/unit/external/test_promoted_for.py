"""A study whose proxies froude trained, promoted for a large run that another trainer trains."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from froude import Study
from froude.cli import main
from froude.config import Run
from froude.promote.recipe import read

pytestmark = pytest.mark.long


def test_a_study_of_froudes_own_proxies_is_promoted_for_another_trainer(
    tmp_path: Path, study_factory: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    study = study_factory(tmp_path / "study")
    before = {path.name for path in study.iterdir()}
    promote = ["promote", str(study), "--for", "external"]
    # The gate is the same for it: refused with the reason, and nothing is written.
    assert main(promote) == 3
    assert "forecast_certified" in capsys.readouterr().err
    assert {path.name for path in study.iterdir()} == before

    override = ["--override", "forecast_certified", "--reason", "a study of minutes"]
    assert main([*promote, *override]) == 0
    said = capsys.readouterr().out
    assert f"external  train what {study}/target.json" in said
    recipe = read(str(study))
    assert recipe.trainer == "external"
    assert not recipe.run.trainer.command  # no proxy needed one
    assert json.loads((study / "forecast.json").read_text())["sha256"] == recipe.sha256
    for written in (
        Run.from_dict(json.loads((study / "target.json").read_text())),
        Run.from_toml((study / "target.toml").read_text()),
    ):
        assert written == recipe.run
    assert main(["train", str(study / "recipe.toml"), "--simulate", "1"]) == 2
    assert "a recipe for an external trainer is not trained by froude" in capsys.readouterr().err

    assert main(["report", str(study)]) == 0
    report = (study / "report.html").read_text()
    assert "Another trainer trains it" in report
    assert "froude train recipe.toml" not in report

    metrics = tmp_path / "large.jsonl"
    told = [{"step": step, "loss": 3.0, "lr": recipe.run.optimizer.lr} for step in (1, recipe.run.steps)]
    told.append({"step": recipe.run.steps, "validation_loss": recipe.forecast.loss})
    metrics.write_text("".join(json.dumps(line) + "\n" for line in told))
    assert main(["follow", str(study), "--metrics", str(metrics), "--once"]) == 0
    assert Study(study).commits().collect()["recipe"].unique().to_list() == [recipe.sha256]
    assert main([*promote, *override]) == 0
    assert read(str(study)).sha256 == recipe.sha256  # once its run has begun it stays
    capsys.readouterr()
    assert main(["promote", str(study), *override]) == 2
    assert "once its run has begun" in capsys.readouterr().err
