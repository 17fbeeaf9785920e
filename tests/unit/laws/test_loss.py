"""The loss law finds what is there, and says when it does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from froude import laws
from froude.laws.loss import fit, resampled

Grid = Callable[..., pl.DataFrame]
NAMES = ("E", "A", "B", "alpha", "beta")
CHINCHILLA = (1.8172, 482.01, 2085.43, 0.3478, 0.3658)


def values(law: laws.LossLaw) -> list[float]:
    return [getattr(law, name) for name in NAMES]


@pytest.mark.parametrize("truth", [CHINCHILLA, (0.4, 50.0, 60.0, 0.2, 0.15), (3.0, 1e3, 5e3, 0.6, 0.5)])
@pytest.mark.parametrize("delta", [1e-3, None])
def test_noiseless_rows_give_their_law_back(
    grid: Grid, truth: tuple[float, ...], delta: float | None
) -> None:
    law = laws.loss_law(grid(truth), delta)
    assert law.status == "ok"
    assert values(law) == pytest.approx(truth, rel=1e-6)
    assert law.objective < 1e-20


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(
    e=st.floats(0.5, 3),
    size=st.floats(0.1, 1),
    data=st.floats(0.1, 1),
    alpha=st.floats(0.15, 0.7),
    beta=st.floats(0.15, 0.7),
)
def test_any_law_is_recovered_to_one_in_ten_thousand(
    e: float, size: float, data: float, alpha: float, beta: float
) -> None:
    n, d = (v.ravel() for v in np.meshgrid(np.geomspace(1e7, 1e9, 4), np.geomspace(1e9, 1e11, 4)))
    a, b = size * 1e8**alpha, data * 1e10**beta
    frame = pl.DataFrame({"params": n, "tokens": d, "loss": e + a * n**-alpha + b * d**-beta})
    law = laws.loss_law(frame)
    assert law.status == "ok"
    assert values(law) == pytest.approx([e, a, b, alpha, beta], rel=1e-4)


def test_the_tied_form_needs_five_rows_and_recovers_one_exponent(grid: Grid) -> None:
    truth = (1.7, 300.0, 900.0, 0.3, 0.3)
    frame = grid(truth, sizes=2, horizons=3)
    law = laws.loss_law(frame[:5], form="tied")
    assert law.status == "ok"
    assert values(law) == pytest.approx(truth, rel=1e-5)
    assert law.alpha == law.beta
    assert laws.loss_law(frame[:4], form="tied").status == "too_few_points"


def test_the_gradient_and_the_jacobian_are_those_of_the_objective(grid: Grid) -> None:
    frame = grid(CHINCHILLA, noise=0.01)
    columns = [frame[name].to_numpy() for name in ("params", "tokens", "loss")]
    weights = np.linspace(0.5, 2, frame.height)
    theta = np.array([-0.8, -0.4, 0.5, 0.4, 0.3])
    for delta in (1e-3, 0.1, None):
        problem = fit.Problem.of(*columns, weights, delta, False)
        step = 1e-6 * np.eye(5)
        numeric = [(problem.objective(theta + h) - problem.objective(theta - h)) / 2e-6 for h in step]
        assert problem.value_and_gradient(theta)[1] == pytest.approx(numeric, rel=1e-5)
        columns_numeric = np.stack(
            [(problem.residual(theta + h) - problem.residual(theta - h)) / 2e-6 for h in step], 1
        )
        assert problem.jacobian(theta) == pytest.approx(columns_numeric, rel=1e-4, abs=1e-8)


def test_the_objective_is_the_sum_of_huber_terms(grid: Grid) -> None:
    law = laws.loss_law(grid(CHINCHILLA, noise=0.01))
    r = np.abs(np.log(law.rows["fitted"].to_numpy()) - np.log(law.rows["loss"].to_numpy()))
    assert law.objective == pytest.approx(np.where(r <= 1e-3, r * r / 2, 1e-3 * (r - 5e-4)).sum(), rel=1e-9)
    assert law.rows["residual"].to_numpy() == pytest.approx(
        (law.rows["loss"] - law.rows["fitted"]).to_numpy()
    )


def test_a_weight_of_two_counts_as_two_rows(grid: Grid) -> None:
    frame = grid(CHINCHILLA, noise=0.01)
    weights = [1.0 + (i % 3 == 0) for i in range(frame.height)]
    doubled = pl.concat([frame, frame[::3]])
    weighted = laws.loss_law(frame.with_columns(pl.Series("w", weights)), weights="w")
    twice = laws.loss_law(doubled)
    assert values(weighted) == pytest.approx(values(twice), rel=1e-5)
    assert weighted.objective == pytest.approx(twice.objective, rel=1e-9)


def test_too_few_rows_sizes_or_horizons(grid: Grid) -> None:
    full = grid(CHINCHILLA, sizes=3, horizons=3)
    for frame in (full[:7], grid(CHINCHILLA, sizes=1, horizons=12), grid(CHINCHILLA, sizes=12, horizons=2)):
        law = laws.loss_law(frame)
        assert law.status == "too_few_points"
        assert all(math.isnan(v) for v in values(law))
        with pytest.raises(ValueError, match="too_few_points"):
            law.predict(params=1e9, tokens=1e10)
        assert law.table().height == 5
        assert law.rows["fitted"].is_null().all()


# E = -0.1 is no law, but what losses look like whose slopes steepen: the best E >= 0 is zero.
STEEPENING = (-0.1, 480.0, 2100.0, 0.35, 0.37)


@pytest.mark.parametrize(
    "truth,name",
    [(STEEPENING, "E"), ((1.8, 480.0, 1e-9, 0.35, 0.37), "B"), ((1.8, 1e-9, 2100.0, 0.35, 0.37), "A")],
)
def test_a_term_that_vanishes_is_at_its_bound(grid: Grid, truth: tuple[float, ...], name: str) -> None:
    law = laws.loss_law(grid(truth))
    assert law.status == "at_bound"
    assert any(reason.startswith(f"{name} ran to") for reason in law.reasons)


@pytest.mark.slow
def test_a_fit_at_a_bound_forecasts_but_has_no_certificate(grid: Grid) -> None:
    law = laws.loss_law(grid(STEEPENING, sizes=3, horizons=4, noise=0.001))
    assert law.status == "at_bound"
    prediction = law.predict(params=1e10, tokens=1e11)
    assert prediction.low < prediction.loss < prediction.high
    assert not prediction.certified
    assert any("at_bound" in reason for reason in prediction.reasons)


@pytest.mark.parametrize("steeper", [0.01, 0.05])
def test_losses_that_rise_with_size_have_a_sane_forecast_without_a_certificate(steeper: float) -> None:
    """No law with positive terms has such rows: E made up for the others, and 12 nats in place of 2 were certified."""
    rng = np.random.default_rng(0)
    n, d = (v.ravel() for v in np.meshgrid(np.geomspace(1e6, 3e7, 4), (2e7, 8e7, 3e8)))
    loss = (
        (1.7 + 1.05 * (d / 1e8) ** -0.28) * (n / 5e6) ** steeper * np.exp(0.002 * rng.standard_normal(n.size))
    )
    frame = pl.DataFrame({"params": n, "tokens": d, "loss": loss})
    prediction = laws.loss_law(frame, prior={"alpha": (0.4, 0.2), "beta": (0.4, 0.2)}).predict(
        params=1e8, tokens=2e9
    )
    assert 1.5 < prediction.loss < 3.0
    assert not prediction.certified


def test_equal_losses_are_flat(grid: Grid) -> None:
    assert laws.loss_law(grid(CHINCHILLA).with_columns(loss=pl.lit(2.5))).status == "flat"
    nearly = grid(CHINCHILLA).with_columns(loss=2.5 + 1e-13 * pl.int_range(pl.len()))
    assert laws.loss_law(nearly).status != "ok"


def test_a_design_that_cannot_separate_size_from_horizon_is_not_ok() -> None:
    n = np.geomspace(1e7, 1e9, 12)
    frame = pl.DataFrame(
        {"params": n, "tokens": 20 * n, "loss": 1.8 + 480 * n**-0.35 + 800 * (20 * n) ** -0.35}
    )
    assert laws.loss_law(frame).status != "ok"
    assert laws.loss_law(frame, form="tied").status != "ok"


@pytest.mark.slow
def test_predictions_cover_the_truth_and_say_why_they_are_not_certified(grid: Grid) -> None:
    law = laws.loss_law(grid(CHINCHILLA, noise=0.004))
    truth = 1.8172 + 482.01 * 3e10**-0.3478 + 2085.43 * 2e12**-0.3658
    narrow, wide = (law.predict(params=3e10, tokens=2e12, level=level) for level in (0.5, 0.95))
    assert wide.low < narrow.low < narrow.loss < narrow.high < wide.high
    assert wide.low < truth < wide.high
    assert wide.extrapolation == pytest.approx({"params": 3.0, "tokens": 2.0, "flops": 6.0})
    assert wide.certified
    widest = law.predict(params=3e10, tokens=2e12, level=0.9999)
    assert widest.reasons == ("4000 draws do not tell where an interval of 0.9999 ends",)
    far = law.predict(params=1e13, tokens=1e15)
    assert {reason.split()[0] for reason in far.reasons} == {"compute", "params", "tokens"}
    furthest = law.predict(params=1e300, tokens=1e300)
    assert furthest.low < law.E < furthest.high


@pytest.mark.parametrize(
    "wrong",
    [
        {"params": 0},
        {"params": math.inf},
        {"tokens": -1},
        {"tokens": math.nan},
        {"level": 1},
        {"level": 0},
        {"params": None},
    ],
)
def test_a_prediction_names_the_argument_that_is_wrong(grid: Grid, wrong: dict[str, Any]) -> None:
    law = laws.loss_law(grid(CHINCHILLA))
    with pytest.raises(ValueError, match=next(iter(wrong))):
        law.predict(**{"params": 1e9, "tokens": 1e10, **wrong})


def test_the_compute_optimum_is_where_the_predicted_loss_is_least(grid: Grid) -> None:
    law = laws.loss_law(grid(CHINCHILLA))
    best = law.compute_optimal(flops=1e21)
    assert 6 * best.params * best.tokens == pytest.approx(1e21, rel=1e-9)
    sizes = best.params * np.array([0.9, 1.0, 1.1])
    losses = law.E + law.A / sizes**law.alpha + law.B / (1e21 / 6 / sizes) ** law.beta
    assert losses.argmin() == 1
    with pytest.raises(ValueError, match="flops"):
        law.compute_optimal(flops=-1)


def test_no_split_is_named_where_either_term_may_stand_for_the_other(grid: Grid) -> None:
    law = laws.loss_law(grid(CHINCHILLA).with_columns(tokens=20 * pl.col("params")))
    assert law.status in ("flat", "at_bound")
    with pytest.raises(ValueError, match=f"No split is known: status {law.status}"):
        law.compute_optimal(flops=1e21)


@pytest.mark.slow
def test_the_bootstrap_is_repeatable_and_moves_groups_together(grid: Grid) -> None:
    frame = grid(CHINCHILLA, noise=0.01).with_columns(pl.col("params").alias("run"))
    law = laws.loss_law(frame)
    first = law.bootstrap(8, seed=3)
    assert first.columns == ["replicate", *NAMES, "objective"]
    assert first.equals(laws.loss_law(frame).bootstrap(8, seed=3))
    assert not first.equals(law.bootstrap(8, seed=4))
    assert first.select(pl.all().is_finite().all()).row(0) == (True,) * 7
    # With two groups a resample is one of them twice, or both: the second and the fourth of these are equal to the fit.
    halves = frame.with_columns((pl.int_range(pl.len()) % 2).alias("half"))
    grouped = laws.loss_law(halves, groups="half").bootstrap(8)
    assert grouped["objective"].round(12).n_unique() <= 3
    with pytest.raises(ValueError, match="n must"):
        law.bootstrap(0)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["free", "tied"])
def test_one_step_from_the_fit_spreads_as_refits_of_many_rows_do(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(0)
    n, d = (np.exp(draw.uniform(np.log(low), np.log(1e3 * low), 4000)) for low in (1e6, 1e8))
    loss = (1.7 + 400 / n**0.34 + 400 / d**0.28) * np.exp(0.01 * draw.standard_t(3, 4000))
    frame = pl.DataFrame({"params": n, "tokens": d, "loss": loss})
    replicates = [laws.loss_law(frame, form=form).bootstrap(300)]
    monkeypatch.setattr(resampled, "REFITTED", 1000)
    replicates.append(laws.loss_law(frame, form=form).bootstrap(300))
    spread, quick = (each.select(pl.col(NAMES).std()).row(0) for each in replicates)
    assert quick == pytest.approx(spread, rel=0.15)  # of 300 replicates each is known to 4%
    middle, other = (np.array(each.select(pl.col(NAMES).mean()).row(0)) for each in replicates)
    assert np.abs((other - middle) / np.array(spread)).max() < 0.3


def test_rows_mark_the_run_that_contradicts_the_rest(grid: Grid) -> None:
    frame = grid(CHINCHILLA, noise=0.002)
    spoiled = frame.with_columns(
        pl.when(pl.int_range(pl.len()) == 7).then(pl.col("loss") * 1.08).otherwise("loss").alias("loss")
    )
    assert laws.loss_law(spoiled).rows["outlier"].arg_true().to_list() == [7]
    assert not laws.loss_law(frame).rows["outlier"].any()


def test_wrong_options_are_errors(grid: Grid) -> None:
    frame = grid(CHINCHILLA)
    for options in ({"delta": 0.0}, {"delta": -1.0}, {"form": "loose"}, {"prior": {"alpha": (0.3, 0.1)}}):
        with pytest.raises(ValueError, match=next(iter(options))):
            laws.loss_law(frame, **options)


def test_a_hundred_thousand_rows_are_fitted_on_all_of_them(grid: Grid) -> None:
    frame = grid(CHINCHILLA, sizes=300, horizons=300, noise=0.01)
    law = laws.loss_law(frame)
    assert law.status == "ok"
    assert (law.alpha, law.beta) == pytest.approx((0.3478, 0.3658), abs=1.5e-3)
    problem = law._problem
    assert problem is not None
    assert law._theta is not None
    gradient = problem.value_and_gradient(law._theta)[1]
    assert np.abs(gradient).max() < 1e-5 * law.objective * frame.height


@pytest.mark.parametrize("jitter", [0.0, 0.01])
def test_one_ratio_of_tokens_to_params_is_flat_whatever_the_noise(jitter: float) -> None:
    """The terms can change places: 4 of these 20 were ok with 0, their exponents swapped."""
    n = np.geomspace(1e8, 1e10, 12)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        d = 20 * n * np.exp(jitter * rng.standard_normal(12))
        loss = (1.8 + 400 / n**0.34 + 2000 / d**0.36) * np.exp(0.004 * rng.standard_normal(12))
        law = laws.loss_law(pl.DataFrame({"params": n, "tokens": d, "loss": loss}))
        assert law.status in {"flat", "at_bound"}
        assert law.status == "at_bound" or "other ratios" in law.reasons[0]


@pytest.mark.parametrize("swap", [False, True])
def test_an_exponent_that_rests_on_one_run_is_not_ok(grid: Grid, swap: bool) -> None:
    """Three sizes, two of them seen once: the law passes through those two runs, whatever their noise."""
    rng = np.random.default_rng(0)
    arm, lone = np.geomspace(1e9, 3e10, 20), np.array([1.7e8, 3e8])
    params, tokens = np.array([1e8] * 20 + [*lone]), np.array([*arm, 5e9, 5e9])
    if swap:
        params, tokens = tokens / 20, params * 20
    loss = (1.69 + 406 / params**0.34 + 411 / tokens**0.28) * np.exp(0.003 * rng.standard_normal(22))
    frame = pl.DataFrame({"params": params, "tokens": tokens, "loss": loss})
    law = laws.loss_law(frame)
    assert law.status == "flat"
    assert f"the only run of {'tokens' if swap else 'params'}" in law.reasons[0]
    assert not law.predict(params=1e9, tokens=1e11).certified
    again = frame[-2:].with_columns(pl.col("loss") * pl.Series([1.002, 0.997]))
    assert laws.loss_law(pl.concat([frame, again])).status == "ok"
    named = pl.concat([frame, again]).with_columns(run=pl.concat_str("params", "tokens"))
    assert laws.loss_law(named, groups="run").status == "flat"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda law, frame: law.bootstrap(3, seed=-1),
        lambda law, frame: law.bootstrap(3, seed="a"),
        lambda law, frame: laws.loss_law(frame, weights=["loss"]),
        lambda law, frame: laws.loss_law(frame, groups=5),
        lambda law, frame: laws.loss_law(
            frame.with_columns(w=pl.when(pl.int_range(pl.len()) == 0).then(1e300).otherwise(1.0)), weights="w"
        ),
    ],
)
def test_arguments_of_another_kind_are_named(grid: Grid, wrong: Callable[..., Any]) -> None:
    frame = grid(CHINCHILLA)
    with pytest.raises(ValueError, match=r"^(seed|weights|groups|Column 'w') must "):
        wrong(laws.loss_law(frame), frame)


def test_far_below_the_smallest_run_nothing_is_certified(grid: Grid) -> None:
    assert not laws.loss_law(grid(CHINCHILLA)).predict(params=1e-300, tokens=1e9).certified
