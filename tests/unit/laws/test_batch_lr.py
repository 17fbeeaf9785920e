"""The best learning rate as a function of batch."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import curve_fit

from froude import laws

BATCHES = np.array([64.0, 128, 256, 512, 1024, 2048])


def best(lr_max: float, noise_scale: float, noise: float = 0.0, seed: int = 0) -> pl.DataFrame:
    lr = lr_max / (1 + noise_scale / BATCHES) + noise * np.random.default_rng(seed).standard_normal(6)
    return pl.DataFrame({"batch": BATCHES, "lr": lr})


@settings(max_examples=40, deadline=None)
@given(lr_max=st.floats(1e-6, 10), noise_scale=st.floats(40, 3000))
def test_a_noiseless_law_is_recovered(lr_max: float, noise_scale: float) -> None:
    law = laws.batch_lr_law(best(lr_max, noise_scale))
    assert law.status == "ok"
    assert (law.lr_max.value, law.noise_scale.value) == pytest.approx((lr_max, noise_scale), rel=1e-6)
    assert law.lr(noise_scale) == pytest.approx(lr_max / 2, rel=1e-6)
    assert law.rows["residual"].abs().max() < 1e-6 * lr_max  # type: ignore[operator]


def test_it_is_unweighted_least_squares_in_lr_with_its_standard_errors() -> None:
    frame = best(3e-3, 400, noise=5e-5)
    law = laws.batch_lr_law(frame)

    def curve(batch: np.ndarray, top: float, scale: float) -> np.ndarray:
        return top / (1 + scale / batch)

    (top, scale), covariance = curve_fit(curve, BATCHES, frame["lr"].to_numpy(), p0=[3e-3, 400])
    assert (law.lr_max.value, law.noise_scale.value) == pytest.approx((top, scale), rel=1e-5)
    assert (law.lr_max.se, law.noise_scale.se) == pytest.approx(np.sqrt(np.diag(covariance)), rel=1e-3)


@pytest.mark.slow
def test_intervals_cover() -> None:
    found = [laws.batch_lr_law(best(3e-3, 400, noise=4e-5, seed=seed)) for seed in range(200)]
    assert all(law.status == "ok" for law in found)
    assert 0.91 <= np.mean([law.noise_scale.low <= 400 <= law.noise_scale.high for law in found]) <= 0.99
    assert 0.91 <= np.mean([law.lr_max.low <= 3e-3 <= law.lr_max.high for law in found]) <= 0.99


@pytest.mark.parametrize(
    "lr,status",
    [
        (1e-6 * BATCHES, "at_bound"),
        (np.full(6, 1e-3), "at_bound"),
        (1 / BATCHES, "at_bound"),
        (1e-3 / (1 + 10 / BATCHES), "edge"),
        (1e-3 / (1 + 20_000 / BATCHES), "edge"),
    ],
)
def test_rates_that_do_not_bend_are_not_ok(lr: np.ndarray, status: str) -> None:
    law = laws.batch_lr_law(pl.DataFrame({"batch": BATCHES, "lr": lr}))
    assert law.status == status
    assert law.reasons
    assert law.table()["parameter"].to_list() == ["lr_max", "noise_scale"]
    assert law.rows.height == 6


def test_a_curve_lost_in_noise_is_not_ok() -> None:
    scatter = np.exp(np.random.default_rng(3).standard_normal(6))
    law = laws.batch_lr_law(best(3e-3, 400).with_columns(pl.col("lr") * scatter))
    assert law.status in {"flat", "edge", "at_bound"}
    assert law.reasons


def test_two_batches_are_too_few() -> None:
    law = laws.batch_lr_law(best(3e-3, 400)[:2])
    assert law.status == "too_few_points"
    assert math.isnan(law.noise_scale.value)
    assert law.rows["fitted"].is_null().all()
    with pytest.raises(ValueError, match="too_few_points"):
        law.lr(64)
    with pytest.raises(ValueError, match="batch"):
        laws.batch_lr_law(best(3e-3, 400)).lr(-1)


def test_one_batch_that_contradicts_the_rest_is_marked() -> None:
    batches = np.geomspace(64, 16384, 12)
    lr = 3e-3 / (1 + 400 / batches) + 1e-6 * np.random.default_rng(0).standard_normal(12)
    lr[5] *= 1.2
    law = laws.batch_lr_law(pl.DataFrame({"batch": batches, "lr": lr}))
    assert law.rows["outlier"].arg_true().to_list() == [5]


@pytest.mark.slow
@pytest.mark.parametrize("many", [8, 24])
def test_intervals_cover_where_the_scatter_is_in_proportion_to_the_rate(many: int) -> None:
    batches, inside = np.geomspace(64, 8192, many), []
    for seed in range(200):
        scatter = np.exp(0.05 * np.random.default_rng(seed).standard_normal(many))
        frame = pl.DataFrame({"batch": batches, "lr": 3e-3 / (1 + 1000 / batches) * scatter})
        law = laws.batch_lr_law(frame)
        inside.append(
            (law.lr_max.low <= 3e-3 <= law.lr_max.high, law.noise_scale.low <= 1e3 <= law.noise_scale.high)
        )
    assert (np.mean(inside, axis=0) >= 0.86).all()
