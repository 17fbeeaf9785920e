"""The table that says where a step's time goes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from matplotlib.figure import Figure

from froude import Study, schemas
from froude.report import tables, text
from froude.report.document import document
from froude.report.view import gather

NAMES = ("data", "forward", "backward", "reduce", "optimizer")


def view(**columns: Any) -> Any:
    rows = [{"seconds": 0.1, "tokens_per_second": 5000.0, **columns} for _ in range(3)]
    return SimpleNamespace(steps=pl.from_arrow(schemas.table(schemas.STEPS, rows)))


def test_shares_are_of_the_median_step_and_leave_the_rest_over() -> None:
    timed = {f"{name}_seconds": 0.01 * (1 + place) for place, name in enumerate(NAMES[:4])}
    found = tables.speed(view(**timed, mfu=0.45))
    assert found is not None
    assert found.rows[1] == ("forward", "20.00", "20.0%")
    assert found.rows[4] == ("optimizer", "0.00", "0.0%")  # of a step that made no update
    assert found.rows[5][1:] == ("0.00", "0.0%")
    assert found.rows[6] == (f"step: {text.whole(5000)} tokens/s, MFU 45.0%", "100.00", "")


@pytest.mark.parametrize("frame", [view(), SimpleNamespace(steps=pl.DataFrame())])
def test_of_runs_that_were_not_timed_there_is_none(frame: Any) -> None:
    assert tables.speed(frame) is None


def test_the_page_has_it_where_phases_were_timed(
    finished: Study, promoted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Figure, "savefig", lambda self, sink, **_: sink.write('<svg viewBox="0 0 1 1"></svg>')
    )
    study = gather(finished, fits=promoted.fits)
    assert "time goes</h3>" not in document(study)
    known = {"seconds": 0.1, "forward_seconds": 0.03, "tokens_per_second": 5e3, "mfu": 0.45}
    timed = study.steps.with_columns(**{name: pl.lit(value) for name, value in known.items()})
    page = document(replace(study, steps=timed))
    assert "time goes</h3>" in page
    assert "30.0%" in page
    assert "MFU 45.0%" in page
