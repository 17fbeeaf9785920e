"""How far a rollback goes back, and that the checkpoint which it needs was kept: at any cadence, ramp and luck."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from froude.checkpoint.retention import Keep
from froude.config import Run
from froude.runlog import NO_BASE, Record, expired, lineage
from froude.train.stability import spikes
from froude.train.stability.spikes import SpikePolicy

#: About a fifteenth of the policy's own, in its proportions: a run of hundreds of steps has several rollbacks.
SMALL = {
    "WINDOW": 8, "ACTIVE": 4, "RECOVERY": 12, "BACK": 6, "AHEAD": 8, "LINGERING": 3, "PATIENCE": 5, "CALM": 2,
    "RECURRENCE": 120, "SKIPS_WITHIN": 60, "ROLLBACK_SHARE": 0.05,
}  # fmt: skip
Batch = Callable[[int], tuple[float, float]]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(spikes, name, value)


@dataclass
class Life:
    """A run without weights: the policy, the log of its checkpoints, and what is kept of them."""

    run: Run
    keep: Keep
    records: list[Record] = field(default_factory=list)
    base: int = NO_BASE
    step: int = 0
    #: Of each rollback the steps made, the step to go back to at the latest, and that gone on from.
    rollbacks: list[tuple[int, int, int]] = field(default_factory=list)

    def save(self, state: dict[str, Any]) -> None:
        gone = self.keep.expiring(self.records)
        self.records.append(
            Record(
                run="large",
                seq=len(self.records),
                parent=None,
                base=self.base,
                attempt=1,
                generation="g",
                kind="checkpoint",
                step=self.step,
                tokens=0,
                time=datetime.now(UTC),
                world=1,
                recipe="recipe",
                scalars=json.loads(json.dumps(state)),
                meta={"expired": gone},
            )
        )
        self.base = self.records[-1].seq

    def go_back(self, at_most: int) -> dict[str, Any]:
        made = self.step
        there = [record for record in lineage(self.records, self.base) if record.step <= at_most]
        living = [record for record in there if record.seq not in expired(self.records)]
        assert living or not there, f"step {at_most} is wanted after {self.rollbacks}, and none is kept"
        self.base, self.step = (living[-1].seq, living[-1].step) if living else (NO_BASE, 0)
        self.rollbacks.append((made, at_most, self.step))
        return living[-1].scalars if living else {}

    def live(self, drawn: Callable[[int, int, int], tuple[float, float]], most: int) -> None:
        """Train to the end, or until the policy stops it; `drawn` says loss and norm by step, batch and rollbacks."""
        policy = SpikePolicy(self.run)
        for _ in range(most):
            if self.step == self.run.steps:
                return
            policy.leave_out(self.step + 1)
            loss, norm = drawn(self.step + 1, policy.batch, len(self.rollbacks))
            action = policy.judge(self.step + 1, loss, norm).action
            if action == "stop":
                return
            if action == "rollback":
                policy.rewind(self.go_back(policy.back_to))
            elif action == "update":
                self.step += 1
                if self.step % self.run.checkpoint_every == 0:
                    self.save(policy.state())


def run_of(ramp: list[tuple[int, int]], last: int, every: int) -> Run:
    """Whose ramp has so many steps before each next factor."""
    pairs, tokens, factor = [], 0, 1
    for steps, following in ramp:
        tokens += 128 * factor * steps
        factor = following
        pairs.append((tokens, factor))
    return Run(
        name="large",
        tokens=tokens + 128 * factor * last,
        batch=128,
        slots=2,
        checkpoint_every=every,
        model={"context": 64},
        schedule={"ramp": pairs} if pairs else {},
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ramp=st.lists(st.tuples(st.integers(20, 80), st.sampled_from([1, 2, 3, 4, 8])), max_size=3),
    last=st.integers(100, 300),
    every=st.sampled_from([1, 2, 3, 5, 7, 10, 20, 30]),
    keep=st.tuples(st.integers(1, 5), st.sampled_from([0, 0, 3, 7])),
    seed=st.integers(0, 2**32),
)
def test_a_rollback_finds_the_checkpoint_that_it_needs(
    small: None, ramp: list[tuple[int, int]], last: int, every: int, keep: tuple[int, int], seed: int
) -> None:
    run, luck, level = run_of(ramp, last, every), random.Random(seed), 0.0

    def drawn(step: int, batch: int, rollbacks: int) -> tuple[float, float]:
        nonlocal level
        if luck.random() < 0.04:
            level = luck.choice([0, 0, 0, 0.3, 0.6])
        steep = luck.random() < (0.3 if level else 0.01)
        no_number = luck.random() < (0.035 if rollbacks else 0.015)
        return (
            3 + 0.02 * luck.random() + level,
            math.nan if no_number else 1 + 0.05 * luck.random() + 20 * steep,
        )

    life = Life(run, Keep(*keep, 2 * spikes.reach(run)))
    life.live(drawn, 1500)
    assert all(made - at_most <= spikes.reach(run) for made, at_most, _ in life.rollbacks)


def again_at_once(step: int, batch: int, rollbacks: int) -> bool:
    """The loss rises, and does so again where the batches that were left out for it end."""
    return (step >= 1000) if not rollbacks else (rollbacks == 1 and batch > 1205)


def one_from_before(step: int, batch: int, rollbacks: int) -> bool:
    """A spike that was about to be over when the next came; after the way back from that it is not."""
    over = not rollbacks and 1200 < step <= 1300
    return step > 1000 and not over and rollbacks < 2


@pytest.mark.slow
@pytest.mark.parametrize("high", [again_at_once, one_from_before])
@pytest.mark.parametrize("every", [20, 50, 100])
@pytest.mark.parametrize("begun", [0, 37, 74, 111, 148])
def test_a_second_rollback_right_after_the_first_finds_one(
    high: Callable[[int, int, int], bool], every: int, begun: int
) -> None:
    """The policy's own numbers; the run has begun so many steps before, which is how checkpoints lie to the spike."""

    def drawn(step: int, batch: int, rollbacks: int) -> tuple[float, float]:
        noise = random.Random(batch)
        return 3 + 0.02 * noise.random() + 0.3 * high(
            step - begun, batch - begun, rollbacks
        ), 1 + noise.random()

    run = run_of([], 4000, every)
    life = Life(run, Keep(3, 0, 2 * spikes.reach(run)))
    life.live(drawn, 2000)
    assert [gone_on > 0 for *_, gone_on in life.rollbacks] == [True, True]


def test_a_spike_after_a_ramp_goes_back_by_more_and_smaller_steps() -> None:
    assert spikes.reach(run_of([], 100, 50)) == 300
    ramped = run_of([(1000, 8), (50, 2)], 1000, 50)
    assert spikes.reach(ramped) == 1000
    assert spikes.reach(ramped.replace(stability="off")) == 0
    policy = SpikePolicy(ramped)
    policy.rollbacks = [spikes.Rollback(spikes.Place(1002, 1008), 208, 2608, lowered=False)]
    assert policy.back_to == 208  # of 1,201 steps that may have been made


def eased_at_201() -> SpikePolicy:
    """A policy that eases off from step 201 on."""
    policy = SpikePolicy(Run(name="large", tokens=768 * 10_000))
    for step in range(1, 201):
        policy.judge(step, 3.0 + 0.01 * (step % 3), 1.0)
    for _ in range(3):
        policy.judge(201, 3.0, 50.0)
    assert policy.calm == 0
    return policy


def test_a_spike_that_is_older_than_a_rollback_reaches_is_not_gone_back_to() -> None:
    """A run that eases off for long, since its loss comes and goes, goes back from where it is."""
    policy = eased_at_201()
    for step in range(202, 432):
        policy.judge(step, 3.5 if step % 9 == 0 else 3.0, 1.0)
    assert policy.judge(432, 3.0, 50.0).action == "rollback"
    assert policy.rollbacks[-1].spike.step == 432


def test_outliers_do_not_put_off_a_rollback_that_is_due() -> None:
    """They are trained on while a run eases off, which it may begin anew 2000 steps after the last time."""
    policy = eased_at_201()
    for step in range(202, 2202):
        policy.judge(step, 3.5 if step >= 2022 else 3.0 + 0.01 * (step % 3), 1.0)
    assert [policy.judge(step, 3.5, 50.0).action for step in range(2202, 2222)] == ["update"] * 20
    assert policy.judge(2222, 3.5, 50.0).action == "rollback"
