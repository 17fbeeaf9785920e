"""The design of the next runs: its covariance is that of linear Gaussian theory, and it spends where it should."""

from __future__ import annotations

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
def rows(grid: Callable[..., pl.DataFrame]) -> pl.DataFrame:
    return grid(TRUTH, noise=0.004)


@pytest.fixture(scope="module")
def law(rows: pl.DataFrame) -> laws.LossLaw:
    return laws.loss_law(rows)


def box(sizes: int, horizons: int) -> pl.DataFrame:
    n, d = np.meshgrid(np.geomspace(1e7, 2e10, sizes), np.geomspace(1e9, 2e12, horizons), indexing="ij")
    return pl.DataFrame({"params": n.ravel(), "tokens": d.ravel()})


def of(seed: int, candidates: int, draws: int) -> Design:
    half = np.random.default_rng(seed).normal(0, 0.02, (draws, candidates + 1, 6))
    return Design(pl.DataFrame(), half @ half.transpose(0, 2, 1), 0.005**2, 0.003**2, 12.0)


def test_without_discrepancy_it_is_the_least_squares_variance(
    rows: pl.DataFrame, law: laws.LossLaw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(design, "SHARE", 0.0)
    monkeypatch.setattr(design, "_draws", lambda theta, *_: [theta])
    monkeypatch.setattr(design, "PRIOR_SD", (1e3,) * 5)
    found = forecast_design(law, rows, box(2, 2), **TARGET)

    def slopes(n: np.ndarray, d: np.ndarray) -> np.ndarray:
        """Numeric derivatives of ln L with respect to (E, A, B, alpha, beta)."""
        centre = np.array([law.E, law.A, law.B, law.alpha, law.beta])

        def log_loss(p: np.ndarray) -> np.ndarray:
            return np.log(p[0] + p[1] * n ** -p[3] + p[2] * d ** -p[4])

        steps = 1e-6 * centre
        return np.column_stack(
            [
                (log_loss(centre + s * unit) - log_loss(centre - s * unit)) / (2 * s)
                for s, unit in zip(steps, np.eye(5), strict=True)
            ]
        )

    jacobian = slopes(rows["params"].to_numpy(), rows["tokens"].to_numpy())
    gradient = slopes(np.array([TARGET["params"]]), np.array([TARGET["tokens"]]))[0]
    variance = found.noise * gradient @ np.linalg.solve(jacobian.T @ jacobian, gradient)
    assert found.covariance[0, -1, -1] == pytest.approx(variance, rel=1e-3)


@given(st.integers(0, 50), st.integers(1, 6), st.integers(1, 4))
def test_one_run_narrows_by_what_was_said_and_order_does_not_matter(
    seed: int, candidates: int, draws: int
) -> None:
    start = of(seed, candidates, draws)
    first, last = 0, candidates - 1
    shrink = start.shrinkage()
    assert np.all((shrink >= 0) & (shrink < 1))
    before, after = (np.sqrt(d.covariance[:, -1, -1] + d.noise) for d in (start, start.after(first)))
    assert shrink[first] == pytest.approx(float((1 - after / before).mean()))
    one, other = start.after(first).after(last), start.after(last).after(first)
    assert np.allclose(one.covariance, other.covariance, rtol=1e-9, atol=1e-15)


@given(st.integers(0, 50), st.floats(0.5, 20.0), st.booleans())
def test_a_set_keeps_to_its_budget(seed: int, budget: float, once: bool) -> None:
    cost = np.random.default_rng(seed).uniform(0.5, 5, 6)
    start = of(seed, 6, 2)
    found = start.greedy(cost, budget, once=once)
    assert cost[found].sum() <= budget
    assert len(found) <= design.MOST
    assert not once or len(set(found)) == len(found)
    assert bool(found) == bool(((cost <= budget) & (start.shrinkage() >= design.WORTH)).any())


def test_nearer_to_the_target_is_worth_more_and_repeats_wear_out(
    rows: pl.DataFrame, law: laws.LossLaw
) -> None:
    candidates = box(4, 4)
    found = forecast_design(law, rows, candidates, **TARGET)
    shrink = found.shrinkage()
    assert shrink.argmax() == 15  # the largest size at the longest horizon
    assert shrink[15] > 5 * shrink[0]
    for _ in range(200):  # what the law misses stays
        found = found.after(0)
    assert found.shrinkage()[15] > 0.5 * shrink[15]


def test_a_prior_is_believed(rows: pl.DataFrame) -> None:
    few = rows.filter(pl.col("params") < 5e8, pl.col("tokens") < 5e10)
    tight, loose = (
        forecast_design(
            laws.loss_law(few, prior={"alpha": (0.34, sd), "beta": (0.36, sd)}), few, box(2, 2), **TARGET
        )
        for sd in (0.01, 0.1)
    )
    assert tight.deviation < 0.7 * loose.deviation


def test_rows_quieter_than_a_prior_believes_settle_the_noise(rows: pl.DataFrame, law: laws.LossLaw) -> None:
    free = forecast_design(law, rows, box(2, 2), **TARGET)
    assert free.after(0).noise == free.quiet == free.noise
    believing = laws.loss_law(rows, prior={"alpha": (0.34, 0.1), "beta": (0.36, 0.1)})
    found = forecast_design(believing, rows, box(2, 2), **TARGET)
    assert found.quiet < 0.5 * found.noise  # 0.4% in truth, 1.5% beforehand
    for _ in range(1000):
        found = found.after(0)
    assert found.noise == pytest.approx(found.quiet, rel=0.1)


def test_more_rows_than_cells_are_merged(
    rows: pl.DataFrame, law: laws.LossLaw, monkeypatch: pytest.MonkeyPatch
) -> None:
    jitter = np.random.default_rng(0).normal(1, 1e-4, 40 * rows.height)
    many = pl.concat([rows] * 40).with_columns(params=pl.col("params") * jitter)
    exact = forecast_design(law, many, box(3, 3), **TARGET)
    monkeypatch.setattr(design, "CELLS", 50)
    merged = forecast_design(law, many, box(3, 3), **TARGET)
    assert np.allclose(merged.shrinkage(), exact.shrinkage(), rtol=0.05)


def test_rows_of_one_run_are_not_worth_as_many_runs(rows: pl.DataFrame) -> None:
    sizes = rows["params"].unique().sort()
    offsets = pl.DataFrame({"params": sizes, "off": np.random.default_rng(3).normal(1, 0.01, len(sizes))})
    runs = rows.join(offsets, on="params").with_columns(loss=pl.col("loss") * pl.col("off"))
    law = laws.loss_law(runs)

    def both(params: float, tokens: float) -> tuple[Design, Design]:
        alone, together = (
            forecast_design(law, runs, box(2, 2), params=params, tokens=tokens, groups=groups)
            for groups in (None, "params")
        )
        return alone, together

    # What a size's rows have in common says nothing about other sizes, and cancels along the horizons.
    alone, together = both(params=7e11, tokens=1e12)
    assert together.noise == alone.noise
    assert together.deviation > 1.1 * alone.deviation
    alone, together = both(params=1e10, tokens=1e13)
    assert together.deviation < alone.deviation


def test_no_law_no_design(rows: pl.DataFrame) -> None:
    with pytest.raises(ValueError, match="too_few_points"):
        forecast_design(laws.loss_law(rows.head(3)), rows.head(3), box(2, 2), **TARGET)


def lattice(count: int, params: tuple[float, float], tokens: tuple[float, float]) -> pl.DataFrame:
    n, d = np.meshgrid(np.geomspace(*params, count), np.geomspace(*tokens, count), indexing="ij")
    return pl.DataFrame({"params": n.ravel(), "tokens": d.ravel()})


def test_a_planned_set_is_worth_a_grid_of_twice_the_tokens() -> None:
    """By the least-squares variance at the target, of the truth's own Jacobian: nothing that the planner assumes."""
    e, a, b, alpha, beta = TRUTH
    small, wide = ((1e7, 1e8), (1e9, 1e10)), ((1e7, 1e10), (1e9, 1e12))
    noise = np.exp(0.004 * np.random.default_rng(0).standard_normal(9))
    start = lattice(3, *small).with_columns(
        loss=(e + a * pl.col("params") ** -alpha + b * pl.col("tokens") ** -beta) * pl.Series(noise)
    )
    law = laws.loss_law(start, prior={"alpha": (0.35, 0.1), "beta": (0.35, 0.1)})
    candidates, uniform = lattice(7, *wide), lattice(5, *wide)
    budget = 0.5 * uniform["tokens"].sum() - start["tokens"].sum()
    found = forecast_design(law, start, candidates, **TARGET)
    picked = candidates[found.greedy(candidates["tokens"].to_numpy(), budget)]
    planned = pl.concat([start.select("params", "tokens"), picked])
    assert planned["tokens"].sum() <= 0.5 * uniform["tokens"].sum()
    assert _variance(planned) < _variance(uniform)


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
