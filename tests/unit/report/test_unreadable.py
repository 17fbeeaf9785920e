"""What of a study can't be read costs a report that alone; and where its figures mark the recipe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from froude.register import keep
from froude.report import document
from froude.report.view import gather
from froude.store import Location


def test_a_trials_damaged_curve_leaves_the_target_readable(promoted, tmp_path: Path) -> None:
    study = promoted.copy(tmp_path / "study", lives=3)
    (tmp_path / "study" / "steps").mkdir(exist_ok=True)
    (tmp_path / "study" / "steps" / "search-0.parquet").write_bytes(b"PAR1")
    found = gather(study, fits=promoted.fits)
    assert not found.unread
    assert found.actual is not None
    assert found.steps.height


@pytest.mark.parametrize("content", [b"PAR1", None])
def test_a_damaged_part_of_the_run_is_told_and_the_rest_stays(promoted, tmp_path: Path, content) -> None:
    study = promoted.copy(tmp_path / "study", lives=3)
    file = next((tmp_path / "study" / "runs" / "large" / "parts").glob("evals-*"))
    file.unlink() if content is None else file.write_bytes(content)
    found = gather(study, fits=promoted.fits)
    assert found.unread
    assert any("The target run could not be read" in problem for problem in found.problems)
    assert found.checks
    assert not keep(Location.parse(tmp_path / "register"), study)


def test_the_figure_of_batches_marks_the_recipes(promoted, finished, monkeypatch) -> None:
    marked: list[int | None] = []
    monkeypatch.setattr(document.law_plots, "critical_batch", lambda law, batch: marked.append(batch))
    view = gather(finished, fits=promoted.fits)
    assert view.recipe is not None
    chosen = replace(view.recipe, run=view.recipe.run.replace({"batch": 1536}))
    for recipe in (chosen, None):
        document.plots(replace(view, recipe=recipe))
    assert marked == [1536, None]
