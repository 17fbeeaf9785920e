"""A mixture's next phase and a schedule's next cycle change what loss is usual: the spike policy measures anew."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from froude import schedules
from froude.config import Run
from froude.train.stability import spikes
from froude.train.stability.spikes import Decision, Place, Rollback, SpikePolicy

PARTS = [
    {"name": name, "source": "froude.train.data.markov:Markov", "weight": weight}
    for name, weight in (("calm", 3), ("hard", 1))
]
#: From batch 200 on.
PHASES = {"parts": PARTS, "phases": [{"from_share": 0.4, "weights": {"calm": 1, "hard": 3}}]}
RUN = Run(name="large", tokens=256 * 500, batch=256, slots=2, schedule={"warmup_tokens": 256 * 20})
MIXED = RUN.replace(data=PHASES)
RESTARTS = RUN.replace(schedule={"name": "restarts", "cycles": 2, "floor": 0.01})
ACTS = {"skip", "ease", "rollback", "lower", "stop"}

Losses = Callable[[int, int], float]


def trained(policy: SpikePolicy, losses: Losses, first: int, last: int, norm: float = 1.0) -> list[Decision]:
    """Steps `first` to `last` on what `losses` says of a step and its batch."""
    return [policy.judge(step, losses(step, policy.batch), norm) for step in range(first, last + 1)]


def noisy(noise: float, level: Losses, seed: int = 0) -> Losses:
    draws = np.random.default_rng(seed).standard_normal(2000)
    return lambda step, batch: level(step, batch) + noise * draws[batch]


def acted(policy: SpikePolicy) -> list[tuple[int, str]]:
    return [(each["step"], each["action"]) for each in policy.events if each["action"] in ACTS]


@settings(max_examples=8, deadline=None)
@given(st.floats(0.05, 3.0), st.floats(0.003, 0.03), st.sampled_from([1, 2, 3]))
def test_harder_data_from_a_phase_on_is_no_spike(rise: float, noise: float, factor: int) -> None:
    """Also where the batch is ramped, so that the phase begins in the middle of a step."""
    run = MIXED.replace(
        {
            "tokens": 256 * 600,
            "data.phases": [{**PHASES["phases"][0], "from_tokens": 256 * 200, "from_share": 0}],
        }
    )
    run = run.replace({"schedule.ramp": [[256 * 150, factor]]} if factor > 1 else {})
    policy = SpikePolicy(run)
    trained(policy, noisy(noise, lambda step, batch: 3.0 + rise * (batch + factor > 200)), 1, run.steps)
    assert acted(policy) == []
    assert policy.stretch == (1, 0)


@pytest.mark.parametrize("rise", [0.2, 0.8, 2.0])
def test_what_a_higher_rate_makes_of_the_loss_is_no_spike(rise: float) -> None:
    """The loss takes some thirty steps to rise, which is more than half a nat above its least."""
    level, levels = 1.0, []
    for step in range(RESTARTS.steps):
        level = 0.9 * level + 0.1 * schedules.at_step(RESTARTS, step)
        levels.append(3.0 + rise * level)
    policy = SpikePolicy(RESTARTS)
    trained(policy, noisy(0.01, lambda step, batch: levels[step - 1]), 1, RESTARTS.steps)
    assert acted(policy) == []
    assert policy.stretch == (0, 1)


def test_without_phases_the_same_rise_is_a_spike() -> None:
    policy = SpikePolicy(RUN)
    trained(policy, noisy(0.01, lambda step, batch: 3.0 + 0.3 * (batch >= 200)), 1, 230)
    assert acted(policy) == [(221, "ease")]


@pytest.mark.parametrize("run", [MIXED, RESTARTS], ids=["phase", "cycle"])
def test_what_spikes_in_a_later_stretch_is_answered(run: Run) -> None:
    start = 201 if run is MIXED else 251
    policy, losses = SpikePolicy(run), noisy(0.01, lambda step, batch: 3.0)
    trained(policy, losses, 1, start)
    assert policy.judge(start + 1, 3.0, math.nan).action == "skip"
    trained(policy, losses, start + 1, start + spikes.ACTIVE)
    at = start + spikes.ACTIVE + 1
    assert policy.judge(at, 3.0, 50.0).action == "skip"
    trained(policy, noisy(0.01, lambda step, batch: 3.5), at, at + 20)
    assert acted(policy)[-1] == (at + 20, "ease")


def test_what_was_not_over_when_a_phase_begins_is() -> None:
    policy = SpikePolicy(MIXED)
    trained(policy, noisy(0.01, lambda step, batch: 3.0 + 0.3 * (batch >= 150)), 1, 200)
    assert policy.watched == Place(151, 150)
    eased = policy.softened(policy.batch)
    assert (eased.lr_factor, eased.bound) == (spikes.EASE, 1.0)
    assert policy.judge(201, 4.0, 1.0) == Decision()
    assert (policy.watched, policy.calm, policy.loss.values, policy.average) == (None, None, [4.0], 4.0)


def test_a_rollback_over_a_phase_s_first_batch_is_followed_by_another_stretch() -> None:
    losses = noisy(0.01, lambda step, batch: 3.0 + (batch >= 200))
    policy = SpikePolicy(MIXED)
    trained(policy, losses, 1, 100)
    before = json.loads(json.dumps(policy.state()))
    trained(policy, losses, 101, 220)
    assert policy.stretch == (1, 0)
    policy.rollbacks.append(Rollback(Place(221, 220), 120, 420, lowered=False))
    policy.rewind(before)
    assert policy.stretch == (0, 0)
    trained(policy, losses, 101, 120)
    assert policy.leave_out(121) == range(120, 420)
    trained(policy, losses, 121, 240)
    assert policy.stretch == (1, 0)
    assert acted(policy) == []


@pytest.mark.parametrize("run", [MIXED, RESTARTS], ids=["phase", "cycle"])
def test_a_state_from_either_side_of_a_stretch_s_start_decides_alike(run: Run) -> None:
    start = 201 if run is MIXED else 251
    assert schedules.cycle_at(RESTARTS, 249) == 0
    assert schedules.cycle_at(RESTARTS, 250) == 1
    losses = noisy(0.02, lambda step, batch: 3.0 + 0.4 * (step >= start))
    whole = SpikePolicy(run)
    states: dict[int, Any] = {}
    for step in range(1, 401):
        states[step] = json.loads(json.dumps(whole.state()))
        whole.judge(step, losses(step, whole.batch), 1.0)
    for step in (start - 30, start - 1, start, start + 1, start + 70):
        again = SpikePolicy(run, states[step])
        trained(again, losses, step, 400)
        assert again.state() == whole.state()


def test_the_state_of_a_run_from_before_there_were_stretches_is_one_of_the_first() -> None:
    policy, losses = SpikePolicy(RUN), noisy(0.02, lambda step, batch: 3.0)
    trained(policy, losses, 1, 100)
    old = {key: value for key, value in policy.state().items() if key != "stretch"}
    again = SpikePolicy(RUN, old)
    assert again.state() == policy.state()
    assert trained(again, losses, 101, 120) == trained(policy, losses, 101, 120)
    assert again.state() == policy.state()
