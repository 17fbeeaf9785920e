"""Kaplan's law and the law of repeated data, beside the loss law."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from froude import laws
from froude.laws.loss import repeated as repeated_module
from froude.laws.stats import robust
from froude.laws.stats.results import Estimate

pytestmark = pytest.mark.slow

Grid = Callable[..., pl.DataFrame]
CHINCHILLA = (1.8172, 482.01, 2085.43, 0.3478, 0.3658)
N, D = (v.ravel() for v in np.meshgrid(np.geomspace(1e6, 1e9, 5), np.geomspace(1e8, 1e11, 5)))


def kaplan_rows(noise: float = 0.0, seed: int = 0) -> pl.DataFrame:
    loss = ((8.8e13 / N) ** (0.076 / 0.095) + 5.4e13 / D) ** 0.095
    loss *= np.exp(noise * np.random.default_rng(seed).standard_normal(N.size))
    return pl.DataFrame({"params": N, "tokens": D, "loss": loss})


def test_kaplans_exponents_are_not_told_apart_at_one_ratio_of_tokens_to_parameters() -> None:
    params, noise = np.geomspace(1e6, 1e9, 25), np.random.default_rng(0).normal(0, 0.002, 25)
    loss = ((8.8e13 / params) ** (0.076 / 0.095) + 5.4e13 / (20 * params)) ** 0.095 * np.exp(noise)
    law = laws.kaplan(pl.DataFrame({"params": params, "tokens": 20 * params, "loss": loss}))
    assert law.status == "flat"
    assert "either term may stand for the other" in law.reasons[0]


def test_kaplans_published_law_is_recovered() -> None:
    law = laws.kaplan(kaplan_rows())
    assert law.status == "ok"
    found = [e.value for e in (law.N_c, law.D_c, law.alpha_N, law.alpha_D)]
    assert found == pytest.approx([8.8e13, 5.4e13, 0.076, 0.095], rel=1e-5)
    new = law.predict(params=1e10, tokens=1e12)
    assert new.value == pytest.approx(((8.8e13 / 1e10) ** 0.8 + 54) ** 0.095, rel=1e-6)
    assert law.rows["residual"].abs().max() < 1e-6  # type: ignore[operator]


def test_each_law_fits_its_own_rows_better(grid: Grid) -> None:
    own, other = kaplan_rows(noise=0.002), grid(CHINCHILLA, noise=0.002)
    assert laws.kaplan(own).objective < 0.7 * laws.loss_law(own).objective
    assert laws.loss_law(other).objective < 0.7 * laws.kaplan(other).objective


@pytest.mark.long
@pytest.mark.parametrize("delta", [1e-3, 0.1])
def test_kaplans_intervals_cover(delta: float) -> None:
    inside, predicted, rng = [], [], np.random.default_rng(1)
    new = ((8.8e13 / 1e10) ** 0.8 + 54) ** 0.095
    for seed in range(40):
        law = laws.kaplan(kaplan_rows(noise=0.01, seed=seed), delta=delta)
        inside.append(law.alpha_N.low <= 0.076 <= law.alpha_N.high)
        at = law.predict(params=1e10, tokens=1e12, level=0.9)
        predicted.append(at.low <= new * math.exp(0.01 * rng.standard_normal()) <= at.high)
    assert 0.85 <= np.mean(inside) <= 1.0
    assert 0.8 <= np.mean(predicted) <= 1.0


def test_kaplans_law_says_what_it_cannot_tell() -> None:
    frame = kaplan_rows()
    assert laws.kaplan(frame[:6]).status == "too_few_points"
    assert laws.kaplan(frame.filter(pl.col("params") == 1e6)).status == "too_few_points"
    assert laws.kaplan(frame.with_columns(loss=pl.lit(3.0))).status == "flat"
    assert laws.kaplan(frame.with_columns(loss=pl.lit(30.0) / pl.col("params") ** 1e-3)).status != "ok"
    few = laws.kaplan(frame[:6])
    assert few.table().height == 4
    assert few.rows["fitted"].is_null().all()
    with pytest.raises(ValueError, match="too_few_points"):
        few.predict(params=1e9, tokens=1e9)
    law = laws.kaplan(frame)
    for wrong in ({"params": 0}, {"tokens": math.inf}, {"level": 1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            law.predict(**{"params": 1e9, "tokens": 1e9, **wrong})
    with pytest.raises(ValueError, match="delta"):
        laws.kaplan(frame, delta=-1)


@pytest.mark.parametrize("floor", [0.0, 1.5])
def test_many_rows_give_kaplans_law_of_all_of_them(floor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the rows follow another law, or an exponent runs to its limit."""
    draw = np.random.default_rng(0)
    n, d = (np.exp(draw.uniform(np.log(low), np.log(1e3 * low), 4000)) for low in (1e6, 1e8))
    loss = floor + ((8.8e13 / n) ** 0.8 + 5.4e13 / d) ** 0.095
    frame = pl.DataFrame(
        {"params": n, "tokens": d, "loss": loss * np.exp(0.003 * draw.standard_normal(4000))}
    )
    whole = laws.kaplan(frame)
    monkeypatch.setattr(robust, "MANY", 1000)
    monkeypatch.setattr(robust, "SEARCHED", 500)
    law = laws.kaplan(frame)
    assert law.objective == pytest.approx(whole.objective, rel=1e-9)
    for name in ("alpha_N", "alpha_D", "N_c", "D_c"):
        same, other = getattr(whole, name), getattr(law, name)
        assert other.value == pytest.approx(same.value, abs=0.01 * same.se)
        assert other.se == pytest.approx(same.se, rel=0.01)


def repeated_rows(
    r_data: float = 15.0, r_params: float = 5.0, noise: float = 0.0, seed: int = 0
) -> pl.DataFrame:
    """Runs of one epoch on a grid, and runs of 2 to 60 epochs on less data, some larger than their data warrant.

    No run is worse than in one epoch of its data, where the source's formula would have it so.
    """
    e, a, b, alpha, beta = CHINCHILLA
    size, unique, epochs = (
        v.ravel() for v in np.meshgrid(np.geomspace(1e7, 1e10, 5), np.geomspace(1e9, 1e11, 3), [2, 4, 15, 60])
    )
    best = (alpha * a / (beta * b)) ** (1 / alpha) * unique ** (beta / alpha)
    once = np.minimum(size, best)
    n = once * (1 + r_params * (1 - np.exp(-(size / once - 1) / r_params)))
    d = unique * (1 + r_data * (1 - np.exp(-(epochs - 1) / r_data)))
    grid_n, grid_d = (v.ravel() for v in np.meshgrid(np.geomspace(1e7, 1e10, 5), np.geomspace(1e9, 1e12, 5)))
    first = e + a * size**-alpha + b * unique**-beta
    again = np.minimum(e + a * n**-alpha + b * d**-beta, first)
    loss = np.concatenate([e + a * grid_n**-alpha + b * grid_d**-beta, again])
    loss *= np.exp(noise * np.random.default_rng(seed).standard_normal(loss.size))
    return pl.DataFrame(
        {
            "params": np.concatenate([grid_n, size]),
            "tokens": np.concatenate([grid_d, unique * epochs]),
            "unique_tokens": np.concatenate([grid_d, unique]),
            "loss": loss,
        }
    )


def test_what_repeated_data_are_worth_is_recovered() -> None:
    law = laws.data_constrained(repeated_rows())
    assert law.status == "ok"
    assert (law.r_data.value, law.r_params.value) == pytest.approx((15, 5), rel=1e-4)
    assert law.base.alpha == pytest.approx(0.3478, rel=1e-5)
    assert law.rows["residual"].abs().max() < 1e-6  # type: ignore[operator]


def test_four_epochs_are_worth_as_published() -> None:
    """2305.16264: with R* = 15.39, four epochs of U tokens are worth 3.73 U."""
    law = laws.data_constrained(repeated_rows(r_data=15.39))
    same = law.effective(params=1e8, tokens=4e10, unique_tokens=1e10)
    assert same.tokens == pytest.approx(3.73e10, abs=0.005e10)
    assert same.params == pytest.approx(1e8)
    assert law.effective(params=1e9, tokens=1e10, unique_tokens=5e10).tokens == pytest.approx(1e10)
    limit = law.effective(params=1e8, tokens=1e14, unique_tokens=1e10)
    assert limit.tokens == pytest.approx(16.39e10, rel=1e-3)
    crowded = law.effective(params=1e12, tokens=4e9, unique_tokens=1e9)
    assert crowded.params < 1e11


def test_a_forecast_is_the_base_laws_at_the_effective_sizes() -> None:
    law = laws.data_constrained(repeated_rows(noise=0.002))
    assert law.r_data.low < 15 < law.r_data.high
    assert law.r_params.low < 5 < law.r_params.high
    found = law.predict(params=1e9, tokens=4e10, unique_tokens=1e10)
    same = law.effective(params=1e9, tokens=4e10, unique_tokens=1e10)
    assert found.loss == law.base.predict(params=same.params, tokens=same.tokens).loss
    assert not found.certified
    assert any("R*" in reason for reason in found.reasons)
    assert found.loss > law.base.predict(params=1e9, tokens=4e10).loss


@pytest.fixture(scope="module")
def repeated() -> laws.DataConstrainedLaw:
    return laws.data_constrained(repeated_rows())


exponents = st.floats(0.2, 0.7)


@given(
    alpha=exponents,
    beta=exponents,
    terms=st.tuples(st.floats(0.05, 2), st.floats(0.05, 2)),
    stars=st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)),
    params=st.floats(6, 13),
    unique=st.floats(7, 12),
)
@settings(max_examples=100, deadline=None)
def test_more_tokens_never_cost_and_repetition_begins_without_a_jump(
    repeated: laws.DataConstrainedLaw,
    alpha: float,
    beta: float,
    terms: tuple[float, float],
    stars: tuple[float, float],
    params: float,
    unique: float,
) -> None:
    """Whatever the law: the base law in one epoch, then the source's wherever that is no more than one epoch's."""
    size, data = (1e9**power * term for power, term in zip((alpha, beta), terms, strict=True))
    base = replace(repeated.base, E=1.7, A=size, B=data, alpha=alpha, beta=beta)
    names = ("r_data", "r_params")
    law = replace(repeated, base=base, **{k: Estimate(v, 0, v, v) for k, v in zip(names, stars, strict=True)})
    whole, fresh = 10**params, 10**unique

    def loss(n: float, d: float) -> float:
        return float(1.7 + size * n**-alpha + data * d**-beta)

    def at(tokens: float, fresh: float) -> float:
        same = law.effective(params=whole, tokens=tokens, unique_tokens=fresh)
        return loss(same.params, same.tokens)

    epochs = np.geomspace(0.25, 300, 40)
    along = np.array([at(fresh * times, fresh) for times in epochs])
    assert (np.diff(along) / along[1:]).max() <= 1e-12
    assert at(fresh * (1 + 1e-6), fresh) == pytest.approx(at(fresh, fresh), rel=1e-5)
    assert at(fresh, fresh * (1 - 1e-6)) == pytest.approx(at(fresh, fresh), rel=1e-5)
    best = min(whole, (alpha * size / (beta * data)) ** (1 / alpha) * fresh ** (beta / alpha))
    left = best * (1 - stars[1] * math.expm1(-(whole / best - 1) / stars[1]))
    for times, found in zip(epochs, along, strict=True):
        if times <= 1:
            assert found == pytest.approx(loss(whole, fresh * times))
        else:
            seen = fresh * (1 - stars[0] * math.expm1(-(times - 1) / stars[0]))
            assert found == pytest.approx(min(loss(left, seen), loss(whole, fresh)))


def test_a_second_epoch_of_too_large_a_model_costs_nothing(repeated: laws.DataConstrainedLaw) -> None:
    """A billion parameters on 10^8 tokens: at two epochs the law once said .29 nats more than at one."""
    at = {"params": 1e9, "unique_tokens": 1e8}
    found = [repeated.predict(tokens=epochs * 1e8, **at).loss for epochs in (1, 1.3, 1.7, 2, 3, 4, 10)]
    assert max(np.diff(found)) <= 1e-3
    law = [repeated.effective(tokens=epochs * 1e8, **at) for epochs in (1, 2, 10)]
    once, twice, more = (repeated.base.curve(same.params, np.array(same.tokens)).item() for same in law)
    assert twice == pytest.approx(once)
    assert more < once - 0.1


def test_a_forecast_does_not_jump_where_repetition_begins(repeated: laws.DataConstrainedLaw) -> None:
    """With forty times the parameters that its tokens are good for; it jumped from 2.940 to 3.176 in such a case."""
    at = {"params": 1e11, "unique_tokens": 1e9}
    once, more = (repeated.predict(tokens=tokens, **at).loss for tokens in (1e9, 1.0001e9))
    assert more == pytest.approx(once, rel=1e-4)
    assert repeated.effective(tokens=4e9, **at).params < 0.1 * at["params"]


def test_many_repeated_rows_give_the_law_of_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pl.concat(repeated_rows(noise=0.004, seed=seed) for seed in range(20))
    whole = laws.data_constrained(frame)
    monkeypatch.setattr(robust, "MANY", 500)
    monkeypatch.setattr(robust, "SEARCHED", 200)
    monkeypatch.setattr(repeated_module, "FROM_BASE", 400)
    law = laws.data_constrained(frame)
    assert law.objective == pytest.approx(whole.objective, rel=1e-9)
    for same, other in ((whole.r_data, law.r_data), (whole.r_params, law.r_params)):
        assert other.value == pytest.approx(same.value, abs=0.02 * same.se)
        assert other.se == pytest.approx(same.se, rel=0.15)


def test_repetition_says_what_it_cannot_tell() -> None:
    frame = repeated_rows()
    once = pl.col("tokens") <= pl.col("unique_tokens")
    none = laws.data_constrained(frame.filter(once))
    assert none.status == "too_few_points"
    assert none.base.status == "ok"
    alone = laws.data_constrained(frame.filter(~once))
    assert alone.status == alone.base.status == "too_few_points"
    small = laws.data_constrained(frame.filter(once | (pl.col("params") < 2e7)))
    assert small.status == "ok"
    assert small.r_data.value == pytest.approx(15, rel=1e-3)
    assert math.isnan(small.r_params.value)
    assert any("R*_params" in reason for reason in small.reasons)
    assert small.predict(params=1e7, tokens=4e10, unique_tokens=1e10).loss > 0
    useless = laws.data_constrained(
        frame.with_columns(pl.when(once).then("loss").otherwise(pl.col("loss") * 1.5).alias("loss"))
    )
    assert useless.status == "flat"
    for law in (none, alone, useless):
        assert law.reasons
        assert law.table().height == 2
        assert law.rows.height == law.sample.frame.height
    with pytest.raises(ValueError, match="too_few_points"):
        none.predict(params=1e9, tokens=1e10, unique_tokens=1e9)


def test_a_prediction_names_the_argument_that_is_wrong() -> None:
    law = laws.data_constrained(repeated_rows())
    for wrong in ({"params": 0}, {"tokens": -1}, {"unique_tokens": math.nan}, {"level": 2}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            law.predict(**{"params": 1e9, "tokens": 1e10, "unique_tokens": 1e9, **wrong})


def test_intervals_of_repetition_hold_what_the_base_law_does_not_know() -> None:
    found = [laws.data_constrained(repeated_rows(noise=0.004, seed=seed)) for seed in range(16)]
    assert sum(law.r_data.low <= 15 <= law.r_data.high for law in found) >= 14
    assert sum(law.r_params.low <= 5 <= law.r_params.high for law in found) >= 14
