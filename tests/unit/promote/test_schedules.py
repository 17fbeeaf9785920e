"""Schedules compared each at its own best rate, in pairs of seeds, at two horizons; else they were set."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from recipe_worlds import TARGET, row

from froude.promote.choice.schedules import compared

COSINE = 0.01  # nats above wsd


def rows(
    *,
    horizons: tuple[int, ...] = (170, 680),
    seeds: int = 3,
    rates: int = 7,
    noise: float = 1e-3,
    cosine: float = COSINE,
) -> pl.DataFrame:
    """Wsd and cosine, whose best rate is an octave higher; at wsd's best rate cosine is far worse than at its own."""
    rng, found = np.random.default_rng(0), []
    for steps in horizons:
        for seed in range(seeds):
            floor = 1.9 + 0.02 * rng.standard_normal()  # a seed's own, common to both
            for name, more, octave in (("wsd", 0.0, 0.0), ("cosine", cosine, 1.0)):
                for i in range(rates):
                    octaves = (i - (rates - 1) / 2) * 0.5 + 0.25
                    loss = floor + more + 0.04 * (octaves - octave) ** 2 + noise * rng.standard_normal()
                    found.append(
                        row("schedules", f"{name}-{steps}-{seed}-{i}", loss, tokens=768 * steps, seed=seed,
                            schedule=name, lr=5e-3 * 2**octaves)
                    )  # fmt: skip
    return pl.DataFrame(found, infer_schema_length=None)


def test_the_difference_at_own_rates_comes_back() -> None:
    (against,) = compared(rows(), TARGET)
    assert against.name == "cosine"
    assert against.low < COSINE < against.high
    assert against.low > 0
    assert against.pairs == 6
    assert against.regret < 1e-4
    assert str(against).startswith("cosine +0.0")
    (other,) = compared(rows(), TARGET.replace({"schedule.name": "cosine"}))
    assert other.loss == pytest.approx(-against.loss)
    assert other.regret == pytest.approx(against.loss, rel=0.01)


def test_what_noise_hides_is_not_told() -> None:
    (against,) = compared(rows(cosine=0.0), TARGET)
    assert against.low < 0 < against.high


@pytest.mark.parametrize("few", [{"horizons": (170,)}, {"seeds": 1}, {"rates": 3}])
def test_one_horizon_one_seed_or_three_rates_compare_nothing(few: dict[str, object]) -> None:
    assert compared(rows(**few), TARGET) == ()  # type: ignore[arg-type]


def test_tails_of_one_schedule_are_told_apart() -> None:
    tails = rows().with_columns(
        decay_fraction=pl.when(pl.col("schedule") == "cosine").then(0.1).otherwise(0.2),
        schedule=pl.lit("wsd"),
    )
    (against,) = compared(tails, TARGET)
    assert against.name == "wsd with a tail of 0.1"
    assert math.isfinite(against.low)
