"""The comparator: three numbers under published exponents, and a line in compute."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from froude import laws

SIZES, HORIZONS = (1e6, 4e6, 1.6e7), (2e7, 1e8, 5e8)


def runs(e: float, a: float, b: float, *, noise: float = 0.0, seed: int = 0) -> pl.DataFrame:
    draw = np.random.default_rng(seed)
    rows = [(n, d, e + a / n**0.34 + b / d**0.28) for n in SIZES for d in HORIZONS]
    frame = pl.DataFrame(rows, schema=["params", "tokens", "loss"], orient="row")
    return frame.with_columns(loss=pl.col("loss") * np.exp(noise * draw.standard_normal(frame.height)))


@given(st.floats(0.5, 3), st.floats(1, 2000), st.floats(1, 2000))
def test_it_finds_what_made_the_losses(e: float, a: float, b: float) -> None:
    law = laws.comparator(runs(e, a, b))
    assert [law.E.value, law.A.value, law.B.value] == pytest.approx([e, a, b], rel=1e-6)
    assert law.predict(params=1e9, tokens=2e10) == pytest.approx(e + a / 1e9**0.34 + b / 2e10**0.28)


def test_its_intervals_cover_as_they_say() -> None:
    inside = np.zeros(3)
    for seed in range(200):
        law = laws.comparator(runs(1.7, 400, 400, noise=0.01, seed=seed))
        found = zip((law.E, law.A, law.B), (1.7, 400, 400), strict=True)
        inside += [each.low <= value <= each.high for each, value in found]
    assert np.all(inside >= 180)  # of 200 at 95%, three binomial standard deviations


def test_errors_are_relative() -> None:
    """A run of twice the loss counts no more than another: all losses times two is the law times two."""
    frame = runs(1.7, 400, 400, noise=0.02)
    one, two = laws.comparator(frame), laws.comparator(frame.with_columns(pl.col("loss") * 2))
    assert two.predict(params=1e9, tokens=1e10) == pytest.approx(2 * one.predict(params=1e9, tokens=1e10))


def test_a_term_never_goes_below_zero() -> None:
    """More parameters did harm here: size is said to do nothing."""
    rising = runs(1.7, 0, 400).with_columns(loss=pl.col("loss") * (1 + 0.02 * (pl.col("params") / 1e6).log()))
    law = laws.comparator(rising)
    assert law.A.value == 0
    assert law.status == "at_bound"
    assert law.reasons == ("A is 0",)
    assert math.isnan(law.A.se)
    assert math.isfinite(law.predict(params=1e9, tokens=1e10))


def test_the_line_in_compute_goes_through_runs_that_no_cheaper_one_beats() -> None:
    front = [(1e6, 2e7), (4e6, 8e7), (1.6e7, 3.2e8)]
    rows = [(n, d, 30 * (6 * n * d) ** -0.05) for n, d in front]
    worse = [(1e6, 4e8, 9.0), (1.6e7, 2e7, 9.0)]
    law = laws.comparator(pl.DataFrame([*rows, *worse], schema=["params", "tokens", "loss"], orient="row"))
    assert law.slope == pytest.approx(-0.05)
    assert law.by_compute(flops=1e20) == pytest.approx(30 * 1e20**-0.05)


def test_runs_of_one_budget_make_no_line() -> None:
    rows = [(n, 1e18 / 6 / n * (1 + k / 1000), 3.0 + k / 50) for k, n in enumerate((1e7, 3e7, 1e8, 3e8))]
    law = laws.comparator(pl.DataFrame(rows, schema=["params", "tokens", "loss"], orient="row"))
    assert math.isnan(law.by_compute(flops=1e20))


def test_too_few_runs_are_told() -> None:
    law = laws.comparator(runs(1.7, 400, 400).filter(pl.col("params") == SIZES[0]))
    assert (law.status, law.reasons) == ("too_few_points", ("3 rows, 1 sizes, 3 horizons; needs 4, 2, 2",))
    with pytest.raises(ValueError, match="3 rows, 1 sizes"):
        law.predict(params=1e9, tokens=1e10)
    assert law.rows["fitted"].null_count() == 3


def test_it_is_drawn_and_tabled_like_any_law() -> None:
    law = laws.comparator(runs(1.7, 400, 400, noise=0.01))
    assert law.table()["parameter"].to_list() == ["E", "A", "B"]
    assert len(law.drawing()) == 2
    assert law.rows["residual"].abs().max() < 0.1
