"""Where a stage Exponents has measured them, the recipe goes by its exponents, and says so."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from exponent_worlds import TRUTH, add_to

from froude.laws.lr.exponent import NORMAL
from froude.promote.checks.drift import drift
from froude.promote.choice.choose import choose
from froude.promote.choice.rate import horizon, rate
from froude.promote.fits import Fits, fit
from froude.study import Study

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> Fits:
    from small_study import TARGET, write_study

    target = TARGET.replace({"slots": 3, "batch": 3072, "tokens": 3072 * 325}, name="large")
    place = write_study(tmp_path_factory.mktemp("whole") / "study", target=target)
    return fit(add_to(Study(Path(place))))


def test_the_rate_goes_by_measured_exponents(fits: Fits) -> None:
    found = rate(fits, fits.target)
    assert found is not None
    horizon, batch = found.parts[1:]
    assert (horizon.name, batch.name, found.source) == ("horizon", "batch", "measured")
    assert batch.shift / math.log(4) == pytest.approx(TRUTH["lr_batch"], abs=0.08)
    # The small study's own rates at two horizons say that the optimum stays, about as surely as the exponent does not.
    assert 0.0 < horizon.shift / math.log(998_400 / (768 * 170)) < TRUTH["lr_tokens"]
    assert found.sd < 0.15
    assert found.buys(1.3) == "" or "would save" in found.buys(1.3)


def test_the_decay_says_where_the_best_one_lies_and_stays(fits: Fits) -> None:
    searched = fits.rows["search"].filter(run="search-0").row(0, named=True)  # none has this batch
    choice = choose(replace(fits, best=searched), 9e5, flops_per_token=5e6)
    knob = next(knob for knob in choice.knobs if knob.name == "optimizer.weight_decay")
    assert knob.source == "set by you"
    assert choice.run is not None
    assert choice.run.optimizer.weight_decay == knob.value == 0.1
    own = 3072 / (choice.run.optimizer.lr * 0.1 * choice.run.tokens)
    # Of the tokens a parameter, whatever the size of the target.
    params = float(fits.rows["transfer_exponents"]["params"][0])
    truth = 0.2 * (998_400 / (768 * 256) * params / 9e5) ** TRUTH["timescale_tokens"]
    # A world's centre is off by up to .3 in ln.
    assert knob.low * math.exp(-0.3) <= 0.1 * own / truth <= knob.high * math.exp(0.3)
    assert "is best (measured)" in knob.rule
    assert knob.regret > 0


def test_a_drift_over_the_horizon_that_the_recipe_follows_is_none(
    fits: Fits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By rates at two horizons, and, where there is one, by the stage Exponents, whose error then counts."""
    name = fits.target.parametrization
    step = horizon(fits, fits.rows[f"lr_transfer_{name}"], fits.target)
    alone = replace(fits, rows={each: rows for each, rows in fits.rows.items() if each != f"lr_drift_{name}"})
    moved, told = drift(fits), drift(alone)
    monkeypatch.setattr("froude.promote.checks.drift.horizon", lambda *_: None)
    still, untold = drift(fits), drift(alone)
    assert step is not None
    assert moved is not None
    assert still is not None
    assert moved.shift == pytest.approx(still.shift - step.shift)
    assert moved.high - moved.low == pytest.approx(still.high - still.low)
    assert untold is not None
    assert untold.missing == ("tokens",)
    assert told is not None
    assert told.missing == ()
    assert told.high - told.shift > NORMAL * 0.01  # the exponent's, over 7.6 times the tokens
