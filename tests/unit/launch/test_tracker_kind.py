"""A tracker from outside the package: each worker that is launched has one; it goes on with its run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from froude import Study
from froude.config import Run
from froude.launch import control_channel, ray_internals, worker
from froude.launch.observers.metrics import RayMetrics
from froude.launch.worker import Order, work
from froude.store import Location
from froude.train import api
from froude.train.observers import TRACKERS, Observer, Watched
from froude.train.rows import Row

RUN = Run(
    name="large",
    tokens=128 * 6,
    batch=128,
    slots=2,
    eval_windows=16,
    eval_every=3,
    checkpoint_every=2,
    model={"width": 16},
    norms_every=0,
)


class Lost(RuntimeError):
    """The host is gone."""


class Tracker(Observer):
    """Sends rows to a service, and keeps in checkpoints how many the service has of this run."""

    name = "own_tracker"
    service: list[tuple[str, int, float]]

    def __init__(self, lost_after: int = 0) -> None:
        self.service, self.lost_after, self.sent = [], lost_after, 0

    def begin(self, loop: Watched) -> None:
        super().begin(loop)
        assert loop.run == RUN

    def wrote(self, row: Row) -> None:
        self.sent += 1
        self.service.append(("step", row["step"], row["loss"]))
        if row["step"] == self.lost_after:
            raise Lost

    def evaluated(self, row: Row) -> None:
        self.service.append(("evaluation", row["step"], row["loss"]))

    def state(self) -> dict[str, Any]:
        return {"sent": self.sent}

    def rewind(self, state: Mapping[str, Any]) -> None:
        self.sent = state.get("sent", 0)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The only worker of a group, in this process, without Ray."""
    from ray import train

    kept: dict[str, Any] = {}
    monkeypatch.setattr(control_channel, "put_value", kept.__setitem__)
    monkeypatch.setattr(control_channel, "get_value", kept.get)
    monkeypatch.setattr(ray_internals, "supported", lambda: False)
    context = SimpleNamespace(get_world_rank=lambda: 0, get_world_size=lambda: 1)
    monkeypatch.setattr(train, "get_context", lambda: context)
    monkeypatch.setattr(worker, "use_own_cores", lambda threads: None)
    monkeypatch.setattr(worker, "admit", lambda *_, **__: {})
    monkeypatch.setattr(RayMetrics, "report", lambda self: None)
    assert TRACKERS == []
    yield
    TRACKERS.clear()


def launched(folder: Path, *trackers: Tracker) -> None:
    """What the driver orders of a worker, with these trackers registered."""
    TRACKERS[:] = [lambda one=one: one for one in trackers]  # type: ignore[misc]
    study = Location.parse(folder).url
    material = api.material_of(RUN).to_dict()
    work(asdict(Order(RUN.to_dict(), study, RUN.fingerprint, "id", "cpu", material=material)))


def losses(folder: Path) -> list[float]:
    return Study(folder).steps().sort("step").collect()["loss"].to_list()


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_it_hears_of_every_step_and_evaluation_and_changes_no_bit(tmp_path: Path) -> None:
    tracker = Tracker()
    launched(tmp_path / "tracked", tracker)
    launched(tmp_path / "alone")
    found = losses(tmp_path / "tracked")
    assert found == losses(tmp_path / "alone")
    assert [row for row in tracker.service if row[0] == "step"] == [
        ("step", i, x) for i, x in enumerate(found, 1)
    ]
    assert [row[1] for row in tracker.service if row[0] == "evaluation"] == [3, 6]


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_it_goes_on_from_what_its_checkpoint_kept(tmp_path: Path) -> None:
    first, second = Tracker(lost_after=5), Tracker()
    with pytest.raises(Lost):
        launched(tmp_path / "cut", first)
    launched(tmp_path / "cut", second)
    steps = [row[1] for row in second.service if row[0] == "step"]
    assert steps in ([3, 4, 5, 6], [5, 6])  # from the newest checkpoint that was whole when the host was lost
    assert second.sent == 6
    launched(tmp_path / "whole", Tracker())
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
