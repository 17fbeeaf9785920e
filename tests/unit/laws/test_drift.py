"""How far the best rate moves to a target, and whether the runs can tell."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from froude.laws.lr.drift import Drift, lr_drift, missing

READ = {"width": 512.0, "depth": 8.0, "tokens": 4e9}
TARGET = {"width": 4096.0, "depth": 8.0, "tokens": 64e9}
REGRET = 0.005


def sweep(
    slopes: dict[str, float] | None = None,
    *,
    noise: float = 0.0,
    seed: int = 0,
    sizes: dict[str, tuple[float, ...]] | None = None,
    rates: int = 9,
    seeds: int = 2,
    steeper: float = 1.6,
) -> pl.DataFrame:
    """Curvature .045 nats at a loss of 3, `steeper` times that above the optimum, which is .01 where it is read."""
    rng = np.random.default_rng(seed)
    have = {"width": (256.0, 512.0, 1024.0), "depth": (8.0,), "tokens": (1e9, 4e9)} | (sizes or {})
    u = (np.arange(rates) - (rates - 1) / 2) * math.log(2) / 2
    frames = []
    for width in have["width"]:
        for depth in have["depth"]:
            for tokens in have["tokens"]:
                here = {"width": width, "depth": depth, "tokens": tokens}
                moved = sum(s * math.log(here[axis] / READ[axis]) for axis, s in (slopes or {}).items())
                for which in range(seeds):
                    v = u - moved
                    loss = (
                        3 - 0.1 * math.log(width) + 0.05 * which + 0.0225 * v**2 * np.where(v > 0, steeper, 1)
                    )
                    loss += 3 * noise * rng.standard_normal(rates)
                    rows = pl.DataFrame({"lr": 0.01 * np.exp(u), "loss": loss})
                    frames.append(
                        rows.with_columns(**{k: pl.lit(x) for k, x in here.items()}, seed=pl.lit(which))
                    )
    return pl.concat(frames)


def fitted(frame: pl.DataFrame, to: dict[str, float] | None = None) -> Drift:
    return lr_drift(frame, at=READ, to=TARGET | (to or {}))


@pytest.mark.parametrize("slopes", [{}, {"width": -0.2}, {"tokens": 0.15}, {"width": 0.1, "tokens": -0.2}])
def test_a_noiseless_drift_is_recovered(slopes: dict[str, float]) -> None:
    found = fitted(sweep(slopes))
    moved = sum(slope * math.log(TARGET[axis] / READ[axis]) for axis, slope in slopes.items())
    assert (found.low, found.shift, found.high) == pytest.approx((moved, moved, moved), abs=1e-4)
    assert found.curvature == pytest.approx(0.045 * 1.6, rel=1e-3)
    assert found.cost(found.allowed(REGRET)) == pytest.approx(REGRET)
    assert found.cost(0.5) == pytest.approx(0.5 * 0.072 * 0.25 / found.loss, rel=1e-3)


def test_a_seed_s_own_part_is_no_noise_and_order_and_unknown_seeds_do_not_matter() -> None:
    frame = sweep(noise=0.002)
    found, apart = (
        fitted(rows) for rows in (frame, frame.with_columns(pl.col("loss") + 0.2 * pl.col("seed")))
    )
    assert apart.shift == pytest.approx(found.shift, abs=1e-6)
    assert apart.noise == pytest.approx(found.noise, rel=1e-6)
    other = fitted(frame.sample(fraction=1.0, shuffle=True, seed=1))
    assert (other.low, other.high) == pytest.approx((found.low, found.high), rel=1e-6)
    unknown = fitted(sweep(seeds=1).with_columns(seed=pl.lit(None, pl.Int64)))
    assert unknown.shift == pytest.approx(0, abs=1e-4)


@pytest.mark.slow
def test_both_tests_hold_their_level_and_have_their_power() -> None:
    """At the bound at most 5% pass, with no drift at least 80%; 100 sweeps each of 108 runs with a noise of .4%."""
    down = -math.sqrt(2 * REGRET * 3 / 0.072) / math.log(16)
    passed = dict.fromkeys((0.0, down), 0)
    for seed in range(100):
        for slope in passed:
            frame = sweep({"tokens": slope}, noise=0.004, seed=seed)
            passed[slope] += fitted(
                frame.with_columns(pl.col("loss") + 0.1 * pl.col("width").log())
            ).equivalent(REGRET)
    assert passed[0.0] >= 80
    assert passed[down] <= 9  # more with a probability of 3% if it is 5 in truth


def test_a_large_drift_is_told_from_one_that_is_not_known() -> None:
    clear = fitted(sweep({"tokens": -0.4}, noise=0.002))
    assert clear.moves(REGRET)
    assert not clear.equivalent(REGRET)
    vague = fitted(sweep(noise=0.01, seed=1))
    assert not vague.moves(REGRET)
    assert not vague.equivalent(REGRET)


@pytest.mark.parametrize(
    ("sizes", "to", "lacking"),
    [
        ({"tokens": (4e9,)}, {}, ("tokens",)),
        ({"tokens": (4e9,)}, {"tokens": 4.04e9}, ()),
        ({"width": (512.0,)}, {}, ("width",)),
        ({}, {"depth": 16.0}, ("depth",)),
        ({"depth": (4.0, 8.0)}, {"depth": 16.0}, ()),
    ],
)
def test_what_the_runs_do_not_tell_apart_is_named(sizes: Any, to: Any, lacking: tuple[str, ...]) -> None:
    frame = sweep(sizes=sizes)
    found = fitted(frame, to)
    assert found.missing == missing(frame, at=READ, to=TARGET | to) == lacking
    assert math.isnan(found.shift) == bool(lacking)
    assert not (lacking and found.equivalent(REGRET))


def test_sizes_that_grow_together_tell_only_of_targets_on_their_line() -> None:
    every = sweep({"width": -0.1}, sizes={"width": (256.0, 512.0, 1024.0), "tokens": (2e9, 4e9, 8e9)})
    line = every.filter(pl.col("tokens") / pl.col("width") == 4e9 / 512)
    on = fitted(line, {"tokens": 32e9})
    assert on.missing == ()
    assert on.shift == pytest.approx(-0.1 * math.log(8), abs=1e-4)
    assert fitted(line).missing == ("width", "tokens")


@pytest.mark.parametrize("noise", [0.0, 0.002])
def test_optima_that_lie_on_no_line_are_unknown_and_named(noise: float) -> None:
    """A hump: up at the middle width, at both horizons, which a line through all takes for an optimum that stays."""
    sizes = {"width": (256.0, 512.0, 1024.0)}
    humped = sweep(noise=noise, seeds=3, sizes=sizes).with_columns(
        lr=pl.col("lr") * pl.when(pl.col("width") == 512).then(2.0).otherwise(1.0)
    )
    found = fitted(humped)
    assert math.isnan(found.shift)
    assert not found.equivalent(REGRET)
    assert not found.moves(REGRET)
    assert found.more(REGRET) is None
    assert len(found.off_line) == 6
    assert found.off_line[0].endswith(" at width 256, depth 8, tokens 1,000,000,000")
    rates = [float(text.split(" ")[0]) for text in found.off_line]
    assert rates == pytest.approx([0.01, 0.01, 0.02, 0.02, 0.01, 0.01], rel=0.05)


def test_an_optimum_at_an_edge_is_named() -> None:
    found = fitted(sweep({"tokens": -1.5}))
    assert found.bad
    assert all(text.startswith("width ") and text.endswith(": edge") for text in found.bad)
    assert found.more(REGRET) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes", [{"tokens": (4e9,)}, {"tokens": (4e9,), "width": (512.0, 1024.0)}, {"width": (512.0,)}, {}]
)
def test_the_runs_to_add_give_the_power_that_they_promise(sizes: Any) -> None:
    noise = 0.005
    found = replace(fitted(sweep(sizes=sizes, seeds=1)), noise=3 * noise)
    more = found.more(REGRET)
    assert more is not None
    assert more.power >= 0.8
    assert more.runs == len(more.sizes) * more.rates * more.seeds
    passed = 0
    for seed in range(40):
        frames = [sweep(noise=noise, sizes=sizes, seeds=1, seed=seed)]
        for i, new in enumerate(more.sizes):
            at = {axis: (size,) for axis, size in new.items()}
            added = sweep(noise=noise, sizes=at, seeds=more.seeds, seed=1000 + 10 * seed + i)
            frames.append(added.with_columns(pl.col("seed") + 1))
        passed += fitted(pl.concat(frames)).equivalent(REGRET)
    assert passed >= 27  # fewer with a probability of 3% if the power is 80%


def test_no_runs_are_named_where_eight_seeds_would_not_do_or_the_shift_is_beyond() -> None:
    assert fitted(sweep(noise=0.2)).more(REGRET) is None
    assert fitted(sweep({"tokens": -0.4}, noise=0.002)).more(REGRET) is None
    assert replace(fitted(sweep(noise=0.002)), noise=math.nan).more(REGRET) is None


def test_few_rates_have_one_parabola_and_bad_input_names_its_column() -> None:
    five = fitted(sweep(rates=5, steeper=1.0))
    assert five.curvature == pytest.approx(0.045, rel=1e-3)
    with pytest.raises(ValueError, match="'loss' is missing"):
        fitted(sweep().drop("loss"))
    with pytest.raises(ValueError, match="'lr'"):
        fitted(sweep().with_columns(lr=pl.lit(-1.0)))


def test_what_more_runs_would_tell_of_the_horizon_is_what_they_tell() -> None:
    found = fitted(sweep(noise=0.003))
    alone = fitted(sweep(noise=0.003), READ | {"tokens": TARGET["tokens"]})
    assert found.error("tokens") == pytest.approx((alone.high - alone.low) / 2 / 1.6449, rel=1e-3)
    options = list(found.options(REGRET))
    assert len({str(option.sizes) for option in options}) == len(options)
    assert {(sizes["width"], sizes["tokens"]) for sizes in options[0].sizes} == {(256.0, 1e9)}
    longer = {"width": 512.0, "depth": 8.0, "tokens": 16e9}
    option = next(option for option in options if option.sizes == (longer,))
    have = sweep(noise=0.003, sizes={"width": (512.0,), "tokens": (16e9,)}, seeds=1, seed=5)
    more = fitted(pl.concat([sweep(noise=0.003), have]))
    assert found.error("tokens", option) == pytest.approx(more.error("tokens"), rel=0.25)
    assert found.error("tokens", option) < 0.8 * found.error("tokens")
    assert found.error(added=options[0]) < found.error()
    short = fitted(sweep(noise=0.003, sizes={"tokens": (1e9,)}))
    assert short.error("tokens") == math.inf
    assert short.error("tokens", option) < math.inf
