"""Spares are asked for once a node and attempt, and not while a new attempt begins."""

from __future__ import annotations

import time

import pytest

from froude.launch import control_channel as noting
from froude.launch.control_channel import Beat, ControlChannel
from froude.launch.ray_internals import spares as module
from froude.launch.ray_internals.spares import WARM_SECONDS, Spares

NODES = {"a", "b"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nodes that were asked for a spare, in order; notes are kept here instead of on a cluster's head."""
    kept: dict[str, dict[str, object] | None] = {}
    monkeypatch.setattr(noting, "put_value", kept.__setitem__)
    monkeypatch.setattr(noting, "get_value", kept.get)
    monkeypatch.setattr(module, "put_value", kept.__setitem__)
    monkeypatch.setattr(module, "get_value", kept.get)
    nodes: list[str] = []
    monkeypatch.setattr(module, "prestart", lambda node, job, environment: nodes.append(node))
    return nodes


def begin(notes: ControlChannel, attempt: int) -> None:
    notes.write_beat(Beat(attempt, world=2, step=attempt, time=1.0))


def settle(notes: ControlChannel, attempt: int) -> None:
    notes.offer_template(attempt, {"job": "01", "environment": "{}"})


def test_a_new_attempt_is_left_to_settle(asked: list[str]) -> None:
    notes = ControlChannel("/some/run")
    spares = Spares(notes)
    begin(notes, 1)
    assert not spares.refill(NODES)
    assert asked == []
    settle(notes, 1)
    spares.refill(NODES)
    spares.refill(NODES)
    assert sorted(asked) == ["a", "b"]
    spares.used()
    spares.refill(
        NODES
    )  # the next group runs, but its attempt has not begun: the old template is all there is
    spares.used()
    begin(notes, 2)
    spares.refill(NODES)
    assert len(asked) == 2
    settle(notes, 2)
    spares.refill({*NODES, "c"})
    assert sorted(asked[2:]) == ["a", "b", "c"]


def test_a_resize_waits_for_spares_that_are_to_come_early(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = ControlChannel("/some/run")
    begin(notes, 1)
    assert not Spares(notes).refill(NODES)
    assert Spares(notes, early=False).refill(NODES)
    settle(notes, 1)
    late = Spares(notes, early=False)
    assert not late.refill(NODES)
    module.put_value(module.warmth("a"), {"warm": True})
    assert not late.refill(NODES)
    module.put_value(module.warmth("b"), {"warm": True})
    assert late.refill(NODES)


def test_nor_for_ever(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    notes = ControlChannel("/some/run")
    begin(notes, 1)
    settle(notes, 1)
    late = Spares(notes)
    assert not late.refill(NODES)
    later = time.monotonic() + WARM_SECONDS
    monkeypatch.setattr(module.time, "monotonic", lambda: later)
    assert late.refill(NODES)
