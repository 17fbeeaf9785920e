"""Which batches a preference may take, what is said of each, and targets whose batch is a ramp or was not searched."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from recipe_worlds import BATCH, CLEAR, FLOPS, PARAMS, TARGET, TIME, study

from froude.config import ConfigError, Run
from froude.laws import Estimate
from froude.promote.checks.reach import rates_batch
from froude.promote.choice import batch
from froude.promote.choice.batch import Batches, allowed, looked_at
from froude.promote.choice.choose import Choice, choose
from froude.promote.choice.knob import Knob
from froude.promote.choice.recipe_run import searched_run
from froude.promote.choice.searched import half_life
from froude.promote.choice.worth import ladder_batches
from froude.promote.fits import Fits

FAR = TARGET.replace({"batch": 7680, "tokens": 7680 * 240}, name="large")
RAMPED = TARGET.replace({"schedule.ramp": ((768 * 1200, 4),)}, name="large")


def of(ladder: Fits, target: Run) -> Fits:
    return study(CLEAR, np.random.default_rng(1), ladder, target=target, noise=1e-4)


def chosen(fits: Fits, prefer: Any = None) -> Choice:
    return choose(fits, PARAMS, flops_per_token=FLOPS, prefer=prefer, time=TIME)


def priced(choice: Choice) -> Batches:
    assert choice.batches is not None
    return choice.batches


def knob(choice: Choice, name: str) -> Knob:
    return next(each for each in choice.knobs if each.name == name)


@pytest.fixture
def best_at_384(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fewest tokens to the loss of stage critical_batch were those of a batch of 384."""
    monkeypatch.setattr(batch, "best_measured", lambda fits: 384.0)


def laddered(fits: Fits, batch: int) -> Fits:
    """The same with a ladder, and rates, of another batch."""
    moved = {
        name: fits.rows[name].with_columns(batch=pl.lit(batch, pl.Int64))
        for name in ("loss_law", "lr_transfer_mup")
    }
    return replace(fits, rows={**fits.rows, **moved})


def test_batches_are_whole_slots_from_the_best_measured_to_what_the_gate_allows(clear: Fits) -> None:
    sizes = looked_at(clear)
    assert all(size % (TARGET.slots * TARGET.model.context) == 0 for size in sizes)
    assert sizes[0] == 192  # the least that three slots allow; 64 tokens took the fewest to the loss
    assert sizes[-1] == 4 * 768  # the ladder's batch is 768
    assert 3072 < looked_at(laddered(clear, 3072))[-1] <= 2 * 3072  # twice the largest that was measured


@pytest.mark.usefixtures("best_at_384")
def test_no_batch_below_the_best_measured_is_taken(clear: Fits) -> None:
    five = TARGET.replace({"slots": 5, "batch": 960, "tokens": 960 * 1920}, name="large")
    assert looked_at(replace(clear, large=five))[0] == 640  # and not 320
    small = chosen(replace(clear, large=TARGET.replace({"batch": 192, "tokens": 192 * 9600}, name="large")))
    assert 192 not in priced(small).offered
    assert priced(small).chosen("loss") >= 384
    rule = knob(small, "batch").rule
    assert rule.startswith(
        "below 384, the best that was measured: what it costs in loss against that is not known"
    )
    assert math.isnan(knob(small, "batch").regret)


def test_a_study_without_a_loss_law_has_no_batches_of_one(clear: Fits) -> None:
    assert ladder_batches(replace(clear, rows={})) == []


def test_the_best_batch_is_of_least_loss_only_where_a_smaller_one_was_tried(
    clear: Fits, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = laddered(replace(clear, large=TARGET.replace({"slots": 1, "workers": (1, 1)}, name="large")), 192)
    rule = knob(chosen(fits, "loss"), "batch").rule
    assert "also the smallest of stage critical_batch: a smaller one may lose less (add some)" in rule
    monkeypatch.setattr(batch, "best_measured", lambda fits: 128.0)
    assert "the best that was measured, and so of least loss" in knob(chosen(fits, "loss"), "batch").rule


def test_a_preset_batch_far_above_the_critical_one_says_what_it_costs_and_saves(ladder: Fits) -> None:
    """No trial of the search had this batch: the study's own fits, nothing put in their place."""
    fits = of(ladder, FAR)
    choice = chosen(fits)
    found = knob(choice, "batch")
    assert (found.value, found.source) == (7680, "set by you")
    assert found.rule.startswith("costs 0.")
    assert "hours" in found.rule or "minutes" in found.rule
    assert "saves" in found.rule
    assert "it lies beyond 3,072, the largest that was measured" in found.rule
    here = priced(choice).at(7680)
    assert here.above < found.regret < 1.1 * here.above  # of batches between the slots one is a little better
    assert found.worst == pytest.approx(
        here.high + found.regret - here.above, rel=0.1
    )  # and not that of the mean
    assert here.above > 0.02
    untimed = choose(fits, PARAMS, flops_per_token=FLOPS).knobs[1]
    assert "hours are not known" in untimed.rule


def test_a_batch_that_was_not_searched_has_the_settings_of_the_nearest_taken_to_it(ladder: Fits) -> None:
    fits = of(ladder, FAR)
    assert fits.best is not None
    assert fits.best["batch"] == 768
    assert "(batch 768, the nearest searched)" in "\n".join(fits.lines())
    choice, run = chosen(fits), searched_run(fits)
    assert run is not None
    assert choice.run is not None
    assert run.optimizer.beta2 == pytest.approx(max(fits.best["beta2"] ** 10, 0.9))
    beta2, lr = knob(choice, "optimizer.beta2"), knob(choice, "optimizer.lr")
    assert "at batch 768, the nearest searched, by its half-life in tokens (prior)" in beta2.rule
    assert (beta2.source, lr.source) == ("prior", "prior")
    assert f"×{math.sqrt(10):.3g} for its batch (prior)" in lr.rule
    share = fits.best["warmup_tokens"] / fits.best["tokens"]
    assert choice.run.schedule.warmup_tokens / FAR.tokens == pytest.approx(share, abs=7680 / 2 / FAR.tokens)

    def width(knob: Knob, batch: int) -> float:
        lives = [math.log(half_life(end, batch)) for end in (knob.low, knob.high)]
        return abs(lives[1] - lives[0])

    own = knob(chosen(of(ladder, TARGET)), "optimizer.beta2")
    assert width(beta2, 7680) > 1.2 * width(own, 768)


def test_a_search_that_ramps_is_held_against_batches_as_its_rows_tell_them(ladder: Fits) -> None:
    """Rows have a ramp's mean, the run its first batch; beta2 is the best trial's, and costs what it does there."""
    mean = RAMPED.phases.mean
    fits = of(ladder, TARGET)
    search = fits.rows["search"].with_columns(
        batch=pl.lit(mean, pl.Int64),
        batch_final=pl.lit(3072, pl.Int64),
        beta2=pl.col("beta2") ** (mean / 768),
    )
    ramped = replace(
        fits, large=RAMPED, best=search.sort("loss").row(0, named=True), rows={**fits.rows, "search": search}
    )
    own, here = (knob(chosen(each), "optimizer.beta2") for each in (fits, ramped))
    assert here.regret == pytest.approx(own.regret, rel=0.2)
    assert [half_life(end, mean) for end in (here.low, here.high)] == pytest.approx(
        [half_life(end, 768) for end in (own.low, own.high)], rel=0.1
    )


def test_a_ramp_keeps_timescale_and_half_life_and_is_said(ladder: Fits) -> None:
    fits = of(ladder, RAMPED)
    start, choice = chosen(fits), chosen(fits, "time")
    assert start.run is not None
    assert choice.run is not None
    assert choice.run.batch != RAMPED.phases.mean
    assert fits.best is not None
    assert start.run.optimizer.beta2 == fits.best["beta2"]  # that of a trial of the ramp's first batch
    ratio = choice.run.batch / 768
    assert choice.run.optimizer.beta2 == pytest.approx(max(fits.best["beta2"] ** ratio, 0.9), rel=1e-4)

    def timescale(run: Run) -> float:
        return run.batch / (run.optimizer.lr * run.optimizer.weight_decay * run.tokens)

    assert timescale(choice.run) == pytest.approx(timescale(start.run), rel=1e-4)
    kept = f"{timescale(start.run):.3g} of the run"
    assert "kept at the new batch" in knob(choice, "optimizer.weight_decay").rule
    assert all(kept in knob(each, "optimizer.weight_decay").rule for each in (start, choice))
    assert knob(start, "batch").value == "768 tokens, 3,072 from 921,600 on"


def test_a_preference_for_time_takes_what_the_gate_allows_and_says_what_it_gives_up(clear: Fits) -> None:
    slow = replace(TIME, overhead=10 * TIME.overhead)  # the more, the larger the batch of least hours
    choice = choose(clear, PARAMS, flops_per_token=FLOPS, prefer="time", time=slow)
    assert choice.run is not None
    assert choice.run.batch == 3072
    rule = knob(choice, "batch").rule
    assert rule.startswith(
        "--prefer time among 192 to 3,072, as far as the gate allows (extrapolation_batch); "
    )
    critical = CLEAR.critical_at(TARGET.tokens)
    more = 100 * ((1 + 3072 / critical) / (1 + 192 / critical) - 1)
    told = int(rule.partition("% more tokens would bring it to the loss of 192")[0].rpartition(" ")[2])
    assert told == pytest.approx(more, abs=10)
    assert "the regret is of loss, not of hours" in rule
    assert "regret" not in knob(chosen(clear, "loss"), "batch").rule


@pytest.mark.usefixtures("best_at_384")
def test_the_gate_is_not_named_where_it_takes_nothing_away(clear: Fits) -> None:
    rule = knob(chosen(laddered(clear, 1536), "time"), "batch").rule
    assert rule.startswith("--prefer time among 384 to 6,144; ")
    above = knob(chosen(laddered(clear, 3072), "loss"), "batch").rule
    assert above.startswith(
        "--prefer loss among 768 to 6,144, as far as the gate allows (extrapolation_batch); "
    )


def test_batches_end_where_the_rates_do_too(clear: Fits) -> None:
    """Rates at 768 lead to batches of 192 to 3,072, whatever the ladder has; measured exponents lead anywhere."""
    assert rates_batch(clear) == BATCH
    rows = clear.rows["loss_law"].with_columns(batch=pl.lit(6144, pl.Int64))
    large = replace(clear, rows={**clear.rows, "loss_law": rows})
    assert allowed(large) == (6144 / 4, BATCH * 4)
    knobs = SimpleNamespace(
        knobs={"lr_batch": SimpleNamespace(posterior=Estimate(0.5, 0.1, 0.3, 0.7), source="measured")}
    )
    measured = replace(large, exponents=knobs)  # type: ignore[arg-type]
    assert rates_batch(measured) is None
    assert allowed(measured) == (6144 / 4, 6144 * 4)


def test_hours_say_where_they_are_from(clear: Fits) -> None:
    large = replace(clear, large=TARGET.replace({"batch": 1536, "tokens": 1536 * 1200}, name="large"))
    assert "(made up)" in knob(chosen(large), "batch").rule
    assert "(made up)" in knob(chosen(clear, "time"), "batch").rule


def test_slots_that_leave_nothing_measured_are_told(clear: Fits) -> None:
    wide = TARGET.replace({"slots": 128, "batch": 8192, "tokens": 8192 * 225}, name="large")
    fits = replace(clear, large=wide)
    assert looked_at(fits) == []
    with pytest.raises(
        ConfigError, match=r"from the best that was measured \(64\) to what the gate.*fewer slots"
    ):
        chosen(fits, "loss")
    kept = knob(chosen(fits), "batch")
    assert "it lies beyond 3,072, the largest that was measured" in kept.rule
    assert math.isnan(kept.low)
    assert (
        priced(chosen(laddered(fits, 4096))).offered == ()
    )  # allowed, but beyond twice the largest measured
    assert priced(
        chosen(laddered(replace(clear, large=wide.replace({"slots": 96, "batch": 6144})), 4096))
    ).offered
