"""The design of the next runs: its covariance is that of linear Gaussian theory, and it spends where it should."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from froude import laws
from froude.laws.loss import design
from froude.laws.loss.design import Design, forecast_design

TRUTH = (1.7, 420.0, 1500.0, 0.34, 0.36)
TARGET = {"params": 7e10, "tokens": 1.4e13}


@pytest.fixture(scope="module")
def law(grid: Callable[..., pl.DataFrame]) -> laws.LossLaw:
    return laws.loss_law(grid(TRUTH, noise=0.004))


def box(sizes: int, horizons: int) -> pl.DataFrame:
    n, d = np.meshgrid(np.geomspace(1e7, 2e10, sizes), np.geomspace(1e9, 2e12, horizons), indexing="ij")
    return pl.DataFrame({"params": n.ravel(), "tokens": d.ravel()})


def of(seed: int, candidates: int) -> Design:
    draw = np.random.default_rng(seed)
    half = draw.normal(0, 0.02, (candidates + 1, 6))
    return Design(pl.DataFrame(), half @ half.T, draw.uniform(0.002, 0.01, candidates + 1) ** 2, 0.5)


@given(st.integers(0, 50), st.integers(1, 6))
def test_one_run_narrows_by_what_was_said_and_order_does_not_matter(seed: int, candidates: int) -> None:
    start = of(seed, candidates)
    first, last = 0, candidates - 1
    shrink = start.shrinkage()
    assert np.all((shrink >= 0) & (shrink < 1))
    assert shrink[first] == pytest.approx(1 - start.after(first).deviation / start.deviation)
    one, other = start.after(first).after(last), start.after(last).after(first)
    assert np.allclose(one.covariance, other.covariance, rtol=1e-9, atol=1e-15)


def test_what_a_run_leaves_is_the_conditional_covariance() -> None:
    start = of(7, 3)
    seen = start.covariance + np.diag([start.noise[0], 0, 0, 0])
    column = start.covariance[:, [0]]
    assert start.after(0).covariance == pytest.approx(start.covariance - column @ column.T / seen[0, 0])


@given(st.integers(0, 50), st.floats(0.5, 20.0), st.booleans())
def test_a_set_keeps_to_its_budget(seed: int, budget: float, once: bool) -> None:
    cost = np.random.default_rng(seed).uniform(0.5, 5, 6)
    start = of(seed, 6)
    found = start.greedy(cost, budget, once=once)
    assert cost[found].sum() <= budget
    assert len(found) <= design.MOST
    assert not once or len(set(found)) == len(found)
    assert bool(found) == bool(((cost <= budget) & (start.shrinkage() >= design.WORTH)).any())


@given(st.integers(0, 50), st.floats(0.2, 1.2))
def test_a_set_ends_where_it_is_enough(seed: int, part: float) -> None:
    start, cost = of(seed, 6), np.ones(6)
    enough = part * start.deviation
    found = start.greedy(cost, 20.0, enough=enough)
    after = [start]
    for place in found:
        after.append(after[-1].after(place))
    assert all(before.deviation > enough for before in after[:-1])


def test_shares_are_of_all_the_variance(law: laws.LossLaw) -> None:
    found = forecast_design(law, box(2, 2), **TARGET)
    assert set(found.shares) == {"law", "reach", "noise"}
    assert sum(found.shares.values()) == pytest.approx(1)
    assert all(share >= 0 for share in found.shares.values())
    within = forecast_design(law, box(2, 2), params=1e9, tokens=1e11)
    assert within.shares["noise"] > 2 * found.shares["noise"]


def test_its_deviation_is_that_of_the_forecast(law: laws.LossLaw) -> None:
    found = forecast_design(law, box(2, 2), **TARGET)
    forecast = law.predict(**TARGET)
    half = forecast.half_width / law._calibration.factor
    points = np.log([[*TARGET.values()]])
    rows = np.log(law.sample.frame.select("params", "tokens").to_numpy())
    missed = float(design.misfit(points, rows, float(found.noise[-1]))[0, 0])
    assert 0 < missed <= design.MISFIT**2
    assert half == pytest.approx(1.645 * math.sqrt(found.deviation**2 - missed), rel=0.1)


def test_the_misfit_is_told_by_rows_nearby() -> None:
    rows = np.log([[1e8, 1e10], [1e9, 1e10]])
    points = np.log([[1e8, 1e10], [1e8, 1e11], [1e13, 1e16]])
    left = np.diagonal(design.misfit(points, rows, 1e-6)) / design.MISFIT**2
    assert left[0] < 0.01 < left[1] < 0.9
    assert left[2] == pytest.approx(1)


def test_nearer_to_the_target_is_worth_more_and_repeats_wear_out(law: laws.LossLaw) -> None:
    found = forecast_design(law, box(4, 4), **TARGET)
    shrink = found.shrinkage()
    assert shrink.argmax() == 15  # the largest size at the longest horizon
    assert shrink[15] > 5 * shrink[0]
    for _ in range(200):  # what the law misses stays
        found = found.after(0)
    assert found.shrinkage()[15] > 0.5 * shrink[15]


def test_a_prior_is_believed(grid: Callable[..., pl.DataFrame]) -> None:
    few = grid(TRUTH, noise=0.004).filter(pl.col("params") < 5e8, pl.col("tokens") < 5e10)
    tight, loose = (
        forecast_design(
            laws.loss_law(few, prior={"alpha": (0.34, sd), "beta": (0.36, sd)}), box(2, 2), **TARGET
        )
        for sd in (0.01, 0.2)
    )
    assert tight.deviation < 0.9 * loose.deviation


def test_no_law_no_design(grid: Callable[..., pl.DataFrame]) -> None:
    with pytest.raises(ValueError, match="too_few_points"):
        forecast_design(laws.loss_law(grid(TRUTH).head(3)), box(2, 2), **TARGET)


def lattice(count: int, params: tuple[float, float], tokens: tuple[float, float]) -> pl.DataFrame:
    n, d = np.meshgrid(np.geomspace(*params, count), np.geomspace(*tokens, count), indexing="ij")
    return pl.DataFrame({"params": n.ravel(), "tokens": d.ravel()})


@pytest.mark.parametrize(("misfit", "most"), [(1e-9, 1.0), (design.MISFIT, 1.5)])
def test_a_planned_set_is_worth_a_grid_of_twice_the_tokens(
    misfit: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the least-squares variance at the target, of the truth's own Jacobian: nothing that the planner assumes.

    Here the law is right: to be wary of it is what the second bound allows for.
    """
    monkeypatch.setattr(design, "MISFIT", misfit)
    e, a, b, alpha, beta = TRUTH
    small, wide = ((1e7, 1e8), (1e9, 1e10)), ((1e7, 1e10), (1e9, 1e12))
    noise = np.exp(0.004 * np.random.default_rng(0).standard_normal(9))
    start = lattice(3, *small).with_columns(
        loss=(e + a * pl.col("params") ** -alpha + b * pl.col("tokens") ** -beta) * pl.Series(noise)
    )
    law = laws.loss_law(start, prior={"alpha": (0.35, 0.1), "beta": (0.35, 0.1)})
    candidates, uniform = lattice(7, *wide), lattice(5, *wide)
    budget = 0.5 * uniform["tokens"].sum() - start["tokens"].sum()
    found = forecast_design(law, candidates, **TARGET)
    picked = candidates[found.greedy(candidates["tokens"].to_numpy(), budget)]
    planned = pl.concat([start.select("params", "tokens"), picked])
    assert planned["tokens"].sum() <= 0.5 * uniform["tokens"].sum()
    assert _variance(planned) < most * _variance(uniform)


def _variance(frame: pl.DataFrame) -> float:
    e, a, b, alpha, beta = TRUTH

    def slopes(n: np.ndarray, d: np.ndarray) -> np.ndarray:
        size, data = a * n**-alpha, b * d**-beta
        columns = [np.full_like(size, e), size, data, -np.log(n) * size, -np.log(d) * data]
        return np.stack(columns, axis=-1) / (e + size + data)[..., None]

    rows = slopes(frame["params"].to_numpy(), frame["tokens"].to_numpy())
    at = slopes(np.array(TARGET["params"]), np.array(TARGET["tokens"]))
    scale = np.abs(rows).max(axis=0)
    half = np.linalg.solve(np.linalg.qr(rows / scale).R.T, at / scale)
    return float(half @ half)
