"""The critical batch, and steps to a target loss from branches."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from froude import laws

BATCHES = np.array([192.0, 384, 768, 1536, 3072])


def hyperbola(s_min: float, b_crit: float, noise: float = 0.0, seed: int = 0) -> pl.DataFrame:
    steps = s_min * (1 + b_crit / BATCHES)
    return pl.DataFrame(
        {"batch": BATCHES, "steps": steps * np.exp(noise * np.random.default_rng(seed).standard_normal(5))}
    )


@settings(max_examples=40, deadline=None)
@given(s_min=st.floats(10, 1e6), b_crit=st.floats(120, 5000))
def test_a_noiseless_hyperbola_is_recovered(s_min: float, b_crit: float) -> None:
    law = laws.critical_batch(hyperbola(s_min, b_crit))
    assert law.status == "ok"
    assert (law.s_min, law.b_crit, law.e_min) == pytest.approx((s_min, b_crit, s_min * b_crit), rel=1e-6)
    assert law.low <= law.b_crit <= law.high
    assert law.steps(b_crit) == pytest.approx(2 * s_min, rel=1e-6)


@pytest.mark.slow
def test_intervals_cover_at_the_scatter_of_the_quickstart() -> None:
    found = [laws.critical_batch(hyperbola(55, 340, noise=0.07, seed=seed)) for seed in range(120)]
    ok = [law for law in found if law.status == "ok"]
    assert len(ok) >= 114
    assert 0.9 <= np.mean([law.low <= 340 <= law.high for law in ok]) <= 0.99


def test_both_definitions_come_from_one_fit() -> None:
    law = laws.critical_batch(hyperbola(55, 340))
    star = law.b_star(linear_from=256)
    assert star == pytest.approx(1.2 * 256 + 0.2 * 340)
    # Its meaning: 1.2 times the steps that perfect scaling from 256 would need.
    assert law.steps(star) == pytest.approx(1.2 * law.steps(256) * 256 / star)
    assert law.b_star(linear_from=256, overhead=0.5) == pytest.approx(1.5 * 256 + 0.5 * 340)
    for wrong in ({"linear_from": 0}, {"linear_from": 1, "overhead": -0.1}):
        with pytest.raises(ValueError, match=r"linear_from|overhead"):
            law.b_star(**wrong)


@pytest.mark.parametrize(
    "steps,status",
    [
        (1e5 / BATCHES, "at_bound"),
        (np.full(5, 100.0), "at_bound"),
        (100 * np.sqrt(BATCHES), "at_bound"),
        (100 * (1 + 20 / BATCHES), "edge"),
        (100 * (1 + 50_000 / BATCHES), "edge"),
    ],
)
def test_data_that_do_not_bend_are_not_ok(steps: np.ndarray, status: str) -> None:
    law = laws.critical_batch(pl.DataFrame({"batch": BATCHES, "steps": steps}))
    assert law.status == status
    assert law.reasons
    assert law.table().height == 3
    assert law.rows.height == 5


def test_two_batches_are_too_few() -> None:
    law = laws.critical_batch(hyperbola(55, 340)[:2])
    assert law.status == "too_few_points"
    assert math.isnan(law.b_crit)
    assert law.rows["fitted"].is_null().all()
    with pytest.raises(ValueError, match="too_few_points"):
        law.b_star(linear_from=256)


def test_one_batch_that_contradicts_the_rest_is_marked() -> None:
    batches = np.geomspace(64, 16384, 9)
    steps = 100 * (1 + 1000 / batches) * np.exp(0.01 * np.random.default_rng(0).standard_normal(9))
    steps[4] *= 1.5
    law = laws.critical_batch(pl.DataFrame({"batch": batches, "steps": steps}))
    assert law.rows["outlier"].arg_true().to_list() == [4]


def branch(batch: float, lr: float, steps: list[float], loss: list[float | None]) -> pl.DataFrame:
    columns = {"batch": [batch] * len(steps), "lr": [lr] * len(steps), "steps": steps, "loss": loss}
    return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.Float64))


def test_steps_to_target_interpolates_and_takes_the_best_rate() -> None:
    frame = pl.concat(
        [
            branch(256, 0.01, [100, 200, 400], [3.0, 2.5, 2.0]),
            branch(256, 0.02, [100, 200, 400], [3.0, 2.3, 1.9]),
            branch(512, 0.02, [50, 100, 200], [3.0, 2.4, None]),
            branch(1024, 0.02, [50, 100], [2.1, 2.0]),
            branch(2048, 0.02, [50, 100, 200], [2.6, 2.2, 2.0]),
        ]
    ).sample(fraction=1, shuffle=True, seed=0)
    found = laws.steps_to_target(frame, 2.2)
    # 512 never gets there; 1024 is there before its first branch: neither has a known number of steps.
    assert found["batch"].to_list() == [256, 2048]
    assert found["steps"].to_list() == pytest.approx([200 * 2 ** (0.1 / 0.4), 100])
    assert found["lr"].to_list() == [0.02, 0.02]
    assert laws.steps_to_target(frame, 1.0).is_empty()
    with pytest.raises(ValueError, match="target"):
        laws.steps_to_target(frame, 0)


def test_seeds_count_alike_whether_trunks_end_at_the_loss_or_go_on() -> None:
    """A quick seed has no branches after the one that is there; a mean over those of the slow one is its alone."""
    ladder = (24 * 1.35 ** np.arange(18)).tolist()
    alone = (1000.0, 2000.0)
    trunks = [
        branch(256, 0.01, ladder, [2.2 - 0.4 * math.log(step / there) for step in ladder]).with_columns(
            seed=pl.lit(seed)
        )
        for seed, there in enumerate(alone)
    ]
    ended = [trunk.filter(pl.col("loss").shift(1, fill_value=9.0) > 2.2) for trunk in trunks]
    for several in (trunks, ended):
        found = laws.steps_to_target(pl.concat(several), 2.2)["steps"].to_list()
        assert found == pytest.approx([math.sqrt(alone[0] * alone[1])], rel=1e-9)
        # A seed whose rate was written as float32 has the other's rate, and is not the luckier one's alone.
        told = pl.when(pl.col("seed") == 1).then(float(np.float32(0.01))).otherwise(0.01)
        rounded = laws.steps_to_target(pl.concat(several).with_columns(lr=told), 2.2)["steps"].to_list()
        assert rounded == found


@pytest.mark.parametrize(("late", "rate"), [(None, 0.001), (2.2, 0.004)])
def test_a_rate_at_which_a_seed_diverges_before_the_loss_brings_no_batch_there(
    late: float | None, rate: float
) -> None:
    high = [branch(256, 0.004, [100, 200, 400], [2.6, each, each and None]) for each in (2.2, late)]
    low = [branch(256, 0.001, [100, 200, 400], [2.9, 2.5, 2.1]) for _ in range(2)]
    trunks = [one.with_columns(seed=pl.lit(seed)) for pair in (high, low) for seed, one in enumerate(pair)]
    assert laws.steps_to_target(pl.concat(trunks), 2.2)["lr"].to_list() == [rate]


def test_branches_on_a_hyperbola_give_its_critical_batch() -> None:
    ladder = 24 * 1.35 ** np.arange(18)
    frame = pl.concat(
        branch(b, lr, ladder.tolist(), (2.2 - 0.4 * np.log(ladder / (penalty * 55 * (1 + 340 / b)))).tolist())
        for b in BATCHES
        for lr, penalty in ((0.01, 1.0), (0.02, 1.3))
    )
    law = laws.critical_batch(laws.steps_to_target(frame, 2.2))
    assert law.status == "ok"
    assert (law.s_min, law.b_crit) == pytest.approx((55, 340), rel=1e-6)
