"""What a recipe says of beta2 and warmup: by the search's bowl, by a stage settled, by few trials, or by nobody."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from recipe_worlds import BATCH, PARAMS, REST, SHORT, STAGES, TARGET, World, row, rows

from froude.config import Run
from froude.promote.choice.choose import choose
from froude.promote.choice.knob import Knob
from froude.promote.choice.rate import rate
from froude.promote.choice.searched import Found, best_settings, half_life, searched, tried_one
from froude.promote.fits import Fits, fit_trials
from froude.promote.ladder.regret import curvature
from froude.promote.ladder.search import best

FLOPS = 156.0 * 160**2
#: A best half-life and warmup far from what most trials have.
WORLD = World(5.5e-3, 0.06, 2.5e4, (0.05, 0.02, 0.02), -0.1, 0.5, 400.0, 60.0, 0.46, 0.0, 0.0)


def fitted(ladder: Fits, frame: pl.DataFrame, target: Run = TARGET, **stages: Any) -> Fits:
    fits = fit_trials(frame, stages={**STAGES, **stages}, target=target)
    return replace(fits, loss=ladder.loss, rows={**fits.rows, "loss_law": ladder.rows["loss_law"]})


def told(fits: Fits, **more: Any) -> dict[str, Knob]:
    return {knob.name: knob for knob in choose(fits, PARAMS, flops_per_token=FLOPS, **more).knobs}


def world(seed: int = 0, **more: Any) -> pl.DataFrame:
    return rows(WORLD, np.random.default_rng(seed), **more)


def with_settled(frame: pl.DataFrame, **settings: Any) -> pl.DataFrame:
    """A trial of stage settled, no better than the search's median."""
    loss = float(frame.filter(stage="search")["loss"].median())  # type: ignore[arg-type]
    one = pl.DataFrame(
        [row("middle", "settled", loss, **settings)], infer_schema_length=None, schema_overrides=REST
    )
    return pl.concat([frame, one.select(frame.columns).cast(dict(frame.schema))])


def test_the_bowls_best_is_nearer_than_the_best_trial() -> None:
    costs: dict[str, list[float]] = {"trial": [], "bowl": []}
    for seed in range(6):
        search = world(seed).filter(stage="search")
        best = search.sort("loss", "run").row(0, named=True)
        found = best_settings(search, batch=BATCH)
        for name, beta2, warmup in (
            ("trial", best["beta2"], best["warmup_tokens"] / SHORT),
            ("bowl", found["beta2"], found["warmup"]),
        ):
            costs[name].append(WORLD.cost(WORLD.lr, warmup, half_life(beta2, BATCH), WORLD.lr))
    assert np.mean(costs["bowl"]) < 0.5 * np.mean(costs["trial"])
    assert best_settings(world().clear(), batch=BATCH) == {}
    assert best_settings(world(trials=5).filter(stage="search"), batch=BATCH) == {}
    longest = world().filter(stage="search").with_columns(beta2=pl.lit(0.9999) ** (1 + pl.col("beta2") / 1e3))
    assert best_settings(longest, batch=1).get("beta2", 0.0) <= 0.9999
    search = world().filter(stage="search").with_columns(beta2=0.95)
    assert set(best_settings(search, batch=BATCH)) == {"warmup"}


def test_a_stage_settled_gives_the_recipe_its_settings(ladder: Fits) -> None:
    frame = world()
    found = best_settings(frame.filter(stage="search"), batch=BATCH)
    warmup = round(found["warmup"] * SHORT)
    before = told(fitted(ladder, frame))
    fits = fitted(
        ladder,
        with_settled(frame, beta2=found["beta2"], warmup_tokens=warmup),
        middle={"role": "settled"},
    )
    assert fits.best is not None
    assert (fits.settled, fits.best["run"]) == ("middle", "settled")
    after = told(fits)
    beta2 = after["optimizer.beta2"]
    assert beta2.value == found["beta2"]
    assert beta2.rule == "that of stage middle"
    assert beta2.low < found["beta2"] < beta2.high
    assert beta2.regret < before["optimizer.beta2"].regret
    assert "settled" not in beta2.buys
    assert fitted(ladder, frame).settled == ""


def test_what_one_more_run_would_buy_is_by_the_posterior(ladder: Fits) -> None:
    knob = next(
        knob
        for seed in range(8)
        if (knob := told(fitted(ladder, world(seed)))["optimizer.beta2"]).buys.startswith("a stage")
    )
    assert "at the bowl's best (0.9" in knob.buys
    saved = float(knob.buys.split("save ")[1].split(" nats")[0])
    assert 0 < saved < knob.regret < knob.worst


def test_few_trials_leave_the_prior_with_its_interval(ladder: Fits) -> None:
    knobs = told(fitted(ladder, world(trials=4)))
    beta2, warmup = knobs["optimizer.beta2"], knobs["schedule.warmup_tokens"]
    assert (beta2.source, warmup.source) == ("prior", "prior")
    lives = [half_life(end, BATCH) for end in (beta2.low, beta2.high)]
    assert math.sqrt(lives[0] * lives[1]) == pytest.approx(half_life(0.95, BATCH), rel=1e-2)
    assert lives[1] / lives[0] == pytest.approx(math.exp(2 * 1.645 * 0.8), rel=1e-2)
    assert beta2.regret > 0
    assert beta2.buys == "6 trials of stage search near the best one would begin to tell"
    assert warmup.low / TARGET.tokens < 0.06 < warmup.high / TARGET.tokens


def test_settings_that_the_search_did_not_vary_are_yours(ladder: Fits) -> None:
    frame = world()
    searching = pl.col("stage") == "search"
    batch = pl.when(searching & (pl.col("run") < "search-3")).then(384).otherwise("batch")
    steps = pl.col("tokens") / 16 / pl.col("batch")
    fixed = frame.with_columns(batch=batch).with_columns(
        # A sixteenth of the tokens, in whole steps of either batch.
        warmup_tokens=pl.when(searching)
        .then((steps.round() * pl.col("batch")).cast(pl.Int64))
        .otherwise("warmup_tokens"),
        beta2=pl.when(searching).then(0.95).otherwise("beta2"),
    )
    search = fixed.filter(stage="search")
    assert search["warmup_tokens"].n_unique() == 2
    assert tried_one(search, "warmup_tokens")
    assert not tried_one(frame.filter(stage="search"), "warmup_tokens")
    assert not tried_one(frame.filter(stage="search"), "beta2")
    knobs = told(fitted(ladder, fixed))
    assert knobs["optimizer.beta2"].source == "set by you"
    assert knobs["schedule.warmup_tokens"].source == "set by you"
    assert knobs["schedule.warmup_tokens"].rule.endswith("the share of every trial of the search")


def test_only_a_beta2_that_was_not_moved_is_kept_for_the_proxies_sake(ladder: Fits) -> None:
    seen = set()
    for seed in range(2):
        fits = fitted(ladder, world(seed, noise=1e-3))
        for prefer in (None, "loss"):
            knob = told(fits, prefer=prefer)["optimizer.beta2"]
            kept = "kept since the loss law's proxies" in knob.rule
            assert kept == (prefer is None and not knob.low <= float(knob.value) <= knob.high)
            seen.add(kept)
    assert seen == {True, False}


def test_a_budget_of_one_step_has_no_warmup_and_one_batch(ladder: Fits) -> None:
    short = TARGET.replace({"slots": 12, "tokens": 768, "schedule.warmup_tokens": 0}, name="large")
    knobs = told(fitted(ladder, world(), short))
    warmup, batch = knobs["schedule.warmup_tokens"], knobs["batch"]
    assert warmup.value == 0
    assert "is less than half a step" in warmup.rule
    assert math.isnan(warmup.regret)
    assert (batch.interval, batch.buys) == ("", "no other batch was looked at")


def test_numbers_of_an_interval_have_no_exponent() -> None:
    assert Knob("batch", 8192, "prior", 8192.0, 12288.0).interval == "8,190 to 12,300"
    assert Knob("batch", 8192, "prior", 384.0, 384.0).interval == "384"
    assert Knob("optimizer.lr", 5e-3, "prior", 4.5e-3, 5.5e-3).interval == "0.0045 to 0.0055"
    assert Knob("schedule.warmup_tokens", 900, "prior", 999.4, 999.6).interval == "999 to 1,000"


def test_the_best_trial_tells_its_rate_and_what_else_its_table_tells(ladder: Fits) -> None:
    rows = pl.DataFrame(
        {
            "run": ["a", "b"],
            "status": ["finished"] * 2,
            "loss": [2.0, 1.0],
            "lr": [0.01, None],
            "tokens": [100, 100],
        }
        | {
            "beta2": [None, None],
            "warmup_tokens": [None, 10],
            "batch": [768, 768],
            "schedule": ["wsd", "wsd"],
        },
        schema_overrides={"lr": pl.Float64, "beta2": pl.Float64, "warmup_tokens": pl.Int64},
    )
    assert best(rows.with_columns(lr=pl.lit(None, pl.Float64))) is None
    found = best(rows)
    assert found is not None
    assert found["run"] == "a"
    fits = replace(ladder, best=found, best_overall=None)
    assert "search          best lr 0.01: loss 2.000" in fits.lines()
    assert fits.summary()["best"] == {
        "run": "a",
        "lr": 0.01,
        "tokens": 100,
        "batch": 768,
        "schedule": "wsd",
        "loss": 2.0,
    }


def test_the_rates_regret_has_the_mean_of_the_curvature(ladder: Fits) -> None:
    fits = fitted(ladder, world())
    found = rate(fits, TARGET)
    assert found is not None
    middle, spread = curvature(fits.transfer["mup"])
    assert found.curve.bend == pytest.approx(middle * math.exp(spread**2 / 2))
    assert found.worst > found.regret


def test_settings_of_another_optimizer_are_its_own(ladder: Fits) -> None:
    frame = world()
    lion = frame.filter(stage="search").with_columns(
        optimizer=pl.lit("lion"), lr=pl.col("lr") / 10, loss=pl.col("loss") - 0.2, run="lion-" + pl.col("run")
    )
    alone, both = fitted(ladder, frame), fitted(ladder, pl.concat([frame, lion]))
    assert both.best_overall is not None
    assert both.best_overall["optimizer"] == "lion"
    assert both.best == alone.best
    assert told(both)["optimizer.beta2"] == told(alone)["optimizer.beta2"]
    assert fitted(ladder, pl.concat([frame.filter(pl.col("stage") != "search"), lion])).best is not None


def test_the_half_life_believed_beforehand_is_that_of_the_optimizers_default() -> None:
    """Lion's beta2 is .99 by default, AdamW's .95."""
    frame = world(trials=4).filter(stage="search")
    for name, beta2 in (("adamw", 0.95), ("lion", 0.99)):
        rows = frame.with_columns(optimizer=pl.lit(name))
        found = searched(rows, rows.sort("loss", "run").row(0, named=True))["half_life"]
        assert found.middle == pytest.approx(half_life(beta2, BATCH))


def test_what_a_rule_adds_counts_by_the_curvature_that_was_found() -> None:
    found = Found(1.0, 0.8, 1.25, 0.001, "measured", 0.1, 0.001)
    assert found.still(0.0, 0.7) == found.still(0.4, 0.7) == "measured"
    assert (
        found.still(0.48, 0.7) == "prior"
    )  # with its own .14 more than seven tenths of the prior's are open
