"""Schedules compared each at its own best rate, in pairs of seeds, at two horizons; else they were set."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from recipe_worlds import PARAMS, TARGET, World, ladder_fits, row, study

from froude.promote.choice.choose import choose
from froude.promote.choice.knob import Knob
from froude.promote.choice.schedules import compared
from froude.promote.fits import Fits

COSINE = 0.01  # nats above wsd


def rows(
    *,
    horizons: tuple[int, ...] = (170, 680),
    seeds: int = 3,
    rates: int = 7,
    noise: float = 1e-3,
    cosine: float | dict[int, float] = COSINE,
) -> pl.DataFrame:
    """Wsd and cosine, whose best rate is an octave higher; at wsd's best rate cosine is far worse than at its own.

    `cosine` is how far it is above wsd, in nats, by steps where horizons differ.
    """
    rng, found = np.random.default_rng(0), []
    for steps in horizons:
        for seed in range(seeds):
            floor = 1.9 + 0.02 * rng.standard_normal()  # a seed's own, common to both
            above = cosine[steps] if isinstance(cosine, dict) else cosine
            for name, more, octave in (("wsd", 0.0, 0.0), ("cosine", above, 1.0)):
                for i in range(rates):
                    octaves = (i - (rates - 1) / 2) * 0.5 + 0.25
                    loss = floor + more + 0.04 * (octaves - octave) ** 2 + noise * rng.standard_normal()
                    found.append(
                        row("schedules", f"{name}-{steps}-{seed}-{i}", loss, tokens=768 * steps, seed=seed,
                            schedule=name, lr=5e-3 * 2**octaves)
                    )  # fmt: skip
    return pl.DataFrame(found, infer_schema_length=None)


def test_the_difference_at_own_rates_comes_back() -> None:
    (against,), tails = compared(rows(), TARGET)
    assert tails == ()
    assert against.name == "cosine"
    assert against.low < COSINE < against.high
    assert against.low > 0
    assert against.pairs == 6
    assert against.regret < 1e-4
    assert str(against).startswith("cosine +0.0")
    (other,), _ = compared(rows(), TARGET.replace({"schedule.name": "cosine"}))
    assert other.loss == pytest.approx(-against.loss)
    assert other.regret == pytest.approx(against.loss, rel=0.01)


def test_what_noise_hides_is_not_told() -> None:
    (against,), _ = compared(rows(cosine=0.0), TARGET)
    assert not against.split
    assert against.low < 0 < against.high


@pytest.mark.parametrize("few", [{"horizons": (170,)}, {"seeds": 1}, {"rates": 3}])
def test_one_horizon_one_seed_or_three_rates_compare_nothing(few: dict[str, object]) -> None:
    assert compared(rows(**few), TARGET) == ((), ())  # type: ignore[arg-type]


def tails() -> pl.DataFrame:
    """Wsd with tails of .2 and, COSINE nats above it, of .1."""
    return rows().with_columns(
        decay_fraction=pl.when(pl.col("schedule") == "cosine").then(0.1).otherwise(0.2),
        schedule=pl.lit("wsd"),
    )


def test_tails_of_one_schedule_are_told_apart() -> None:
    schedules, (against,) = compared(tails(), TARGET)
    assert schedules == ()
    assert against.name == "wsd with a tail of 0.1"
    assert math.isfinite(against.low)


def test_a_schedule_without_a_tail_is_the_same_whatever_share_its_runs_name() -> None:
    cosine = pl.col("schedule") == "cosine"
    named = rows().with_columns(decay_fraction=pl.when(cosine).then(0.1).otherwise(0.2))
    (against,), _ = compared(named, TARGET)
    assert against.name == "cosine"
    (other,), none = compared(named, TARGET.replace({"schedule.name": "cosine"}))
    assert (other.name, none) == ("wsd", ())


@pytest.mark.parametrize(
    ("cosine", "split"),
    [
        ({170: 0.03, 680: -0.01}, True),  # wsd at the shorter only
        ({170: 0.03, 680: 0.012}, True),  # and less so at the longer: at 2,400 steps by then the worse one
        ({170: 0.03, 680: 0.028}, False),
        ({170: 0.012, 680: 0.03}, False),
    ],
)
def test_horizons_that_disagree_measure_nothing(cosine: dict[int, float], split: bool) -> None:
    (against,), _ = compared(rows(cosine=cosine), TARGET)
    assert bool(against.split) == split
    assert math.isnan(against.regret) == split
    if split:
        assert "nats at 130,560 tokens, " in str(against)


def verdicts(fits: Fits, schedules: pl.DataFrame) -> dict[str, Knob]:
    choice = choose(
        replace(fits, rows={**fits.rows, "schedule": schedules}), PARAMS, flops_per_token=156.0 * 160**2
    )
    return {name: knob for knob in choice.knobs if (name := knob.name).startswith("schedule.")}


@pytest.fixture(scope="module")
def fits() -> Fits:
    rng = np.random.default_rng(1)
    return study(World.draw(rng), rng, ladder_fits())


def test_schedule_and_tail_have_a_verdict_each(fits: Fits) -> None:
    by_name = verdicts(fits, rows())
    name, tail = by_name["schedule.name"], by_name["schedule.decay_fraction"]
    assert (name.source, tail.source) == ("measured", "set by you")
    assert (tail.rule, math.isnan(tail.regret)) == ("tails of other lengths were not compared", True)
    assert name.worst == 0
    by_name = verdicts(fits, tails())
    name, tail = by_name["schedule.name"], by_name["schedule.decay_fraction"]
    assert (name.source, tail.source) == ("set by you", "measured")
    assert name.rule.startswith("schedules were not compared")
    assert tail.rule.startswith("wsd with a tail of 0.1 +0.0")


def test_a_comparison_that_noise_drowns_measures_nothing(fits: Fits) -> None:
    knob = verdicts(fits, rows(cosine=0.0, noise=0.02))["schedule.name"]
    assert knob.worst > 0.005 * 1.3
    assert (knob.source, knob.buys) == ("set by you", "more seeds of each would tell which is better")


def test_a_schedule_on_which_horizons_disagree_was_set(fits: Fits) -> None:
    knob = verdicts(fits, rows(cosine={170: 0.03, 680: -0.01}))["schedule.name"]
    assert knob.source == "set by you"
    assert knob.rule.startswith("horizons disagree on cosine: +0.0")
    assert math.isnan(knob.regret)
    assert knob.buys == "runs nearer to the target's horizon would tell"
