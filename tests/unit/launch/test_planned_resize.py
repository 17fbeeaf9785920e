"""What becomes of a resize once the workers were asked to hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.train.v2._internal.execution.scaling_policy import NoopDecision, ResizeDecision

from froude.launch.ray_internals import policy
from froude.launch.ray_internals.policy import HOLD_SECONDS, PlannedResize

WORLD = 2


class Notes:
    """Of an attempt that holds, or does not."""

    def __init__(self, held: bool) -> None:
        self.holds, self.released = held, False

    def held(self, attempt: int) -> bool:
        return self.holds

    def release(self) -> None:
        self.released = True


def planned(
    monkeypatch: pytest.MonkeyPatch, *, held: bool, possible: int, seconds: float = 0.0
) -> PlannedResize:
    """A policy that asked attempt 1 to hold so long ago, on a cluster for so many workers."""
    now = 1000.0
    monkeypatch.setattr(policy.time, "monotonic", lambda: now + seconds)
    made: Any = object.__new__(PlannedResize)
    made.notes, made.spares, made._asked = Notes(held), None, (1, now + HOLD_SECONDS)
    made.scaling_config = SimpleNamespace(min_workers=1)
    made._get_reserved_resources = dict
    made._count_possible_workers = lambda reserved: possible
    made._get_resize_decision = lambda workers: ResizeDecision(num_workers=workers, resources_per_worker={})
    return made


def test_a_resize_waits_until_the_workers_hold(monkeypatch):
    waiting = planned(monkeypatch, held=False, possible=3, seconds=HOLD_SECONDS - 1)
    assert isinstance(waiting._when_held(WORLD), NoopDecision)
    assert waiting._asked is not None
    assert not waiting.notes.released


def test_past_the_bound_they_are_released_and_it_is_tried_later(monkeypatch):
    late = planned(monkeypatch, held=False, possible=3, seconds=HOLD_SECONDS + 1)
    assert isinstance(late._when_held(WORLD), NoopDecision)
    assert late._asked is None
    assert late.notes.released


@pytest.mark.parametrize("possible", [1, 3])
def test_when_they_hold_the_group_gets_its_new_size(monkeypatch, possible):
    holding = planned(monkeypatch, held=True, possible=possible)
    decision = holding._when_held(WORLD)
    assert isinstance(decision, ResizeDecision)
    assert decision.num_workers == possible
    assert not holding.notes.released


@pytest.mark.parametrize("possible", [0, WORLD])
def test_a_reason_that_is_gone_by_then_releases_them(monkeypatch, possible):
    holding = planned(monkeypatch, held=True, possible=possible)
    assert isinstance(holding._when_held(WORLD), NoopDecision)
    assert holding.notes.released
