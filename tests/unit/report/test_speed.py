"""The table that says where a step's time goes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from froude import schemas
from froude.report import tables, text

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
