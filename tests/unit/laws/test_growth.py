"""How the critical batch grows: measured at three horizons, else the prior's; and where a search places its best."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest

from froude.laws import CriticalBatch, critical_batch
from froude.laws.batch.growth import PRIOR, at_horizon, growth, tokens_of
from froude.laws.lr.bowl import Belief, bowl


def at(least: float, exponent: float, noise: float = 0.01, seed: int = 0) -> CriticalBatch:
    """The law at a loss that takes `least` steps; b_crit goes by the power `exponent` of the tokens there."""
    rng = np.random.default_rng([seed, int(least)])
    tokens, b_crit = 1e6, 1000.0
    for _ in range(200):
        tokens = 2 * least * b_crit
        b_crit = 1000 * (tokens / 1e6) ** exponent
    batch = np.array([125.0, 250, 500, 1000, 2000, 4000, 8000])
    steps = least * (1 + b_crit / batch) * np.exp(noise * rng.standard_normal(batch.size))
    return critical_batch(pl.DataFrame({"batch": batch, "steps": steps}))


def test_three_horizons_measure_it() -> None:
    found = growth([at(least, 0.3) for least in (100, 400, 1600, 6400)])
    assert (found.source, found.horizons) == ("measured", 4)
    assert found.exponent == pytest.approx(0.3, abs=3 * found.sd)
    assert found.sd < PRIOR[1] / 2


def test_two_do_not() -> None:
    found = growth([at(100, 0.3), at(1600, 0.3)])
    assert found == (*PRIOR, "prior", 2)
    assert growth([]).horizons == 0


def test_its_uncertainty_grows_with_the_way_to_the_target() -> None:
    law, rng = at(400, 0.3), np.random.default_rng(0)
    near, far = (at_horizon(law, tokens_of(law) * times, growth([law]), rng, 4000) for times in (1.0, 100.0))
    assert np.median(near) == pytest.approx(law.b_crit, rel=0.02)
    assert np.median(far) == pytest.approx(law.b_crit * 100**0.46, rel=0.05)
    assert np.log(far).std() == pytest.approx(math.hypot(np.log(near).std(), 0.1 * math.log(100)), rel=0.1)


def test_a_search_of_many_trials_places_its_best() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (200, 2))
    loss = 2 * np.exp(
        0.5 * (0.05 * (x[:, 0] - 0.3) ** 2 + 0.02 * (x[:, 1] + 0.5) ** 2) + 0.002 * rng.standard_normal(200)
    )
    beliefs = [Belief((0.0, 1.0), (math.log(0.02), 1.0))] * 2
    found = bowl(x, loss, [0] * 200, beliefs)
    assert found.best.mean(axis=0) == pytest.approx([0.3, -0.5], abs=0.06)
    assert found.bend.mean(axis=0) == pytest.approx([0.05, 0.02], rel=0.1)
    assert found.regret(0, 0.3) < 1e-4 < found.regret(0, 1.3)


def test_a_setting_that_was_not_varied_stays_what_was_believed() -> None:
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.uniform(-2, 2, 30), np.zeros(30)])
    loss = 2 * np.exp(0.5 * 0.05 * (x[:, 0] - 0.3) ** 2 + 0.002 * rng.standard_normal(30))
    found = bowl(
        x, loss, [0] * 30, [Belief((0.0, 1.0), (math.log(0.02), 1.0)), Belief((1.0, 0.7), (-4.0, 0.5))]
    )
    assert found.best[:, 1].mean() == pytest.approx(1.0, abs=0.15)
    assert found.best[:, 1].std() == pytest.approx(0.7, abs=0.15)
    assert found.best[:, 0].mean() == pytest.approx(0.3, abs=0.15)
