"""The gradient noise scale from squared norms at two batch sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest

from froude import laws


def norms(
    steps: int, seed: int = 0, d: int = 1000, grad_sq: float = 4.0, variance: float = 2.0
) -> pl.DataFrame:
    """Squared norms of 8 micro-batches of 8 samples and of their mean: |G|² = 4, Σ = 2 I in d dimensions.

    Drawn exactly from chi-squares: the mean gradient is normal about G, the micro-batches about the mean.
    """
    rng = np.random.default_rng(seed)
    batch, k = 8, 8
    mean = variance / (batch * k) * rng.noncentral_chisquare(d, grad_sq / (variance / (batch * k)), steps)
    around = variance / batch * rng.chisquare(d * (k - 1), steps) / k
    columns = {"step": np.arange(1, steps + 1), "batch_small": batch, "batch_big": batch * k}
    return pl.DataFrame({**columns, "small_sq_norm": mean + around, "big_sq_norm": mean})


def test_both_estimators_are_unbiased_and_their_ratio_is_the_noise_scale() -> None:
    """Acceptance 3(b): S = d · 2 = 2000, |G|² = 4, B = 500, from 20,000 steps; sd(S) of a step is 33.8."""
    law = laws.noise_scale(norms(20_000))
    assert law.status == "ok"
    assert law.trace.value == pytest.approx(2000, abs=1)
    assert law.grad_sq.value == pytest.approx(4, abs=0.04)
    assert law.noise_scale.value == pytest.approx(500, rel=0.015)
    assert law.trace.se * math.sqrt(20_000) == pytest.approx(33.8, rel=0.2)
    assert law.noise_scale.low < 500 < law.noise_scale.high


@pytest.mark.slow
def test_the_spread_falls_with_steps_and_the_interval_covers_it() -> None:
    found = [[laws.noise_scale(norms(steps, seed)) for seed in range(200)] for steps in (200, 1000)]
    # A step's |G|² has a relative sd of .41: after 200 steps .029, after 1000 .013.
    for many, relative in zip(found, (0.029, 0.013), strict=True):
        values = np.array([law.noise_scale.value for law in many])
        assert np.std(values) / 500 == pytest.approx(relative, rel=0.15)
        assert np.mean(values) == pytest.approx(500, rel=0.01)
        inside = [law.noise_scale.low <= 500 <= law.noise_scale.high for law in many]
        assert 0.9 <= np.mean(inside) <= 0.99


def test_steps_without_a_measurement_are_left_out() -> None:
    frame = norms(2_000)
    spread = frame.with_columns(pl.col("step") * 10)
    unmeasured = [pl.lit(None, frame[name].dtype).alias(name) for name in frame.columns[1:]]
    every = pl.concat([spread, spread.with_columns(pl.col("step") + 1, *unmeasured)])
    assert laws.noise_scale(every.lazy()).table().equals(laws.noise_scale(spread).table())
    half = every.with_columns(pl.col("big_sq_norm").fill_null(1.0))
    with pytest.raises(ValueError, match="'batch_small' must be positive and finite"):
        laws.noise_scale(half)


def test_a_step_of_its_own_has_no_ratio_that_could_be_averaged() -> None:
    frame = norms(20_000)
    a, c = frame["small_sq_norm"].to_numpy(), frame["big_sq_norm"].to_numpy()
    grad_sq, trace = (64 * c - 8 * a) / 56, (a - c) / (1 / 8 - 1 / 64)
    # The mean of ratios over 10 steps each overshoots; the ratio of means does not.
    short = trace.reshape(-1, 10).mean(1) / grad_sq.reshape(-1, 10).mean(1)
    assert short.mean() > 504
    assert laws.noise_scale(frame).noise_scale.value == pytest.approx(trace.mean() / grad_sq.mean(), rel=1e-9)


def test_an_exponential_average_follows_a_drift() -> None:
    early, late = norms(2000), norms(2000, 1, variance=6.0)
    frame = pl.concat([early, late.with_columns(pl.col("step") + 2000)])
    law = laws.noise_scale(frame, half_life=150)
    assert law.status == "ok"
    assert law.noise_scale.low < 1500 < law.noise_scale.high
    assert law.noise_scale.value == pytest.approx(1500, rel=0.2)
    assert laws.noise_scale(frame).noise_scale.value == pytest.approx(1000, rel=0.1)
    trend = law.trend
    assert trend["noise_scale"].is_null()[:99].all()
    assert trend.filter(pl.col("step") == 2000)["noise_scale"].item() == pytest.approx(500, rel=0.2)
    assert trend["noise_scale"][-1] == pytest.approx(law.noise_scale.value, rel=1e-6)
    shuffled = laws.noise_scale(frame.sample(fraction=1, shuffle=True, seed=0), half_life=150)
    assert shuffled.noise_scale.value == pytest.approx(law.noise_scale.value, rel=1e-9)


def test_nothing_is_published_too_early_or_from_noise() -> None:
    few = laws.noise_scale(norms(99))
    assert few.status == "too_few_points"
    assert math.isnan(few.noise_scale.value)
    assert few.rows["fitted"].is_null().all()
    assert laws.noise_scale(norms(100)).status == "ok"
    lost = laws.noise_scale(norms(200, grad_sq=0.0))
    assert lost.status == "flat"
    assert math.isnan(lost.noise_scale.value)
    assert lost.trend["noise_scale"].is_null().mean() > 0.8  # type: ignore[operator]
    silent = laws.noise_scale(norms(200).with_columns(small_sq_norm=pl.col("big_sq_norm")))
    assert silent.status == "at_bound"
    assert laws.noise_scale(norms(3000), half_life=20).status == "too_few_points"
    for law in (few, lost, silent):
        assert law.reasons
        assert law.table().height == 3


def test_the_unit_of_the_batch_is_that_of_the_noise_scale() -> None:
    frame = norms(500)
    tokens = frame.with_columns(pl.col("batch_small") * 1024, pl.col("batch_big") * 1024)
    small, large = laws.noise_scale(frame), laws.noise_scale(tokens)
    assert large.noise_scale.value == pytest.approx(1024 * small.noise_scale.value, rel=1e-12)
    assert large.grad_sq.value == pytest.approx(small.grad_sq.value, rel=1e-12)


def test_a_step_that_contradicts_the_rest_is_marked() -> None:
    frame = norms(400).with_columns(
        pl.when(pl.col("step") == 100)
        .then(pl.col("big_sq_norm") * 3)
        .otherwise("big_sq_norm")
        .alias("big_sq_norm")
    )
    rows = laws.noise_scale(frame).rows
    assert rows["outlier"].arg_true().to_list() == [99]
    assert (rows["big_sq_norm"] - rows["fitted"] - rows["residual"]).abs().max() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("wrong", [{"half_life": 0}, {"half_life": 0.5}, {"half_life": math.nan}])
def test_a_half_life_is_a_number_of_steps(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="half_life"):
        laws.noise_scale(norms(200), **wrong)


def test_batches_in_the_wrong_order_are_an_error() -> None:
    with pytest.raises(ValueError, match="'batch_big'"):
        laws.noise_scale(norms(200).rename({"batch_small": "batch_big", "batch_big": "batch_small"}))


def test_advice_on_the_batch_is_to_double_it_only_where_the_interval_is_above_that() -> None:
    law = laws.noise_scale(norms(1000))
    doubled, kept = law.ramp(200), law.ramp(300)
    assert (doubled.factor, doubled.lr_factor) == (2, pytest.approx(2**0.5))
    assert (kept.factor, kept.lr_factor) == (1, 1.0)
    assert "trend signal" in doubled.line()
    assert "try a batch of 400 at 1.41 x the rate" in doubled.line()
    assert "no reason" in kept.line()
    for wrong in (0, -1, math.nan):
        with pytest.raises(ValueError, match="batch"):
            law.ramp(wrong)
    with pytest.raises(ValueError, match="too_few_points"):
        laws.noise_scale(norms(50)).ramp(100)


def test_anything_but_a_frame_is_a_type_error() -> None:
    for bad in (norms(200).to_dict(as_series=False), None, [1.0]):
        with pytest.raises(TypeError, match="polars"):
            laws.noise_scale(bad)  # type: ignore[arg-type]


def test_too_few_steps_draw_without_a_complaint() -> None:
    assert laws.noise_scale(norms(20)).plot().get_suptitle()
