"""Studies that deserve a target run are promoted, and nobody has to override a check."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_study import TARGET, Ladder, law, params

from froude.promote.promotion import promote
from froude.study import Study

pytestmark = pytest.mark.slow

WIDTHS = (32, 48, 64, 80, 96, 112, 128, 144, 160, 176)
STEPS = (300, 486, 777, 1244)


@pytest.mark.parametrize(
    ("noise", "target", "more"),
    [
        pytest.param(0.001, {}, {}, id="muP"),
        pytest.param(
            0.003,
            {"parametrization": "sp"},
            {"rates": 8},
            id="SP, more rates, more noise",
            marks=pytest.mark.long,
        ),
        pytest.param(0.002, {"model.width": 256}, {}, id="a larger target", marks=pytest.mark.long),
    ],
)
def test_a_good_study_is_promoted(
    tmp_path: Path,
    study_factory: Callable[..., Path],
    noise: float,
    target: dict[str, Any],
    more: dict[str, Any],
) -> None:
    run = TARGET.replace({"tokens": 768 * 3000, **target})
    folder = study_factory(
        tmp_path / "study", ladder=Ladder(WIDTHS, STEPS, noise, run.parametrization), target=run, **more
    )
    recipe = promote(Study(folder))
    assert not recipe.overrides
    assert all(check.passed for check in recipe.checks if check.kind == "refuse")
    assert recipe.forecast.certified
    truth = law(params(recipe.run), recipe.run.tokens)
    assert recipe.forecast.low <= truth <= recipe.forecast.high
