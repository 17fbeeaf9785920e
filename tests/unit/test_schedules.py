"""Schedules as functions of tokens seen."""

import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from froude import schedules
from froude.config import ConfigError, Run, Schedule
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
    run = run_of(name, steps=steps, warmup=int(warmup * steps))
    run = run.replace({"schedule.name": name, "schedule.tail": tail, "schedule.decay_fraction": decay})
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


CORNERS = {
    # Peak 1; 100 batches of 64 tokens, 10 of warmup: shares after so many batches.
    "constant": {5: 0.5, 10: 1, 100: 1},
    "linear": {5: 0.5, 10: 1, 55: 0.5, 100: 0},
    "cosine": {5: 0.5, 10: 1, 55: 0.55, 100: 0.1},
    "wsd": {5: 0.5, 10: 1, 80: 1, 85: 0.5, 100: 0},
    "inverse_sqrt": {5: 0.5, 10: 1, 40: 0.5, 90: 1 / 3},
    "noam": {5: 0.25, 10: 0.5, 40: 0.25, 90: 1 / 6},
    "multi_step": {5: 0.5, 10: 1, 79.9: 1, 80: 0.316, 90: 0.1, 100: 0.1},
    "restarts": {5: 0.5, 10: 1, 32.5: 0.55, 55: 1, 77.5: 0.55, 100: 0.1},
}
RAMP = [[64 * 20, 2], [64 * 60, 4]]


def corner_run(name="wsd", **schedule):
    run = Run(
        tokens=64 * 100, batch=64, slots=1, model={"width": 64, "base_width": 16}, schedule={"name": name}
    )
    changes = {"warmup_tokens": 64 * 10, **schedule}
    return run.replace({f"schedule.{key}": value for key, value in changes.items()})


def test_every_schedule_has_its_corners():
    assert CORNERS.keys() == schedules.SCHEDULES.keys()


@pytest.mark.parametrize("name", CORNERS)
def test_a_schedule_at_its_corners(name):
    for run in (corner_run(name), corner_run(name, ramp=RAMP)):
        for batches, share in CORNERS[name].items():
            assert schedules.multiplier(run, batches * 64) == pytest.approx(share, abs=1e-9)


@pytest.mark.parametrize("name", CORNERS)
@pytest.mark.parametrize(("rate", "factors"), [("sqrt", (1, 2**0.5, 2)), ("constant", (1, 1, 1))])
def test_a_ramped_step_has_the_share_of_its_middle_times_its_own_factor(name, rate, factors):
    run = corner_run(name, ramp=RAMP, ramp_rate=rate)
    middles = {0: 0.5, 19: 19.5, 20: 21, 39: 59, 40: 62, 49: 98}
    assert run.steps == 50
    for step, batches in middles.items():
        factor = factors[0 if step < 20 else 1 if step < 40 else 2]
        assert schedules.at_step(run, step) == schedules.multiplier(run, batches * 64) * factor


def test_beta2_keeps_its_half_life_in_tokens_within_bounds():
    run = corner_run(ramp=[[64 * 20, 2], [64 * 60, 40]])
    assert [schedules.beta2_at(run, step, 0.97) for step in (0, 19, 20, 39, 40)] == [
        0.97, 0.97, 0.97**2, 0.97**2, 0.9
    ]  # fmt: skip
    assert schedules.beta2_at(run, 20, 0.99999) == 0.9999
    # Out of the bounds to begin with: untouched by the first batch, and never raised.
    assert [schedules.beta2_at(run, step, 0.5) for step in (0, 20, 40)] == [0.5, 0.5, 0.5]
    assert schedules.beta2_at(run, 0, 0.99999) == 0.99999
    assert schedules.beta2_at(corner_run(), 99, 0.123) == 0.123


def test_the_weight_decay_falls_as_a_cosine_over_the_tokens_of_the_run():
    run = corner_run(weight_decay_to=0.2)
    shares = [schedules.weight_decay_at(run, step) for step in range(100)]
    assert shares == sorted(shares, reverse=True)
    assert (shares[0], shares[99]) == pytest.approx((1, 0.2), abs=1e-3)
    assert (shares[49] + shares[50]) / 2 == pytest.approx(0.6, abs=1e-12)
    ramped = corner_run(weight_decay_to=0.2, ramp=[[64 * 50, 2]])
    assert schedules.weight_decay_at(ramped, 50) == pytest.approx((shares[50] + shares[51]) / 2, abs=1e-4)
    assert {schedules.weight_decay_at(corner_run(), step) for step in range(100)} == {1.0}
    assert schedules.weight_decay_at(corner_run(weight_decay_to=0.0), 99) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("name", CORNERS)
def test_a_resize_changes_nothing(name):
    run = Run(
        tokens=256 * 100, batch=256, slots=4, workers=(1, 4), schedule={"name": name, "warmup_tokens": 2560}
    )
    run = run.replace({"schedule.ramp": [[256 * 20, 2], [256 * 60, 4]], "schedule.weight_decay_to": 0.1})
    other = run.replace(workers=3)
    assert other.steps == run.steps == 50
    for step in range(run.steps):
        assert schedules.at_step(other, step) == schedules.at_step(run, step)
        assert schedules.weight_decay_at(other, step) == schedules.weight_decay_at(run, step)
        assert schedules.beta2_at(other, step, 0.95) == schedules.beta2_at(run, step, 0.95)


@pytest.mark.parametrize("at", [20, 40, 60])
def test_ramped_horizons_agree_until_the_shorter_one_branches(at):
    """Whether its tail begins before, at or after the change of the batch."""
    runs = [corner_run(ramp=[[64 * at, 2]]).replace(tokens=64 * batches) for batches in (62, 100)]
    branch, _ = schedules.branch_steps(runs)
    start = 64 * 62 * 0.8
    assert runs[0].phases.middle_of(branch - 1) < start <= runs[0].phases.middle_of(branch)
    short, long = ([schedules.at_step(run, step) for step in range(runs[0].steps)] for run in runs)
    assert short[:branch] == long[:branch]
    assert short[branch + 1 :] != long[branch + 1 :]
    spent = runs[0].phases.tokens_at(branch)
    trunk = runs[1].phases.tokens_at(schedules.branch_step(runs[1]))
    assert schedules.trial_tokens(runs) == trunk + 64 * 62 - spent + 64 * 100 - trunk
    assert schedules.branch_step(runs[0].replace({"schedule.weight_decay_to": 0.5})) == 0


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (
            {"name": "linear", "floor": 0.5},
            r'"linear", which .* got 0\.5; leave it out, or use "cosine", "restarts" or "wsd" of tail "exponential"',
        ),
        ({"tail": "linear", "floor": 0.5}, r'"wsd" and tail "linear", which does nothing with it'),
        ({"name": "cosine", "tail": "linear"}, r"`schedule\.tail` must be left out"),
        ({"name": "cosine", "decay_fraction": 0.9}, r'`schedule\.decay_fraction` must .* or use "wsd"'),
        ({"name": "cosine", "cycles": 7}, r'`schedule\.cycles` must .* or use "restarts"'),
    ],
)
def test_a_setting_that_a_schedule_does_not_read_is_refused(schedule, says):
    with pytest.raises(ConfigError, match=says):
        Run(tokens=7680, schedule=schedule)
    with pytest.raises(ConfigError, match=says):
        Run(tokens=7680, schedule=Schedule(**schedule))
    *others, (key, value) = schedule.items()
    base = Run(tokens=7680, schedule=dict(others))
    with pytest.raises(ConfigError, match=says):
        base.replace({f"schedule.{key}": value})


def test_settings_that_are_read_or_stored_or_for_a_command_are_taken():
    Run(tokens=7680).replace(
        {"schedule.tail": "linear", "schedule.floor": 0.01}
    )  # as a search of both has it
    Run(tokens=7680, schedule={"tail": "exponential", "floor": 0.5})
    Run(tokens=7680, schedule={"name": "linear", "floor": 0.1})
    Run(tokens=7680, schedule={"name": "linear", "floor": 0.5}, trainer={"command": ["train"]})
    swept = Run(tokens=7680, schedule={"tail": "linear"}).replace({"schedule.name": "cosine"})
    assert swept.schedule.tail == "linear"
    stored = Run(tokens=7680).to_dict()
    stored["schedule"] |= {"name": "linear", "floor": 0.5}
    assert Run.from_dict(stored).fingerprint == "9e94e2bd95986d18"
