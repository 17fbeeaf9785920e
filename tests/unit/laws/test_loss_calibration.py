"""Intervals of the loss law: calibrated on held-out larger runs, certified only then."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from froude import laws
from froude.laws.loss import fit as loss_fit
from froude.laws.loss import many_fits, noise
from froude.laws.loss.calibration import CONTRADICTED, MOST, WIDER, WORST, Calibration, held_out

pytestmark = pytest.mark.slow

CHINCHILLA = (1.8172, 482.01, 2085.43, 0.3478, 0.3658)
Grid = Callable[..., pl.DataFrame]
LARGER = {"params": 3e10, "tokens": 2e12}


def problem_of(frame: pl.DataFrame, delta: float | None = 1e-3, tied: bool = False) -> loss_fit.Problem:
    columns = [frame[name].to_numpy() for name in ("params", "tokens", "loss")]
    return loss_fit.Problem.of(*columns, np.ones(frame.height), delta, tied)


@pytest.mark.parametrize("delta,tied", [(1e-3, False), (1e-3, True), (None, False), (None, True)])
def test_many_fits_at_once_are_those_of_scipy_one_by_one(grid: Grid, delta: float | None, tied: bool) -> None:
    problem = problem_of(grid(CHINCHILLA, noise=0.01), delta, tied)
    theta, _ = loss_fit.solve(problem)
    rng = np.random.default_rng(0)
    weights = np.stack([np.bincount(rng.integers(0, 25, 25), minlength=25) for _ in range(6)]).astype(float)
    starts = theta + 0.02 * rng.standard_normal((6, 5))
    thetas, values = many_fits.descend_many(problem, weights, starts)
    for row, fit, value, start in zip(weights, thetas, values, starts, strict=True):
        alone, least = loss_fit.descend(problem.weighted(row), start)
        assert value == pytest.approx(least, rel=1e-6)
        assert fit[3:] == pytest.approx(alone[3:], rel=1e-3)
        assert problem.weighted(row).objective(fit) == pytest.approx(value, rel=1e-9)


def test_a_fit_of_rows_that_follow_the_law_exactly_gives_it_back(grid: Grid) -> None:
    problem = problem_of(grid(CHINCHILLA))
    start = np.array([-0.5, -0.5, 0.4, 0.5, 0.3])
    thetas, values = many_fits.descend_many(problem, np.ones((1, 25)), start[None, :])
    assert problem.unpack(thetas[0]) == pytest.approx(CHINCHILLA, rel=1e-4)
    assert values[0] < loss_fit.EXACT


def calibration(*scores: list[float], runs: int = 0) -> Calibration:
    return Calibration(tuple(np.array(s) for s in scores), runs or sum(len(s) for s in scores))


def test_without_larger_runs_the_factor_is_that_of_other_peoples() -> None:
    assert calibration().factor == WIDER
    assert "0 of the 2 held-out larger runs" in calibration().refusals()[0]


def test_the_factor_moves_towards_what_the_scores_ask_for_the_more_of_them_there_are() -> None:
    quiet, loud = ([calibration([size] * k, [size] * k).factor for k in (2, 5, 10)] for size in (0.7, 3.0))
    assert WIDER > quiet[0] > quiet[1] >= quiet[2] >= 1.0
    assert WIDER < loud[0] < loud[1] < loud[2] < 3.0
    most = calibration([3.0] * 500, [3.0] * 500).factor
    assert most == calibration([3.0] * (MOST // 2), [3.0] * (MOST // 2)).factor


def test_one_error_counts_no_more_than_so_many_expected_ones_and_one_bad_split_is_no_rule() -> None:
    assert calibration([WORST, 1.0]).asked == calibration([100.0, 1.0]).asked
    assert calibration([1.0], [1.0], [1.0], [1.0], [WORST]).asked == 1.0


def test_too_few_runs_and_contradictions_are_not_certified() -> None:
    assert calibration([0.5], [1.0]).refusals() == calibration([0.5, 1.0]).refusals() == []
    assert "1 of the 2 held-out larger runs" in calibration([0.5]).refusals()[0]
    assert calibration([0.5], [1.0], runs=1).refusals() != []  # one run in two splits
    apart = calibration([CONTRADICTED + 1] * 3, [CONTRADICTED + 1] * 3)
    assert "times as far off as expected" in apart.refusals()[0]


def test_several_scores_of_one_run_count_once(grid: Grid) -> None:
    frame = grid(CHINCHILLA, noise=0.004)
    alone, together = (
        held_out(problem_of(frame), groups, 30.0) for groups in (np.arange(25), np.repeat(np.arange(5), 5))
    )
    assert alone.runs == 19
    assert together.runs == 3
    many = calibration([3.0] * 10, [3.0] * 10, runs=3)
    assert many.factor < calibration([3.0] * 10, [3.0] * 10).factor


def test_a_sweep_of_many_runs_is_certified_within_reach(grid: Grid) -> None:
    law = laws.loss_law(grid(CHINCHILLA, noise=0.004))
    near = law.predict(**LARGER)
    assert near.certified
    assert near.reasons == ()
    assert near.low < 1.8172 + 482.01 * 3e10**-0.3478 + 2085.43 * 2e12**-0.3658 < near.high
    far = law.predict(params=3e11, tokens=2e13)
    assert not far.certified
    assert [reason.split()[0] for reason in far.reasons] == ["compute"]
    # Compute alone can be bought by tokens.
    bought = law.predict(params=1e9, tokens=4e13)
    assert any(reason.startswith("tokens 40 times") for reason in bought.reasons)
    assert not any(reason.startswith("compute") for reason in bought.reasons)
    again = laws.loss_law(grid(CHINCHILLA, noise=0.004)).predict(**LARGER)
    assert (again.low, again.high) == (near.low, near.high)


def test_a_law_that_only_nearly_holds_gets_a_wider_interval(grid: Grid) -> None:
    frame = grid(CHINCHILLA, noise=0.002)
    # The size's exponent falls over the range, until its term no longer does.
    log_n = pl.col("params").log() - pl.col("params").log().mean()
    bent = frame.with_columns(pl.col("loss") + 0.3 * (0.048 * log_n**2))
    straight, curved = (laws.loss_law(f).predict(**LARGER) for f in (frame, bent))
    assert (curved.high - curved.low) / curved.loss > 1.4 * (straight.high - straight.low) / straight.loss


def test_few_runs_are_not_certified(grid: Grid) -> None:
    prediction = laws.loss_law(grid(CHINCHILLA, sizes=3, horizons=3, noise=0.004)[:8]).predict(**LARGER)
    assert not prediction.certified
    assert any("held-out larger runs" in reason for reason in prediction.reasons)
    tied = laws.loss_law(grid((1.8, 400.0, 400.0, 0.35, 0.35), 3, 3, noise=0.004), form="tied").predict(
        **LARGER
    )
    assert tied.low < tied.loss < tied.high


def test_a_batch_adds_its_ratio(grid: Grid) -> None:
    law = laws.loss_law(grid(CHINCHILLA, noise=0.004).with_columns(batch=pl.lit(2**19)))
    ratios = law.predict(**LARGER, batch=2**21).extrapolation
    assert ratios == pytest.approx({"params": 3.0, "tokens": 2.0, "flops": 6.0, "batch": 4.0})
    with pytest.raises(ValueError, match="batch"):
        law.predict(**LARGER, batch=-1)
    with pytest.raises(ValueError, match="batch"):
        laws.loss_law(grid(CHINCHILLA)).predict(**LARGER, batch=2**20)


def test_thousands_of_rows_are_calibrated_on_some(grid: Grid) -> None:
    frame = grid(CHINCHILLA, sizes=60, horizons=60, noise=0.004)
    prediction = laws.loss_law(frame).predict(**LARGER)
    assert prediction.certified
    # Rows would leave some .6%; what no law of this form has is added to that.
    missed = 1.645 * noise.MISSED * math.log(6)
    assert missed < (prediction.high - prediction.low) / 2 / prediction.loss < 1.6 * missed


def test_however_many_runs_there_are_larger_ones_are_off_the_law_by_their_reach(grid: Grid) -> None:
    law = laws.loss_law(grid(CHINCHILLA, sizes=12, horizons=12, noise=1e-4))
    for reach in (2.0, 8.0, 32.0):
        found = law.predict(params=1e10 * reach**0.5, tokens=1e12 * reach**0.5)
        half = math.log(found.high / found.low) / 2
        assert half > 0.9 * 1.645 * noise.MISSED * math.log(reach)
    inside = law.predict(params=1e10, tokens=1e12)
    assert math.log(inside.high / inside.low) / 2 < 0.002


def test_held_out_runs_of_chinchilla_are_inside_in_three_of_four_cases(reference: Path) -> None:
    """Rolling splits of the digitised rows of 2203.15556; bootstrap intervals at 95% held 65 to 70% of them."""
    rows = pl.read_csv(reference / "chinchilla_epoch.csv").rename(
        {"params_N": "params", "tokens_D": "tokens"}
    )
    rows = rows.filter(~pl.col("dropped_by_authors").cast(pl.Boolean))
    rows = rows.with_columns(compute=pl.col("params") * pl.col("tokens")).sort("compute")
    inside = []
    for fitted in (50, 90, 130, 160, 190, 215):
        cut = rows["compute"][fitted]
        law = laws.loss_law(rows.filter(pl.col("compute") <= cut))
        larger = rows.filter((pl.col("compute") > cut) & (pl.col("compute") <= 10 * cut))
        for n, d, loss in larger.select("params", "tokens", "loss").iter_rows():
            prediction = law.predict(params=n, tokens=d)
            inside.append(prediction.low <= loss <= prediction.high)
    assert len(inside) > 200
    # At the later cuts every law errs to one side: all larger runs are then out at once (benchmarks/calibration.md).
    assert np.mean(inside) >= 0.75


def test_few_runs_of_many_checkpoints_have_an_interval() -> None:
    rng = np.random.default_rng(0)
    tokens = np.geomspace(1e6, 1e8, 900)
    rows = [
        pl.DataFrame({"run": f"r{i}", "params": float(n), "tokens": tokens}).with_columns(
            loss=1.7
            + 400 / n**0.34
            + 400 / pl.col("tokens") ** 0.3
            + pl.Series(0.002 * rng.standard_normal(900))
        )
        for i, n in enumerate((1e5, 3e5, 1e5, 1e6))
    ]
    seen = laws.loss_law(pl.concat(rows), groups="run").predict(params=2e6, tokens=2e8)
    assert seen.low < seen.loss < seen.high
    assert not seen.certified
