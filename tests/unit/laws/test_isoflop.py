"""The best size at each compute budget."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest

from froude import laws
from froude.laws.drawing.panel import Line

E, A, B, ALPHA, BETA = 1.8172, 482.01, 2085.43, 0.3478, 0.3658
EXPONENT = BETA / (ALPHA + BETA)
BUDGETS = np.geomspace(1e18, 1e21, 6)


def best(flops: float) -> float:
    return float((ALPHA * A / (BETA * B)) ** (1 / (ALPHA + BETA)) * (flops / 6) ** EXPONENT)


def profiles(
    sizes: int = 7, step: float = 1.6, shift: float = 0.0, noise: float = 0.0, seed: int = 0, seeds: int = 1
) -> pl.DataFrame:
    """Sizes a factor of `step` apart about each budget's best, off centre by `shift` steps."""
    rng = np.random.default_rng(seed)
    rows = []
    for flops in BUDGETS:
        for k in np.repeat(np.arange(sizes), seeds):
            n = best(flops) * step ** (k - (sizes - 1) / 2 + shift)
            loss = E + A * n**-ALPHA + B * (flops / 6 / n) ** -BETA
            rows.append((flops, n, loss * math.exp(noise * rng.standard_normal())))
    return pl.DataFrame(rows, schema=["flops", "params", "loss"], orient="row")


@pytest.mark.parametrize("sizes,step,shift", [(7, 1.6, 0.3), (9, 1.4, 0.0), (5, 2.0, 0.4), (15, 1.3, -2.0)])
def test_noiseless_profiles_give_the_optima_and_their_exponent(sizes: int, step: float, shift: float) -> None:
    law = laws.iso_flop(profiles(sizes, step, shift))
    assert law.status == "ok"
    assert law.optima.columns == ["flops", "params", "loss", "status"]
    assert law.optima["flops"].to_list() == BUDGETS.tolist()
    assert law.optima["params"].to_list() == pytest.approx([best(c) for c in BUDGETS], rel=0.02)
    assert law.n_exponent.value == pytest.approx(EXPONENT, abs=2e-3)
    assert law.params(1e22) == pytest.approx(best(1e22), rel=0.03)
    assert law.table()["parameter"].to_list() == ["n_coefficient", "n_exponent"]


def test_three_sizes_make_a_parabola() -> None:
    law = laws.iso_flop(profiles(3, 1.5, 0.2))
    assert law.status == "ok"
    for budget in law.rows.partition_by("flops"):
        x, y = np.log(budget["params"].to_numpy()), np.log(budget["loss"].to_numpy())
        c2, c1, _ = np.polyfit(x - x[1], y, 2)
        found = law.optima.filter(pl.col("flops") == budget["flops"][0])["params"].item()
        assert math.log(found) == pytest.approx(x[1] - c1 / (2 * c2), abs=1e-4)


@pytest.mark.slow
def test_the_interval_covers_the_exponent_under_noise() -> None:
    found = [laws.iso_flop(profiles(shift=0.2, noise=0.002, seed=seed)) for seed in range(60)]
    errors = np.array([law.n_exponent.value - EXPONENT for law in found])
    assert np.sqrt((errors**2).mean()) < 0.012
    inside = [law.n_exponent.low <= EXPONENT <= law.n_exponent.high for law in found]
    assert 0.88 <= np.mean(inside) <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("sizes,noise", [(5, 0.001), (9, 0.003)])
def test_the_interval_covers_the_optimum_at_ten_times_the_compute(sizes: int, noise: float) -> None:
    beyond, inside, narrow = 10 * BUDGETS[-1], [], []
    for seed in range(80):
        law = laws.iso_flop(profiles(sizes, shift=0.2, noise=noise, seed=seed))
        if law.status == "ok":
            found = law.optimum(flops=beyond, level=0.9).params
            inside.append(found.low <= best(beyond) <= found.high)
            narrow.append(found.se / found.value)
    assert len(inside) > 70
    assert 0.8 <= np.mean(inside) <= 0.99
    # Six budgets' scatter alone has four degrees of freedom, and intervals from it are half as wide again.
    assert np.median(narrow) < 0.25


def test_an_optimum_has_the_tokens_that_its_budget_leaves() -> None:
    law = laws.iso_flop(profiles(noise=0.002))
    params, tokens = law.optimum(flops=1e22)
    assert params.value == pytest.approx(law.params(1e22))
    assert 6 * params.value * tokens.value == pytest.approx(1e22)
    assert 6 * params.low * tokens.high == pytest.approx(1e22)
    assert params.low < params.value < params.high
    wider = law.optimum(flops=1e22, level=0.99).params
    assert wider.low < params.low
    assert law.optimum(flops=1e24).params.se / law.params(1e24) > params.se / params.value
    nothing = laws.iso_flop(profiles().head(7))
    with pytest.raises(ValueError, match="too_few_points"):
        nothing.optimum(flops=1e22)
    with pytest.raises(ValueError, match="level"):
        law.optimum(flops=1e22, level=1.0)


def test_budgets_whose_best_size_is_at_the_edge_are_left_out() -> None:
    frame = profiles()
    cut = frame.filter(~((pl.col("flops") == BUDGETS[2]) & (pl.col("params") < 0.9 * best(BUDGETS[2]))))
    law = laws.iso_flop(cut)
    assert law.status == "ok"
    assert law.optima["status"].to_list() == ["ok", "ok", "edge", "ok", "ok", "ok"]
    row = law.optima.row(2, named=True)
    assert row["params"] == pytest.approx(cut.filter(pl.col("flops") == BUDGETS[2])["params"].min())
    assert any("1.58e+19" in reason and "edge" in reason for reason in law.reasons)
    assert law.n_exponent.value == pytest.approx(EXPONENT, abs=3e-3)
    assert law.line.rows["fitted"].null_count() == 1


def test_the_order_of_rows_seeds_and_weights() -> None:
    frame = profiles(noise=0.002, seeds=2)
    shuffled = frame.sample(fraction=1, shuffle=True, seed=3)
    law = laws.iso_flop(frame)
    assert laws.iso_flop(shuffled).n_exponent.value == pytest.approx(law.n_exponent.value, rel=1e-9)
    single = frame.unique(["flops", "params"], keep="first", maintain_order=True)
    weighted = laws.iso_flop(single.with_columns(pl.lit(2.0).alias("w")), weights="w")
    twice = laws.iso_flop(pl.concat([single, single]))
    assert weighted.optima["params"].to_list() == pytest.approx(twice.optima["params"].to_list(), rel=1e-6)
    heavy = single.with_columns(
        pl.when(pl.col("params") > 1.5 * pl.col("params").mean().over("flops"))
        .then(1e-3)
        .otherwise(1.0)
        .alias("w")
    )
    assert laws.iso_flop(heavy, weights="w").n_exponent.value != law.n_exponent.value


def test_compute_that_differs_by_rounding_is_one_budget() -> None:
    frame = profiles()
    jitter = 1 + 0.01 * np.sin(np.arange(frame.height))
    law = laws.iso_flop(frame.with_columns(pl.col("flops") * jitter))
    assert law.optima.height == 6
    assert law.n_exponent.value == pytest.approx(EXPONENT, abs=3e-3)
    left = law.drawing()[0].series
    assert [len(each.x) for each in left if isinstance(each, Line)] == [7] * 6


def test_what_a_group_shares_widens_the_interval() -> None:
    rng = np.random.default_rng(4)
    frame = profiles(sizes=9, step=1.5)
    sizes = pl.Series(np.round(np.log(frame["params"].to_numpy()) / np.log(1.5)))
    frame = frame.with_columns(sizes.alias("family"))
    shared = {key: 0.004 * rng.standard_normal() for key in frame["family"].unique()}
    spoiled = frame.with_columns(
        (pl.col("loss") * pl.col("family").replace_strict(shared, return_dtype=pl.Float64).exp()).alias(
            "loss"
        )
    )
    rows, groups = laws.iso_flop(spoiled), laws.iso_flop(spoiled, groups="family")
    assert groups.n_exponent.value == pytest.approx(rows.n_exponent.value)
    assert groups.n_exponent.se > 1.2 * rows.n_exponent.se


def test_an_outlier_is_marked_and_rows_come_back() -> None:
    frame = profiles(sizes=11, step=1.4, noise=0.0005)
    spoiled = frame.with_columns(
        pl.when(pl.int_range(pl.len()) == 16).then(pl.col("loss") * 1.03).otherwise("loss").alias("loss")
    )
    rows = laws.iso_flop(spoiled).rows
    assert rows["outlier"].arg_true().to_list() == [16]
    assert not laws.iso_flop(frame).rows["outlier"].any()
    assert (rows["fitted"] + rows["residual"] - rows["loss"]).abs().max() == pytest.approx(0, abs=1e-12)


def test_what_cannot_be_told_is_not_ok() -> None:
    frame = profiles()
    two = laws.iso_flop(frame.filter(pl.col("flops") < 1e19))
    assert two.status == "too_few_points"
    assert two.optima.height == 2
    assert math.isnan(two.n_exponent.value)
    with pytest.raises(ValueError, match="too_few_points"):
        two.params(1e20)
    thin = laws.iso_flop(frame.filter(pl.col("params") == pl.col("params").min().over("flops")))
    assert thin.status == "too_few_points"
    assert thin.rows["fitted"].is_null().all()
    level = laws.iso_flop(frame.with_columns(loss=pl.lit(2.0)))
    assert level.status == "too_few_points"
    assert set(level.optima["status"]) == {"flat"}
    falling = laws.iso_flop(frame.with_columns(loss=10 / pl.col("params").log()))
    assert set(falling.optima["status"]) == {"edge"}
    noise = np.exp(0.1 * np.random.default_rng(0).standard_normal(frame.height))
    lost = laws.iso_flop(frame.with_columns(pl.lit(2.0).alias("loss") * noise))
    assert lost.status != "ok" or lost.n_exponent.high - lost.n_exponent.low > 0.3
    for law in (two, thin, level, falling):
        assert law.reasons
        assert law.table().height == 2
        assert law.rows.height == law.sample.frame.height


def test_two_thousand_sizes_of_one_budget_are_no_burden() -> None:
    law = laws.iso_flop(profiles(sizes=2001, step=1.002, noise=0.002))
    assert law.status == "ok"
    assert law.n_exponent.value == pytest.approx(EXPONENT, abs=0.02)


def test_noise_is_not_taken_for_an_optimum() -> None:
    taken = 0
    for seed in range(20):
        noise = 0.01 * np.random.default_rng(seed).standard_normal(profiles().height)
        law = laws.iso_flop(profiles().with_columns(pl.lit(3.0).alias("loss") + noise))
        taken += law.status == "ok"
    assert taken <= 2


def unequal(width: float, noise: float = 0.0, seed: int = 0) -> pl.DataFrame:
    """Four budgets within which larger models got more compute, by a factor of exp(width) in all."""
    rng, rows = np.random.default_rng(seed), []
    for flops in (1e18, 4e18, 1.6e19, 6.4e19):
        for x in np.linspace(-2, 2, 12):
            own, params = flops * math.exp(width * x / 4), best(flops) * math.exp(x)
            loss = E + A / params**ALPHA + B / (own / 6 / params) ** BETA
            rows.append((own, params, loss * math.exp(noise * rng.standard_normal())))
    return pl.DataFrame(rows, schema=["flops", "params", "loss"], orient="row")


@pytest.mark.parametrize("width", [0.1, 0.3])
def test_more_compute_for_larger_models_moves_no_optimum(width: float) -> None:
    equal, found = laws.iso_flop(unequal(0.0)), laws.iso_flop(unequal(width))
    assert found.status == "ok"
    assert found.params(8e18) == pytest.approx(equal.params(8e18), rel=0.02)
    assert found.rows["residual"].abs().max() < 0.01
    noisy = [laws.iso_flop(unequal(width, 0.003, seed)).params(8e18) / best(8e18) for seed in range(20)]
    assert np.mean(noisy) == pytest.approx(1, abs=0.03)


def test_a_history_without_budgets_is_none() -> None:
    flops = np.geomspace(1e18, 3e19, 200)
    params = np.array([best(c) for c in flops]) * np.exp(np.tile(np.linspace(-2, 2, 20), 10))
    frame = pl.DataFrame({"flops": flops, "params": params}).with_columns(
        loss=E + A / pl.col("params") ** ALPHA + B / (pl.col("flops") / 6 / pl.col("params")) ** BETA
    )
    law = laws.iso_flop(frame)
    assert law.status == "too_few_points"
    assert "are no budget" in law.reasons[1]
