"""Promoting a study again: the recipe stays, changes with its rows, or can't change since its run has begun."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from froude.checkpoint.commit import CommitLog
from froude.cli import main
from froude.config import ConfigError
from froude.promote.promotion import promote
from froude.promote.recipe import read
from froude.report.view import gather
from froude.study import Study

pytestmark = pytest.mark.slow
OVERRIDE = {"forecast_certified": "a study of minutes"}


def test_promoting_twice_keeps_the_seal_until_the_rows_change(
    tmp_path: Path, study_factory: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study(study_factory(tmp_path / "study"))
    first = promote(study, overrides=OVERRIDE)
    (tmp_path / "study" / "forecast.json").write_bytes(b"of another promotion, which was killed here")
    assert promote(study, overrides=OVERRIDE).sha256 == first.sha256
    assert (tmp_path / "study" / "forecast.json").read_bytes() == first.forecast_json()
    trials = study.trials().collect().with_columns(pl.col("loss") + 1e-3)
    monkeypatch.setattr(Study, "trials", lambda self: trials.lazy())
    second = promote(study, overrides=OVERRIDE)
    assert second.sha256 != first.sha256
    assert read(str(tmp_path / "study")).sha256 == second.sha256


def test_a_recipe_whose_run_has_begun_stays(
    tmp_path: Path, study_factory: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study(study_factory(tmp_path / "study"))
    first = promote(study, overrides=OVERRIDE)
    run = study.location / "runs" / first.run.name
    CommitLog(run).open_attempt(first.run.name, first.sha256, 1)
    assert promote(study, overrides=OVERRIDE).sha256 == first.sha256
    with pytest.raises(ConfigError, match="once its run has begun"):
        promote(study, overrides={**OVERRIDE, "forecast_certified": "another reason"})
    assert read(str(tmp_path / "study")).sha256 == first.sha256


def test_a_forecast_cannot_be_sealed_after_its_run_has_begun(
    tmp_path: Path, study_factory: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Not by promoting anew, and a recipe put there by hand is not what the log names."""
    study = Study(study_factory(tmp_path / "study"))
    first = promote(study, overrides=OVERRIDE)
    (tmp_path / "study" / "recipe.toml").unlink()
    later = promote(study, overrides=OVERRIDE)
    CommitLog(study.location / "runs" / first.run.name).open_attempt(first.run.name, first.sha256, 1)
    assert study.commits().collect()["recipe"].to_list() == [first.sha256]
    assert main(["train", str(tmp_path / "study" / "recipe.toml"), "--simulate", "1"]) == 2
    assert "the recipe that it began with" in capsys.readouterr().err
    view = gather(Study(tmp_path / "study"))
    assert view.score is None
    assert any(later.sha256[:12] in problem for problem in view.problems)
    (tmp_path / "study" / "recipe.toml").unlink()
    with pytest.raises(ConfigError, match="once its run has begun"):
        promote(study, overrides=OVERRIDE)
