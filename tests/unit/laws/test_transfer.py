"""How the optimum moves with width, from one fit over all curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from froude import laws
from froude.laws.lr import quadratic

OFFSETS = (-1.5, -0.75, 0.0, 0.75, 1.5)  # octaves
WIDTHS = (32, 64, 128)


def sweep(
    slope: float,
    *,
    design_slope: float | None = None,
    noise: float = 0.0,
    seed: int = 0,
    widths: tuple[int, ...] = WIDTHS,
) -> pl.DataFrame:
    """Five rates around 2^-7.5 per width, optimum 2^-7.4 at width 64, curvature .04 nats per octave squared."""
    rng = np.random.default_rng(seed)
    design = slope if design_slope is None else design_slope
    rows = []
    for width in widths:
        octaves = math.log2(width / 64)
        for offset in OFFSETS:
            x = -7.5 + design * octaves + offset
            loss = 2 - 0.15 * octaves + 0.04 * (x + 7.4 - slope * octaves) ** 2
            rows.append((width, 2**x, loss + noise * rng.standard_normal()))
    return pl.DataFrame(rows, schema=["width", "lr", "loss"], orient="row")


@settings(max_examples=30, deadline=None)
@given(slope=st.floats(-1.3, 0.5))
def test_a_noiseless_slope_is_recovered(slope: float) -> None:
    law = laws.lr_transfer(sweep(slope))
    assert law.status == "ok"
    assert law.slope.value == pytest.approx(slope, abs=1e-8)
    assert law.curvature == pytest.approx(2 * 0.04 / math.log(2) ** 2, rel=1e-6)
    at = law.optimum(256)
    assert at.value == pytest.approx(2 ** (-7.4 + 2 * slope), rel=1e-6)
    lrs = law.curves.sort("width")["lr"].to_list()
    assert lrs == pytest.approx([2 ** (-7.4 + slope * k) for k in (-1, 0, 1)], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("slope", [0.0, -1.0])
def test_intervals_cover_at_the_noise_of_small_proxies(slope: float) -> None:
    found = [laws.lr_transfer(sweep(slope, noise=0.025, seed=seed)) for seed in range(100)]
    assert all(law.status == "ok" for law in found)
    covered = np.mean([law.slope.low <= slope <= law.slope.high for law in found])
    assert 0.9 <= covered <= 0.99
    assert abs(np.mean([law.slope.value for law in found]) - slope) < 0.03
    assert np.mean([law.slope.se for law in found]) == pytest.approx(
        np.std([law.slope.value for law in found]), rel=0.25
    )


def test_a_width_at_its_edge_is_named_and_does_not_enter_the_slope() -> None:
    rest = sweep(-1.0, noise=0.01)
    x = np.arange(-16.0, -11.0)
    monotone = pl.DataFrame({"width": [256] * 5, "lr": 2.0**x, "loss": 2 - 0.05 * (x + 12)})
    law = laws.lr_transfer(pl.concat([rest, monotone]))
    assert law.status == "edge"
    assert "256" in law.reasons[0]
    alone = laws.lr_transfer(rest)
    assert law.slope.value == pytest.approx(alone.slope.value, rel=1e-9)
    assert law.slope.se == pytest.approx(alone.slope.se, rel=1e-9)
    assert law.curves.filter(pl.col("width") == 256)["status"].item() == "edge"
    assert law.rows.filter(pl.col("width") == 256)["fitted"].is_null().all()


def test_sp_swept_on_a_grid_that_does_not_follow_it_is_an_edge() -> None:
    law = laws.lr_transfer(sweep(-1.0, design_slope=0.0, noise=0.01, widths=(16, 64, 96, 128, 256)))
    assert law.status == "edge"
    statuses = dict(law.curves.select("width", "status").iter_rows())
    assert {width for width, status in statuses.items() if status == "edge"} == {16.0, 256.0}
    assert law.slope.low <= -1.0 <= law.slope.high
    assert law.slope.se < 0.15


def test_diverged_runs_do_not_enter() -> None:
    frame = sweep(0.0)
    high = pl.col("lr") == pl.col("lr").max().over("width")
    lost = frame.with_columns(
        pl.when(high & (pl.col("width") == 128)).then(None).otherwise("loss").alias("loss")
    )
    law = laws.lr_transfer(lost)
    assert law.status == "ok"
    assert law.slope.value == pytest.approx(0, abs=1e-8)
    assert law.rows["fitted"].null_count() == 1
    wild = frame.with_columns(
        pl.when(high & (pl.col("width") == 128)).then(9.0).otherwise("loss").alias("loss")
    )
    assert laws.lr_transfer(wild).slope.value == pytest.approx(0, abs=1e-8)


def test_one_width_few_rates_equal_losses_and_arches_are_not_ok() -> None:
    assert laws.lr_transfer(sweep(0.0, widths=(64,))).status == "too_few_points"
    three = laws.lr_transfer(sweep(0.0, widths=(64,)).filter(pl.int_range(pl.len()).is_between(1, 3)))
    assert three.curves["status"].to_list() == ["too_few_points"]
    assert math.isfinite(three.curves["lr"][0])
    assert (
        laws.lr_transfer(sweep(0.0).filter(pl.int_range(pl.len()).over("width") < 2)).status
        == "too_few_points"
    )
    assert laws.lr_transfer(sweep(0.0).with_columns(loss=pl.lit(2.0))).status == "flat"
    arch = sweep(0.0).with_columns(loss=5 - pl.col("loss"))
    assert laws.lr_transfer(arch).status in {"not_convex", "edge"}
    noisy = [laws.lr_transfer(sweep(0.0, noise=0.5, seed=s)) for s in range(10)]
    assert all(law.status != "ok" for law in noisy)
    for law in noisy:
        assert law.table().height == 3
        assert law.rows.height == 15


def test_a_status_of_ok_has_finite_numbers_and_a_bad_one_refuses_an_optimum() -> None:
    law = laws.lr_transfer(sweep(0.0, widths=(64,)))
    with pytest.raises(ValueError, match="too_few_points"):
        law.optimum(128)
    good = laws.lr_transfer(sweep(0.0, noise=0.01))
    assert all(math.isfinite(v) for v in (good.slope.value, good.slope.se, good.slope.low, good.slope.high))
    assert good.curves.select("lr", "low", "high", "loss").null_count().sum_horizontal().item() == 0
    with pytest.raises(ValueError, match="width"):
        good.optimum(-1)
    with pytest.raises(ValueError, match="over"):
        laws.lr_transfer(sweep(0.0), over="loss")


def test_any_column_can_take_the_place_of_width() -> None:
    frame = sweep(-0.5).rename({"width": "depth"})
    law = laws.lr_transfer(frame, over="depth")
    assert law.slope.value == pytest.approx(-0.5, abs=1e-8)
    assert "depth" in law.curves.columns


@pytest.mark.parametrize(("growth", "said"), [(1.0, False), (1.7, True)])
def test_curvature_that_grows_with_width_is_told_where_it_moves_the_slope(growth: float, said: bool) -> None:
    rng = np.random.default_rng(0)
    rows = []
    for i, width in enumerate((128, 256, 512, 1024)):
        u = np.log(2) * np.arange(-4.5, 4)
        loss = 3 - 0.2 * i + 0.025 * growth**i * u**2 + 0.0072 * np.maximum(u, 0) ** 3
        loss += 0.002 * rng.standard_normal(u.size)
        lr = 3e-3 * (width / 128) ** -0.5 * np.exp(u)
        rows.append(pl.DataFrame({"width": [width] * u.size, "lr": lr, "loss": loss}))
    law = laws.lr_transfer(pl.concat(rows))
    assert law.status == ("not_convex" if said else "ok")
    assert bool(law.reasons) is said
    assert all("curvature differs between widths" in reason for reason in law.reasons)


def test_a_rate_that_no_fit_uses_is_named_with_its_reason() -> None:
    """One too far above the best, one diverged, one that failed: two are left, by name."""
    rates = [2**-9, 2**-8, 2**-7, 2**-6, 2**-5, 2**-4]
    losses = [2.1, 2.0, 2.1, 2.61, None, None]
    status = ["finished"] * 4 + ["diverged", "failed"]
    wide = pl.DataFrame({"width": 64, "lr": rates, "loss": losses, "status": status})
    full = sweep(0.0).filter(pl.col("width") != 64).with_columns(status=pl.lit("finished"))
    law = laws.lr_transfer(pl.concat([wide, full], how="diagonal_relaxed"))
    curves = {row["width"]: row for row in law.table().iter_rows(named=True)}
    assert curves[64]["rates"] == 3
    assert curves[64]["left_out"] == "0.0156 (0.61 nats above the best), 0.0312 (diverged), 0.0625 (failed)"
    assert curves[32]["left_out"] == curves[128]["left_out"] == ""
    alone = laws.lr_curve(wide)
    assert alone.table()["left_out"].item() == curves[64]["left_out"]
    assert "0.0156 (0.61 nats above the best)" in alone.reasons[0]


def falling_to_zero(seed: int) -> pl.DataFrame:
    """Losses that fall to (nearly) zero with the rate, stay there, and rise late, later at larger widths."""
    rng = np.random.default_rng(seed)
    widths = 2 ** np.arange(5, 5 + rng.integers(3, 6))
    n, step = rng.integers(7, 12), rng.choice([0.5, 1.0]) * math.log(2)
    floor, depth, rise = 10 ** rng.uniform(-5, -2.5), rng.uniform(0.5, 2), rng.uniform(0.1, 0.6)
    power, late, noise = rng.uniform(0.7, 1.5), rng.uniform(1, 3), rng.uniform(0.02, 0.3)
    high, span = 10 ** rng.uniform(-2.5, -1), rng.uniform(1.5, 3)
    u = (np.arange(n) - (n - 1) / 2 + rng.uniform(-0.5, 0.5)) * step
    frames = []
    for width in widths:
        octaves = math.log(width / 64)
        falls = depth * np.exp(-(np.exp(u + span) ** power))
        rises = high * np.exp(late * (u - rise * octaves) - octaves / 2)
        loss = (floor + falls + rises) * np.exp(noise * rng.standard_normal(n))
        frames.append(pl.DataFrame({"width": width, "lr": 0.01 * np.exp(u), "loss": loss}))
    return pl.concat(frames)


def sharpening(seed: int) -> pl.DataFrame:
    """Parabolas of ln loss, sharper and deeper at larger widths: the loss falls next to zero."""
    rng = np.random.default_rng([seed, 1])
    widths = 2 ** np.arange(5, 5 + rng.integers(3, 6))
    n, step = rng.integers(7, 12), rng.choice([0.5, 1.0]) * math.log(2)
    rise = rng.uniform(0.1, 0.6) * rng.choice([-1, 1])
    sharper, deeper, bend = rng.uniform(0.1, 0.5), rng.uniform(0.5, 2), rng.uniform(0.3, 1.5)
    noise, lean = rng.uniform(0.02, 0.2), rng.uniform(0, 0.5)
    u = (np.arange(n) - (n - 1) / 2 + rng.uniform(-0.5, 0.5)) * step
    frames = []
    for width in widths:
        octaves = math.log(width / widths.mean())
        v = u - rise * octaves
        logs = math.log(0.05) - deeper * octaves + 0.5 * bend * (width / 64) ** sharper * v**2
        logs += lean * np.maximum(-v, 0) + noise * rng.standard_normal(n)
        loss = np.minimum(np.exp(logs), 3.0)
        frames.append(pl.DataFrame({"width": width, "lr": 0.01 * np.exp(u), "loss": loss}))
    return pl.concat(frames)


def well_behaved(seed: int) -> pl.DataFrame:
    """A sweep as of a language model: noise of .1 to 1% of the loss, one to three seeds, curves steeper above."""
    rng = np.random.default_rng([seed, 2])
    n, noise, loss = rng.integers(5, 10), 10 ** rng.uniform(-3, -2), rng.uniform(1.5, 4)
    slope, seeds = rng.choice([0.0, 0.0, -1.0, -0.5, 0.2]), rng.integers(1, 4)
    bend, skew = rng.uniform(0.02, 0.08), rng.uniform(0, 0.16)
    follows = slope if abs(slope) >= 0.5 else 0.0  # the grid goes along with a large one
    u = (np.arange(n) - (n - 1) / 2 + rng.uniform(-0.5, 0.5)) * math.log(2) / 2 * (1.5 if n == 5 else 1)
    frames = []
    for i, width in enumerate(2 ** np.arange(5, 5 + rng.integers(3, 5))):
        octaves = math.log(width / 64)
        for _ in range(seeds):
            v = u - (slope - follows) * octaves
            curve = bend * (0.5 * v**2 + skew * np.maximum(v, 0) ** 3)
            y = loss * (1 - 0.05 * i + curve + noise * rng.standard_normal(n))
            rates = 0.01 * np.exp(u + follows * octaves)
            frames.append(pl.DataFrame({"width": width, "lr": rates, "loss": y}))
    return pl.concat(frames)


@pytest.mark.parametrize("make", [falling_to_zero, sharpening])
def test_a_joint_fit_of_losses_next_to_zero_is_not_ok(make: Callable[[int], pl.DataFrame]) -> None:
    found = [laws.lr_transfer(make(seed)) for seed in range(40)]
    assert "ok" not in [law.status for law in found]
    named = [law for law in found if "a curve that falls to zero is no parabola" in "; ".join(law.reasons)]
    assert len(named) > 20
    assert {law.status for law in named} == {"not_convex"}
    assert all(math.isfinite(law.slope.value) for law in named)


def scattered(
    optima: Sequence[float], *, noise: float = 0.002, seeds: int = 1, seed: int = 0
) -> pl.DataFrame:
    """Nine rates around 2^-8 at widths from 64 on, optima (log2) as given, curvature .05 nats per octave squared."""
    rng, x = np.random.default_rng(seed), -8 + 0.6 * (np.arange(9) - 4)
    frames = []
    for i, best in enumerate(optima):
        for _ in range(seeds):
            loss = 3 - 0.1 * i + 0.05 * (x - best) ** 2 + 3 * noise * rng.standard_normal(x.size)
            frames.append(pl.DataFrame({"width": 64 * 2**i, "lr": 2.0**x, "loss": loss}))
    return pl.concat(frames)


@pytest.mark.parametrize(
    "optima", [(-7, -9, -9, -7), (-9, -7, -9, -7), (-8, -8, -8, -6.2), (-7.5, -8.5, -7.5)]
)
@pytest.mark.parametrize(("noise", "seeds"), [(0.0, 1), (0.002, 1), (0.01, 3)])
def test_optima_that_lie_on_no_line_are_named(optima: tuple[float, ...], noise: float, seeds: int) -> None:
    law = laws.lr_transfer(scattered(optima, noise=noise, seeds=seeds))
    assert law.status == "not_convex"
    (reason,) = law.reasons
    assert reason.startswith("the best rates do not lie on a line: ")
    for width, lr in law.curves.select("width", "lr").iter_rows():
        assert f"{lr:.3g} at width {width:g} (line: {law.optimum(width).value:.3g})" in reason


def test_optima_a_tenth_of_an_octave_off_a_line_are_not_contradicted_however_well_they_are_known() -> None:
    """A curve that is no parabola moves an optimum as far, and the rate on the line costs nothing there."""
    law = laws.lr_transfer(scattered((-8, -8.1, -8), noise=1e-5))
    assert law.status == "ok"


def test_two_widths_and_optima_on_a_line_are_not_contradicted() -> None:
    for optima in ((-7, -9), (-7.4, -7.8, -8.2, -8.6), (-8, -8, -8)):
        for noise in (0.0, 0.002):
            assert laws.lr_transfer(scattered(optima, noise=noise)).status == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.002, 0.01])
def test_of_sweeps_with_optima_on_a_line_few_are_called_off_it(noise: float) -> None:
    """More than five of 150 with a probability of .4% if it is one in a hundred."""
    laws_found = [
        laws.lr_transfer(scattered((-7.7, -8, -8.3), noise=noise, seed=seed)) for seed in range(150)
    ]
    assert sum("do not lie on a line" in "; ".join(law.reasons) for law in laws_found) <= 5


def test_well_behaved_sweeps_stay_ok() -> None:
    statuses = [laws.lr_transfer(well_behaved(seed)).status for seed in range(100)]
    assert statuses.count("ok") >= 95


def test_many_rows_are_fitted_block_by_block_to_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(0)
    design, y = chance.standard_normal((205, 5)), chance.standard_normal(205)
    whole = quadratic.least_squares(design, y)
    monkeypatch.setattr(quadratic, "BLOCK", 50)
    parts = quadratic.least_squares(design, y)
    assert whole is not None
    assert parts is not None
    assert parts.beta == pytest.approx(whole.beta, rel=1e-12)
    assert parts.covariance == pytest.approx(whole.covariance, rel=1e-10)
    assert quadratic.least_squares(np.column_stack([design, design[:, 0] - design[:, 1]]), y) is None
