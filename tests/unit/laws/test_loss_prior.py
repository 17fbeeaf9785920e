"""The law under a prior: what the quickstart's four proxies can and cannot say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest

from froude import laws
from froude.laws.loss.fit import Problem
from froude.laws.loss.posterior import ExponentPrior, posterior

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
def test_the_forecast_has_a_half_width_of_a_few_percent_and_covers_the_truth() -> None:
    inside, halves, errors = [], [], []
    for seed in range(12):
        frame, truth = study(seed)
        law = laws.loss_law(frame, prior=PRIOR, groups="width")
        assert law.status == "prior_driven"
        prediction = law.predict(**TARGET)
        inside.append(prediction.low <= truth <= prediction.high)
        halves.append((prediction.high - prediction.low) / 2 / prediction.loss)
        errors.append(prediction.loss / truth - 1)
    assert min(halves) > 0.03
    assert max(halves) < 0.045
    assert sum(inside) >= 11
    assert abs(np.mean(errors)) < 0.015


def test_it_is_never_certified_and_stands_beside_the_free_fit() -> None:
    law = laws.loss_law(study(0)[0], prior=PRIOR)
    prediction = law.predict(**TARGET)
    assert not prediction.certified
    assert any("prior" in reason for reason in prediction.reasons)
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


def test_the_grid_solves_for_the_terms_like_constrained_least_squares() -> None:
    from scipy.optimize import nnls

    from froude.laws.loss.posterior import _project

    frame = study(3, trunk=0.05)[0]
    columns = [frame[name].to_numpy() for name in ("params", "tokens", "loss")]
    problem = Problem.of(*columns, np.linspace(0.5, 1.5, 12), None, False)
    alpha, beta, floor = np.array([0.1, 0.6]), np.array([0.2, 1.5]), np.array([0.1, 1.0, 1.4])
    size, data, error = _project(problem, alpha, beta, floor)
    root = np.sqrt(problem.weights)
    for i, a in enumerate(alpha):
        for j, b in enumerate(beta):
            for k, e in enumerate(floor):
                design = np.stack([np.exp(-a * problem.n), np.exp(-b * problem.d)], 1) / problem.loss[:, None]
                x, norm = nnls(design * root[:, None], root * (1 - e / problem.loss))
                assert (size[i, j, k], data[i, j, k]) == pytest.approx(tuple(x), rel=1e-8, abs=1e-10)
                assert error[i, j, k] == pytest.approx(norm**2, rel=1e-8)


def test_draws_are_positive_and_their_mode_is_a_good_fit() -> None:
    frame = study(4)[0]
    columns = [frame[name].to_numpy() for name in ("params", "tokens", "loss")]
    problem = Problem.of(*columns, np.ones(12), 1e-3, False)
    draws = posterior(problem, ExponentPrior.of(PRIOR), draws=500)
    assert all((v >= 0).all() for v in (draws.floor, draws.size, draws.data, draws.alpha, draws.beta))
    assert (draws.floor <= problem.loss.min()).all()
    assert np.abs(problem.fitted(draws.theta) / problem.loss - 1).max() < 0.02


def test_table_bootstrap_and_rows_agree_with_the_law() -> None:
    law = laws.loss_law(study(5)[0], prior=PRIOR, groups="width")
    table = law.table()
    for name, value, low, high in table.select("parameter", "value", "low", "high").iter_rows():
        assert value == getattr(law, name)
        assert low < high
    assert law.bootstrap(3)["alpha"].is_between(0, 1).all()
    assert law.rows["residual"].abs().max() < 0.03


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
