"""The report's section on the recipe: every knob, and what batches cost; in recipes of before only the batches."""

from __future__ import annotations

from dataclasses import replace
from html import unescape
from typing import Any

import pytest

from froude import Study
from froude.promote.choice.step_time import StepTime
from froude.promote.promotion import chosen
from froude.report import recipe_section
from froude.report.document import document
from froude.report.view import gather

pytestmark = pytest.mark.slow


def section(html: str) -> str:
    return unescape(html[html.index('<section id="recipe">') : html.index('<section id="rate">')])


def test_the_recipe_is_shown_knob_by_knob_with_what_batches_cost(finished: Study, promoted: Any) -> None:
    told = section(document(gather(finished, fits=promoted.fits)))
    for name in ("optimizer.lr", "batch", "optimizer.beta2", "schedule.warmup_tokens", "schedule.name"):
        assert f"<td>{name}</td>" in told
    assert told.count("<td>set by you</td>") == 4  # batch, decay, schedule and its tail
    assert "schedules were not compared" in told
    assert "at the worse end" in told
    assert "tokens^0.46 (prior, ± 0.1)" in told
    assert "768 (recipe)" in told
    assert told.count("<svg ") == 2
    assert "Hours are by the times of" in told


def test_where_steps_were_timed_hours_are_drawn_too(finished: Study, promoted: Any) -> None:
    view = gather(finished, fits=promoted.fits)
    timed = chosen(finished, promoted.fits, time=StepTime(0.01, 1e-11, "by a clock")).batches
    view = replace(view, batches=timed)
    assert [plot.title for plot in recipe_section.plots(view)] == [
        "Loss by batch, same tokens",
        "Hours by batch",
    ]
    table = recipe_section.batches(view)
    assert table is not None
    hours = [float(row[4]) for row in table.rows]
    assert hours == sorted(hours, reverse=True)
    assert timed is not None
    assert "Hours are by a clock." in recipe_section.words(timed)


def test_a_recipe_of_before_has_no_knobs_to_show(finished: Study, promoted: Any) -> None:
    view = gather(finished, fits=promoted.fits)
    assert view.recipe is not None
    before = replace(view, recipe=replace(view.recipe, knobs=()))
    assert recipe_section.knobs(before) is None
    assert "one more run" not in section(document(before))
    assert 'id="recipe"' not in document(replace(before, batches=None))
