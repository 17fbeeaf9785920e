"""Power laws of an optimum."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from froude import laws

N, D = (v.ravel() for v in np.meshgrid([1e6, 1e7, 1e8], [1e8, 1e9, 1e10]))


def optima(c: float, p: float, q: float, noise: float = 0.0, seed: int = 0) -> pl.DataFrame:
    scatter = np.exp(noise * np.random.default_rng(seed).standard_normal(9))
    return pl.DataFrame({"params": N, "tokens": D, "lr": c * N**p * D**q * scatter})


@settings(max_examples=40, deadline=None)
@given(c=st.floats(1e-4, 1e4), p=st.floats(-1, 1), q=st.floats(-1, 1))
def test_exact_power_laws_are_recovered(c: float, p: float, q: float) -> None:
    law = laws.optimum_law(optima(c, p, q))
    if max(abs(p), abs(q)) < 1e-6:
        return
    assert law.status == "ok"
    assert law.coefficient.value == pytest.approx(c, rel=1e-8)
    assert law.exponents["params"].value == pytest.approx(p, abs=1e-9)
    assert law.exponents["tokens"].value == pytest.approx(q, abs=1e-9)
    assert law.r2 == pytest.approx(1)
    assert law.predict(params=1e9, tokens=1e11).value == pytest.approx(c * 1e9**p * 1e11**q, rel=1e-7)


def test_intervals_are_those_of_least_squares() -> None:
    frame = optima(1.8, -0.7, 0.3, noise=0.1)
    law = laws.optimum_law(frame)
    x = np.column_stack([np.ones(9), np.log(N), np.log(D)])
    y = np.log(frame["lr"].to_numpy())
    beta, rss, *_ = np.linalg.lstsq(x, y, rcond=None)
    covariance = rss[0] / 6 * np.linalg.inv(x.T @ x)
    assert law.exponents["params"].se == pytest.approx(math.sqrt(covariance[1, 1]), rel=1e-6)
    half = 2.4469118511 * math.sqrt(covariance[2, 2])  # t quantile with 6 degrees of freedom
    assert law.exponents["tokens"].high == pytest.approx(beta[2] + half, rel=1e-6)
    assert law.r2 == pytest.approx(1 - rss[0] / ((y - y.mean()) ** 2).sum(), rel=1e-9)


@pytest.mark.slow
def test_intervals_and_predictions_cover() -> None:
    inside, predicted, rng = [], [], np.random.default_rng(5)
    for seed in range(300):
        law = laws.optimum_law(optima(1.8, -0.7, 0.3, noise=0.1, seed=seed))
        inside.append(law.exponents["params"].low <= -0.7 <= law.exponents["params"].high)
        new = 1.8 * 1e9**-0.7 * 1e11**0.3 * math.exp(0.1 * rng.standard_normal())
        at = law.predict(params=1e9, tokens=1e11, level=0.9)
        predicted.append(at.low <= new <= at.high)
    assert 0.92 <= np.mean(inside) <= 0.98
    assert 0.86 <= np.mean(predicted) <= 0.94


def test_groups_widen_the_interval_of_what_varies_between_them() -> None:
    rng = np.random.default_rng(0)
    n = np.repeat(np.geomspace(1e6, 1e9, 6), 20)
    shared = np.repeat(0.2 * rng.standard_normal(6), 20)
    frame = pl.DataFrame(
        {"params": n, "lr": n**-0.5 * np.exp(shared + 0.01 * rng.standard_normal(120)), "size": n}
    )
    rows = laws.optimum_law(frame, over=["params"])
    groups = laws.optimum_law(frame, over=["params"], groups="size")
    assert groups.exponents["params"].value == pytest.approx(rows.exponents["params"].value)
    assert groups.exponents["params"].se > 2 * rows.exponents["params"].se
    assert groups.exponents["params"].low <= -0.5 <= groups.exponents["params"].high
    assert groups.rows.height == 120
    few = laws.optimum_law(frame.filter(pl.col("params") < 1e7), over=["params"], groups="size")
    assert few.status == "too_few_points"


def test_a_weight_of_two_counts_as_two_rows() -> None:
    frame = optima(1.8, -0.7, 0.3, noise=0.1).with_columns(pl.Series("w", [2.0, *[1.0] * 8]))
    weighted = laws.optimum_law(frame, weights="w")
    twice = laws.optimum_law(pl.concat([frame, frame[:1]]))
    for name in ("params", "tokens"):
        assert weighted.exponents[name].value == pytest.approx(twice.exponents[name].value)
    assert weighted.r2 == pytest.approx(twice.r2)


def test_what_cannot_be_told_is_not_ok() -> None:
    frame = optima(1.8, -0.7, 0.3)
    assert laws.optimum_law(frame[:3]).status == "too_few_points"
    assert laws.optimum_law(frame.with_columns(params=pl.lit(1e6))).status == "too_few_points"
    assert laws.optimum_law(frame.with_columns(tokens=20 * pl.col("params"))).status == "flat"
    constant = laws.optimum_law(frame.with_columns(lr=pl.lit(1e-3)))
    assert constant.status == "flat"
    assert math.isfinite(constant.r2)
    for law in (laws.optimum_law(frame[:3]), constant):
        assert law.table().height == 3
        assert law.rows.height == law.sample.frame.height
    with pytest.raises(ValueError, match="too_few_points"):
        laws.optimum_law(frame[:3]).predict(params=1e9, tokens=1e9)


def test_predict_takes_exactly_the_columns_of_the_law() -> None:
    law = laws.optimum_law(optima(1.8, -0.7, 0.3, noise=0.05), over=["params"])
    assert law.predict(params=1e9).low < law.predict(params=1e9).value < law.predict(params=1e9).high
    for wrong in ({}, {"params": 1e9, "tokens": 1e9}, {"params": 0}, {"params": 1e9, "level": 1.0}):
        with pytest.raises(ValueError, match=r"params|level"):
            law.predict(**wrong)
    with pytest.raises(ValueError, match="over"):
        laws.optimum_law(optima(1, 1, 1), over=[])


def test_an_outlier_is_marked_and_many_rows_fit() -> None:
    rng = np.random.default_rng(0)
    n = np.exp(rng.uniform(np.log(1e6), np.log(1e9), 200_000))
    lr = n**-0.5 * np.exp(0.05 * rng.standard_normal(n.size))
    lr[17] *= 3
    law = laws.optimum_law(pl.DataFrame({"params": n, "lr": lr}), over=["params"])
    assert law.exponents["params"].value == pytest.approx(-0.5, abs=1e-3)
    assert law.rows["outlier"][17]


def test_optima_of_another_law_with_their_status_are_read() -> None:
    frame = optima(1.8, -0.7, 0.3).with_columns(pl.Series("status", ["ok"] * 8 + ["edge"]))
    spoiled = frame.with_columns(pl.when(pl.col("status") == "edge").then(9.0).otherwise("lr").alias("lr"))
    law = laws.optimum_law(spoiled)
    assert law.exponents["params"].value == pytest.approx(-0.7)
    assert law.rows["fitted"].null_count() == 1
