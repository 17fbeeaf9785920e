"""Whatever positive numbers come in: no exception, no warning, and never a NaN under status ok."""

from __future__ import annotations

import math
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from froude import laws

pytestmark = pytest.mark.slow

WILD = st.floats(1e-300, 1e300)
WIDE = st.floats(1e-15, 1e15)
LOSS_WIDE = st.one_of(st.none(), st.floats(0.5, 6), st.sampled_from([2.0, math.nan, math.inf]), WIDE)
MILD = st.one_of(st.sampled_from([1.0, 2.0, 4.0, 8.0, 1e9]), st.floats(1e-3, 1e12))
LOSS = st.one_of(st.none(), st.floats(0.5, 6), st.sampled_from([2.0, 2.0000001, math.nan, math.inf]), WILD)


def frames(columns: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[pl.DataFrame]:
    rows = st.lists(st.tuples(*columns.values()), max_size=14)
    return rows.map(lambda r: pl.DataFrame(r, schema=dict.fromkeys(columns, pl.Float64), orient="row"))


def numbers(result: Any) -> list[float]:
    table = result.table()
    if "status" in table.columns:
        table = table.filter(pl.col("status") == "ok")
    return [value for column in table.select(pl.selectors.float()) for value in column]


QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
RATE = st.one_of(st.sampled_from([2.0**k for k in range(-12, 0)]), WILD)
WIDTH = st.one_of(st.sampled_from([32.0, 64.0, 128.0]), WILD)


def check(result: Any, frame: pl.DataFrame) -> None:
    if result.status == "ok":
        assert not any(math.isnan(v) for v in numbers(result))
    else:
        assert result.reasons
    rows = result.rows
    assert rows.height == frame.height
    assert rows.select(frame.columns).equals(frame, null_equal=True)


@QUICK
@given(frames({"lr": RATE, "loss": LOSS}))
def test_lr_curve(frame: pl.DataFrame) -> None:
    check(laws.lr_curve(frame), frame)


@QUICK
@given(frames({"width": WIDTH, "lr": RATE, "loss": LOSS}))
def test_lr_transfer(frame: pl.DataFrame) -> None:
    law = laws.lr_transfer(frame)
    check(law, frame)
    if law.status == "ok":
        assert all(math.isfinite(v) for v in (law.slope.value, law.slope.se, law.slope.low, law.slope.high))


@QUICK
@given(frames({"batch": st.one_of(MILD, WIDE), "steps": st.one_of(MILD, WIDE)}))
def test_critical_batch(frame: pl.DataFrame) -> None:
    check(laws.critical_batch(frame), frame)


@QUICK
@given(
    frames({"params": st.one_of(MILD, WILD), "tokens": st.one_of(MILD, WILD), "lr": st.one_of(MILD, WILD)})
)
def test_optimum_law(frame: pl.DataFrame) -> None:
    law = laws.optimum_law(frame)
    check(law, frame)
    assert law.status != "ok" or 0 <= law.r2 <= 1


@settings(QUICK, max_examples=6)
@given(
    frames({"params": st.one_of(MILD, WIDE), "tokens": st.one_of(MILD, WIDE), "loss": LOSS_WIDE}),
    st.booleans(),
)
def test_loss_law(frame: pl.DataFrame, with_prior: bool) -> None:
    prior = {"alpha": (0.35, 0.1), "beta": (0.35, 0.1)} if with_prior else None
    law = laws.loss_law(frame, prior=prior)
    if law.status in {"ok", "prior_driven", "at_bound"}:
        assert all(not math.isnan(v) for v in (law.E, law.A, law.B, law.alpha, law.beta, law.objective))
    else:
        assert law.reasons
    if law.status == "prior_driven":
        prediction = law.predict(params=1e9, tokens=1e10)
        assert not any(math.isnan(v) for v in (prediction.loss, prediction.low, prediction.high))


@QUICK
@given(frames({"batch": MILD, "lr": RATE, "steps": MILD, "loss": LOSS}), st.floats(0.5, 6))
def test_steps_to_target(frame: pl.DataFrame, target: float) -> None:
    found = laws.steps_to_target(frame, target)
    assert found["batch"].is_unique().all()
    assert found["steps"].is_between(frame["steps"].min() or 0, frame["steps"].max() or 0).all()


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_units_do_not_matter(scale: float) -> None:
    batch = [64.0, 128.0, 256.0, 512.0, 1024.0]
    frame = pl.DataFrame({"batch": [b * scale for b in batch], "steps": [100 * (1 + 200 / b) for b in batch]})
    law = laws.critical_batch(frame)
    assert law.status == "ok"
    assert law.b_crit == pytest.approx(200 * scale, rel=1e-6)


def test_columns_that_span_thirty_decades_are_an_error() -> None:
    frame = pl.DataFrame({"params": [1e-20, 1e20], "tokens": [1e9, 1e10], "loss": [2.0, 3.0]})
    with pytest.raises(ValueError, match="'params'"):
        laws.loss_law(frame)
    with pytest.raises(ValueError, match="'steps'"):
        laws.critical_batch(pl.DataFrame({"batch": [1.0, 2.0], "steps": [1e-20, 1e20]}))
