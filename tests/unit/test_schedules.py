"""Schedules as functions of tokens seen."""

import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from froude import schedules
from froude.config import Run
from froude.schedules import SCHEDULES, Tail

NAMES = list(SCHEDULES)


def run_of(name, *, steps=1000, warmup=0, batch=64, **more):
    return Run(
        tokens=steps * batch, batch=batch, schedule={"name": name, "warmup_tokens": warmup * batch, **more}
    )


def mean(run):
    return sum(schedules.at_step(run, step) for step in range(run.steps)) / run.steps


@pytest.mark.parametrize(
    ("name", "more", "expected"),
    [
        ("constant", {}, 1.0),
        ("linear", {}, 0.5),
        ("cosine", {}, 0.55),
        ("wsd", {"tail": "linear"}, 0.9),
        ("wsd", {"tail": "sqrt"}, 0.8 + 0.2 / 3),
        ("wsd", {"tail": "cosine"}, 0.9),
        ("wsd", {"tail": "exponential"}, 0.8 + 0.2 * 0.9 / math.log(10)),
        ("multi_step", {}, 0.8 + 0.1 * 0.316 + 0.1 * 0.1),
        ("restarts", {"cycles": 4}, 0.55),
    ],
)
def test_mean_multiplier(name, more, expected):
    assert mean(run_of(name, steps=4000, **more)) == pytest.approx(expected, abs=2e-4)


def test_inverse_square_root_and_noam():
    run = run_of("inverse_sqrt", warmup=100)
    assert schedules.multiplier(run, 100 * 64) == 1.0
    assert schedules.multiplier(run, 400 * 64) == pytest.approx(0.5)
    noam = run.replace({"schedule.name": "noam", "model.width": 256})
    assert schedules.multiplier(noam, 400 * 64) == pytest.approx(0.25)  # width 4 x the base: half the peak
    assert schedules.multiplier(noam, 50 * 64) == pytest.approx(0.25)


@given(
    st.sampled_from(NAMES),
    st.sampled_from(get_args(Tail)),
    st.integers(1, 400),
    st.floats(0, 1),
    st.floats(0.05, 1),
)
def test_every_schedule_is_positive_and_never_above_its_peak(name, tail, steps, warmup, decay):
    run = run_of(name, steps=steps, warmup=int(warmup * steps), tail=tail, decay_fraction=decay)
    rates = [schedules.at_step(run, step) for step in range(steps)]
    assert all(0 < rate <= 1 for rate in rates)
    assert all(math.isfinite(rate) for rate in rates)


@given(st.integers(1, 300), st.integers(0, 300), st.integers(1, 4))
def test_multiplier_is_a_function_of_tokens_not_of_steps(steps, warmup, factor):
    """Twice the batch at half the steps sees the same curve at the same token."""
    small = run_of("cosine", steps=steps * factor, warmup=min(warmup, steps * factor))
    large = small.replace(batch=64 * factor)
    for tokens in (1.0, small.tokens / 3, small.tokens):
        assert schedules.multiplier(small, tokens) == schedules.multiplier(large, tokens)


@given(st.integers(2, 500), st.integers(2, 500), st.floats(0, 0.5), st.floats(0.05, 0.9))
def test_wsd_horizons_agree_until_the_shorter_one_branches(one, two, warmup, decay):
    short, long = (
        run_of("wsd", steps=n, warmup=int(warmup * min(one, two)), decay_fraction=decay)
        for n in sorted((one, two))
    )
    branch = schedules.branch_step(short)
    assert all(
        schedules.at_step(short, s) == schedules.at_step(long, s) for s in range(min(branch, short.steps))
    )
    assert all(schedules.at_step(short, step) < 1 for step in range(branch + 1, short.steps))
