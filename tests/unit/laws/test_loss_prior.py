"""The law under a prior: what the quickstart's four proxies can and cannot say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest

from froude import laws
from froude.laws.loss import noise
from froude.laws.loss.draws import WEAK, ExponentPrior, bends
from froude.laws.loss.fit import Problem
from froude.laws.loss.posterior import posterior, thinned

PRIOR = {"alpha": (0.35, 0.1), "beta": (0.35, 0.1)}
TARGET = {"params": 26.0 * 192**2, "tokens": 768.0 * 1300}


def study(
    seed: int, trunk: float = 0.004, branch: float = 0.002, exponent: float = 0.35
) -> tuple[pl.DataFrame, float]:
    """Return 4 widths × 3 branches as the quickstart trains them, and the true loss of its target run.

    Branches of a width share their trunk's noise (relative sd `trunk`).
    """
    rng = np.random.default_rng(seed)
    size, data = 0.25 * TARGET["params"] ** exponent, 0.53 * TARGET["tokens"] ** exponent
    rows = []
    for width in (32, 48, 64, 96):
        shared = trunk * rng.standard_normal()
        for steps in (432, 648, 972):
            n, d = 26.0 * width**2, 768.0 * steps
            loss = 0.5 + size * n**-exponent + data * d**-exponent
            rows.append((width, n, d, loss * math.exp(shared + branch * rng.standard_normal())))
    return pl.DataFrame(rows, schema=["width", "params", "tokens", "loss"], orient="row"), 0.5 + 0.25 + 0.53


@pytest.mark.slow
@pytest.mark.parametrize(("trunk", "most"), [(0.002, 0.05), (0.014, 0.12)])
def test_the_forecast_is_as_wide_as_its_trunks_are_noisy_and_covers_the_truth(
    trunk: float, most: float
) -> None:
    """Twelve branches of four trunks are no twelve runs."""
    inside, halves, errors = [], [], []
    for seed in range(12):
        frame, truth = study(seed, trunk=trunk)
        law = laws.loss_law(frame, prior=PRIOR, groups="width")
        assert law.status == "prior_driven"
        prediction = law.predict(**TARGET)
        inside.append(prediction.low <= truth <= prediction.high)
        halves.append((prediction.high - prediction.low) / 2 / prediction.loss)
        errors.append(prediction.loss / truth - 1)
    assert min(halves) > 0.01
    assert max(halves) < most
    assert sum(inside) >= 9  # benchmarks/trunks.md has the coverage of 300 worlds a noise
    assert abs(np.mean(errors)) < 0.02


def test_it_is_certified_as_any_other_and_stands_beside_the_free_fit() -> None:
    law = laws.loss_law(study(0)[0], prior=PRIOR)
    assert law.predict(params=TARGET["params"] / 2, tokens=2 * TARGET["tokens"]).certified
    prediction = law.predict(**TARGET)
    few = laws.loss_law(study(0)[0][:6], prior=PRIOR).predict(**TARGET)
    assert any("held-out larger runs" in reason for reason in few.reasons)
    assert prediction.extrapolation["params"] == pytest.approx(4.0)
    assert prediction.extrapolation["tokens"] == pytest.approx(1300 / 972)
    assert any("tokens per parameter" in reason for reason in law.reasons)
    assert law.free is not None
    assert law.free.prior is None
    assert law.free.objective <= law.objective
    assert laws.loss_law(study(0)[0]).free is None


def test_wider_levels_and_wider_priors_give_wider_intervals() -> None:
    frame = study(1)[0]

    def width(level: float, sd: float) -> float:
        p = laws.loss_law(frame, prior={"alpha": (0.35, sd), "beta": (0.35, sd)}).predict(
            **TARGET, level=level
        )
        return p.high - p.low

    assert width(0.5, 0.1) < width(0.9, 0.1) < width(0.99, 0.1)
    assert width(0.9, 0.01) < width(0.9, 0.1)


def test_sharp_priors_fix_the_exponents_and_give_the_truth_back() -> None:
    frame, truth = study(2, trunk=0, branch=0)
    law = laws.loss_law(frame, prior={"alpha": (0.35, 1e-4), "beta": (0.35, 1e-4)})
    assert (law.alpha, law.beta) == pytest.approx((0.35, 0.35), abs=1e-3)
    assert pytest.approx(0.5, abs=0.01) == law.E
    assert law.predict(**TARGET).loss == pytest.approx(truth, rel=0.01)


def problem_of(frame: pl.DataFrame) -> tuple[Problem, np.ndarray]:
    columns = [frame[name].to_numpy() for name in ("params", "tokens", "loss")]
    groups = np.unique(frame["width"].to_numpy(), return_inverse=True)[1]
    return Problem.of(*columns, np.ones(frame.height), None, False), groups


def test_terms_are_those_of_generalised_least_squares_where_all_else_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(noise, "FALLS", {0.2: 1.0})
    monkeypatch.setattr(noise, "SHARED", (0.8, 0.8))
    monkeypatch.setattr(noise, "DRIFT", 1e-9)
    problem, groups = problem_of(study(3)[0])
    found = posterior(problem, ExponentPrior((0.35, 1e-6), (0.35, 1e-6)), groups, draws=4000)
    n, d, loss = problem.n, problem.d, problem.loss
    sd = np.exp(-0.2 * (n + d - (n + d).max()))
    same = groups[:, None] == groups[None, :]
    common = 0.8 * same * np.exp(-noise.FORGETS * np.abs(d[:, None] - d[None, :])) + 0.2 * np.eye(12)
    inverse = np.linalg.inv(common * np.outer(sd, sd))
    design = np.stack([np.exp(-0.35 * n), np.exp(-0.35 * d), np.ones(12)], axis=1) / loss[:, None]
    terms = np.linalg.solve(design.T @ inverse @ design, design.T @ inverse @ np.ones(12))
    drawn = np.stack([found.size, found.data, found.floor], axis=1)
    assert drawn.mean(axis=0) == pytest.approx(
        terms, abs=float(4 * drawn.std(axis=0).max() / math.sqrt(4000))
    )
    left = np.ones(12) - design @ terms
    shown = math.sqrt(left @ inverse @ left / 9)
    assert shown / 1.6 < float(np.median(found.sigma)) < 1.6 * shown


@pytest.mark.parametrize("shape", [noise.Shape(0.0, 0.0), noise.Shape(0.4, 0.0), noise.Shape(0.2, 0.95)])
def test_noise_has_the_covariance_it_says(shape: noise.Shape) -> None:
    problem, groups = problem_of(study(0)[0])
    n, d = problem.n, problem.d
    root = shape.root(n + d, d, groups, np.full(12, 4.0))
    whole = np.diag(root**2) if root.ndim == 1 else root @ root.T
    assert whole[-1, -1] == pytest.approx(0.25)  # the largest compute, of weight 4
    assert whole[0, 0] == pytest.approx(0.25 * math.exp(2 * shape.falls * float(np.ptp(n + d))))
    correlation = whole / np.sqrt(np.outer(np.diag(whole), np.diag(whole)))
    assert correlation[0, 1] == pytest.approx(shape.shared * 1.5**-noise.FORGETS)
    assert correlation[0, 3] == 0
    assert noise.whitened(root, np.eye(12)) @ whole @ noise.whitened(root, np.eye(12)).T == pytest.approx(
        np.eye(12)
    )


def test_effects_of_drifts_are_derivatives() -> None:
    theta, middle = np.array([-0.8, -0.4, 0.5, 0.4, 0.3]), (0.5, -0.5)
    n, d = np.array([-2.0, 0.5, 4.0]), np.array([1.0, -0.5, 3.0])

    def log_loss(b: float, c: float) -> np.ndarray:
        """The exponents' integrals from the middle on, so that nothing moves there."""
        size = theta[0] - theta[3] * n - theta[3] * b * (n - middle[0]) ** 2 / 2
        data = theta[1] - theta[4] * d - theta[4] * c * (d - middle[1]) ** 2 / 2
        return np.logaddexp(np.logaddexp(size, data), theta[2])

    found = bends(theta, n, d, middle)
    assert found[:, 0] == pytest.approx((log_loss(1e-6, 0) - log_loss(-1e-6, 0)) / 2e-6, abs=1e-8)
    assert found[:, 1] == pytest.approx((log_loss(0, 1e-6) - log_loss(0, -1e-6)) / 2e-6, abs=1e-8)


def test_a_shared_trunk_makes_rows_worth_less() -> None:
    frame = study(6, trunk=0.014)[0]
    halves = [
        laws.loss_law(frame, prior=WEAK, groups=by).predict(**TARGET).half_width for by in (None, "width")
    ]
    assert halves[1] > 1.2 * halves[0]


def test_the_forecast_is_the_same_with_and_without_a_prior_of_its_own() -> None:
    frame = study(7)[0]
    free, believed = (
        laws.loss_law(frame, prior=prior, groups="width").predict(**TARGET) for prior in (None, WEAK)
    )
    assert (free.loss, free.low, free.high) == (believed.loss, believed.low, believed.high)


def test_of_many_rows_some_are_taken_and_all_runs_stay() -> None:
    frame = pl.concat([study(seed)[0].with_columns(width=pl.col("width") + seed) for seed in range(40)])
    problem, groups = problem_of(frame)
    fewer, left = thinned(problem, groups, np.random.default_rng(0), 300)
    assert fewer.loss.size == left.size == 300
    assert left.max() + 1 == np.unique(left).size
    assert thinned(problem, groups, np.random.default_rng(0), 480)[0] is problem


def test_draws_are_positive_and_their_mean_is_a_good_fit() -> None:
    problem, groups = problem_of(study(4)[0])
    draws = posterior(problem, ExponentPrior.of(PRIOR), groups, draws=500)
    assert all(
        (v > 0).all() for v in (draws.floor, draws.size, draws.data, draws.alpha, draws.beta, draws.sigma)
    )
    assert np.abs(problem.fitted(draws.theta) / problem.loss - 1).max() < 0.05
    middle = np.median(draws.log_means(problem.n, problem.d), axis=0)
    assert np.abs(middle - problem.log_loss).max() < 0.02


def test_table_bootstrap_and_rows_agree_with_the_law() -> None:
    law = laws.loss_law(study(5)[0], prior=PRIOR, groups="width")
    table = law.table()
    for name, value, low, high in table.select("parameter", "value", "low", "high").iter_rows():
        assert value == getattr(law, name)
        assert low < high
    assert law.bootstrap(3)["alpha"].is_between(0, 1).all()
    assert law.rows["residual"].abs().max() < 0.06


@pytest.mark.parametrize(
    "prior",
    [
        {"alpha": (0.3, 0.1)},
        {"alpha": (0.3, 0.1), "beta": (0.3, 0)},
        {"alpha": 0.3, "beta": 0.3},
        {"alpha": (-1, 1), "beta": (1, 1)},
        0.3,
    ],
)
def test_a_malformed_prior_is_an_error(prior: Any) -> None:
    with pytest.raises(ValueError, match="prior"):
        laws.loss_law(study(0)[0], prior=prior)


def test_a_prior_does_not_make_up_for_one_size() -> None:
    frame = study(0)[0]
    assert laws.loss_law(frame.filter(pl.col("width") == 32), prior=PRIOR).status == "too_few_points"
    assert laws.loss_law(frame[:3], prior=PRIOR).status == "too_few_points"
    with pytest.raises(ValueError, match=r"free"):
        laws.loss_law(frame, prior=PRIOR, form="tied")


@pytest.mark.parametrize("unit", [1e-6, 1e3, 1e6])
def test_a_forecast_is_as_large_in_any_unit_of_the_loss(unit: float) -> None:
    frame, _ = study(0)
    in_nats = laws.loss_law(frame, prior=PRIOR, groups="width").predict(**TARGET)
    other = laws.loss_law(frame.with_columns(pl.col("loss") * unit), prior=PRIOR, groups="width")
    found = other.predict(**TARGET)
    assert [each / unit for each in (found.loss, found.low, found.high)] == pytest.approx(
        [in_nats.loss, in_nats.low, in_nats.high], rel=1e-5
    )
