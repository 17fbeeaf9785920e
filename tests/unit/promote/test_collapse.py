"""A proxy whose loss curve is not that of the others at as many tokens a parameter is named in the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_study import Ladder, law, params

from froude.promote.collapse import curves_apart
from froude.promote.fits import fit
from froude.report import narrative
from froude.report.view import gather
from froude.study import Study

pytestmark = pytest.mark.slow
WIDTHS = (32, 48, 64, 80, 96)


def logged(row: dict[str, Any], slow: float) -> list[dict[str, Any]]:
    """Steps whose losses fall to the final one as a power of the tokens; those of width 48 come down late."""
    if row["stage"] != "law" or row["loss"] is None:
        return []
    count, floor = row["tokens"] // row["batch"], 0.9
    share = np.arange(1, count + 1) / count
    late = 1 + slow * (row["width"] == 48) * (1 - share)
    noise = 1 + 0.003 * np.random.default_rng(row["width"]).standard_normal(count)
    loss = (floor + (row["loss"] - floor) * share**-0.4 * late) * noise
    own = {"run": row["run"], "attempt": 0, "lr": row["lr"]}
    return [
        {**own, "step": i, "tokens": i * row["batch"], "loss": float(value)}
        for i, value in enumerate(loss, 1)
    ]


def at_one_ratio(row: dict[str, Any]) -> dict[str, Any] | None:
    if row["stage"] != "law":
        return row
    tokens = 768 * round(20 * params(row["made"]) / 768)
    return {**row, "tokens": tokens, "steps": tokens // 768, "loss": law(params(row["made"]), tokens)}


@pytest.mark.parametrize("slow", [0.0, 0.5])
def test_the_report_names_the_proxy_that_learned_otherwise(
    tmp_path: Path, study_factory: Callable[..., Path], slow: float
) -> None:
    folder = study_factory(
        tmp_path / "study",
        seeds=1,
        ladder=Ladder(WIDTHS, (432,)),
        change=at_one_ratio,
        steps=lambda row: logged(row, slow),
    )
    study = Study(folder)
    fits = fit(study)
    (found,) = curves_apart(study, fits)
    assert found.runs.height == len(WIDTHS)
    assert found.outliers == (["w48-432-s0"] if slow else [])
    said = [note for note in narrative.notes(gather(study, fits=fits)) if "leaves the common" in note.title]
    assert len(said) == bool(slow)
    assert all(note.words.startswith("w48-432-s0: the loss curve is") for note in said)


def test_a_curve_that_no_law_reads_is_told_and_the_rest_of_the_report_stays(
    tmp_path: Path, study_factory: Callable[..., Path]
) -> None:
    def memorised(row: dict[str, Any]) -> list[dict[str, Any]]:
        return [{**step, "loss": 0.0 if step["step"] == 7 else step["loss"]} for step in logged(row, 0.0)]

    ladder = Ladder(WIDTHS, (432,))
    study = Study(
        study_factory(tmp_path / "study", seeds=1, ladder=ladder, change=at_one_ratio, steps=memorised)
    )
    view = gather(study)
    assert view.fits is not None
    assert view.collapses == ()
    (problem,) = view.problems
    assert problem.startswith(
        "The proxies' loss curves could not be compared: Column 'loss' must be positive"
    )


def test_runs_that_do_not_say_their_schedule_are_alike(
    tmp_path: Path, study_factory: Callable[..., Path]
) -> None:
    def untold(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "schedule": None}

    study = Study(study_factory(tmp_path / "study", ladder=Ladder(WIDTHS, (432,)), change=untold))
    assert curves_apart(study, fit(study)) == []
