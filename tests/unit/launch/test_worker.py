"""The signs of life that a worker gives."""

from __future__ import annotations

import errno
import itertools
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray.train

from froude.config import ConfigError, Run
from froude.launch import ray_internals, worker
from froude.launch.control_channel import ControlChannel
from froude.launch.worker import Fatal, RaySupervisor

RUN = Run(name="large", tokens=768 * 100)


def test_a_clock_that_is_set_back_does_not_silence_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a second; before the third one somebody corrects the node's clock by two hours."""
    told: list[int] = []
    passed = itertools.count(1_000.0)
    wall = iter([50_000.0, 50_001.0, 42_802.0, 42_803.0])
    monkeypatch.setattr(ray_internals, "supported", lambda: False)  # no head to leave channel on
    monkeypatch.setattr(ControlChannel, "write_beat", lambda self, beat: told.append(beat.step))
    monkeypatch.setattr(time, "monotonic", lambda: next(passed))
    monkeypatch.setattr(time, "time", lambda: next(wall))
    supervisor = RaySupervisor(attempt=1, run=RUN, channel=ControlChannel("run"), rank=0, world=1)
    for step in (1, 2, 3, 4):
        supervisor.poll(step)
    assert told == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "seconds, asked", [(0.01, [1, 6, 11]), (0.4, [1, 3, 5, 7, 9, 11]), (9.0, [*range(1, 13)])]
)
def test_slow_steps_are_asked_after_one_by_one(
    monkeypatch: pytest.MonkeyPatch, seconds: float, asked: list[int]
) -> None:
    """About once a second, and ten times between checkpoints: a notice of a node's end is as urgent at any pace."""
    clock, when = itertools.count(), []
    monkeypatch.setattr(ray_internals, "supported", lambda: False)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock) * seconds)
    supervisor = RaySupervisor(
        attempt=1, run=RUN.replace(checkpoint_every=50), channel=ControlChannel("run"), rank=0, world=1
    )
    supervisor._polled = -seconds
    for step in range(1, 13):
        monkeypatch.setattr(ControlChannel, "asked_to_hold", lambda *_, step=step: when.append(step))
        supervisor.poll(step)
    assert when == asked


def test_a_run_that_went_back_asks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of half a second; from step 1250 the spike policy goes back to step 950."""
    clock, when = itertools.count(), []
    monkeypatch.setattr(ray_internals, "supported", lambda: False)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock) * 0.5)
    supervisor = RaySupervisor(
        attempt=1, run=Run(tokens=768 * 2000), channel=ControlChannel("run"), rank=0, world=1
    )
    for step in (*range(1, 1251), *range(951, 961)):
        monkeypatch.setattr(ControlChannel, "asked_to_hold", lambda *_, step=step: when.append(step))
        supervisor.poll(step)
    assert when[-6:] == [1250, 952, 954, 956, 958, 960]


@pytest.mark.parametrize(
    "cause, raised",
    [(OSError(errno.EIO, "SLOW_DOWN"), OSError), (PermissionError("not yours"), Fatal), (None, Fatal)],
)
def test_a_store_that_does_not_answer_restarts_a_run_and_a_wrong_setting_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: OSError | None, raised: type[Exception]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ConfigError("`data.path` must be readable") from cause

    only = SimpleNamespace(get_world_rank=lambda: 0, get_world_size=lambda: 1)
    monkeypatch.setattr(ray.train, "get_context", lambda: only)
    monkeypatch.setattr(ray_internals, "supported", lambda: False)
    monkeypatch.setattr(worker, "use_own_cores", lambda threads: None)
    monkeypatch.setattr(worker, "admit", refuse)
    order = {"run": RUN.to_dict(), "study": str(tmp_path), "recipe": "", "run_id": "", "device": "cpu"}
    with pytest.raises(raised, match=r"`data.path` must be readable"):
        worker.work(order)
