"""The report's section on the loss law: its words for a table of runs, its axis of tokens."""

from __future__ import annotations

from dataclasses import replace
from html import unescape
from typing import Any

import pytest

from froude import Study
from froude.report.document import document
from froude.report.law_plots import token_axis
from froude.report.view import gather

pytestmark = pytest.mark.slow


def test_the_law_of_a_table_speaks_of_no_trunks(finished: Study, promoted: Any) -> None:
    view = gather(finished, fits=promoted.fits)
    past = {"source": "runs.csv", "stages": {"history": {"role": "history"}}}
    told = unescape(document(replace(view, meta=past)))
    assert "fitted to the table's runs" in told
    assert "trunks" not in told
    rows = promoted.fits.rows["loss_law"]
    sizes, horizons, trials = (rows[name].n_unique() for name in ("params", "tokens", "trial"))
    said = f"{rows.height} runs of {sizes} sizes and {horizons} horizons, branches of {trials} trunks"
    assert said in document(view)


@pytest.mark.parametrize("horizons", [1, 2, 6, 40])
@pytest.mark.parametrize("target", [None, (1e9, 1e12)])
def test_ticks_of_an_axis_of_tokens_never_overlap(horizons: int, target: tuple[float, float] | None) -> None:
    ticks = token_axis([1e9 * 1.1**i for i in range(horizons)], target).ticks
    assert ticks is not None
    assert 1 <= len(ticks) <= 7
    assert max(ticks) == (1e12 if target else 1e9 * 1.1 ** (horizons - 1))
