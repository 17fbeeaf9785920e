"""What a session does where something goes wrong: with the tracker, or with the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
import torch

from froude.checkpoint.run_store import RunStore
from froude.config import Run
from froude.runlog import LogReader
from froude.schemas import EVENTS, STEPS, table
from froude.store import Location
from froude.study import Study
from froude.tracking.points import points
from froude.tracking.session import RunSession, said, settings
from froude.tracking.tracker import Point, Subject
from froude.train.rows import describe

RUN = Run(name="large", tokens=7680, stability="off")
SECRET = "postgres://me:hunter2@db/corpus"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Lost(OSError):
    """The tracker can't be reached."""


@dataclass
class Memory:
    """A tracker that keeps what it is told; `fails` many points from now it is lost for once."""

    runs: dict[str, list[Point]] = field(default_factory=dict)
    statuses: dict[str, str] = field(default_factory=dict)
    fails: int = -1
    key: str = ""

    def ended(self, study: str) -> set[str]:
        return {key for key, status in self.statuses.items() if status}

    def open(self, subject: Subject) -> int:
        self.key = subject.key
        return max((point.step for point in self.runs.setdefault(self.key, [])), default=0)

    def send(self, points: Sequence[Point]) -> None:
        for point in points:
            self.fails -= 1
            if self.fails == 0:
                raise Lost
            self.runs[self.key].append(point)

    def close(self, status: str, summary: Mapping[str, Any]) -> None:
        self.statuses[self.key] = status


@dataclass
class Training:
    """Attempts of a run, without a model: each commits the steps since the one before it."""

    study: Location

    def attempt(self, *upto: int, kind: str = "checkpoint", stop: bool = False) -> None:
        store = RunStore(self.study / "runs" / RUN.name, RUN.name)
        number = store.open_attempt("recipe")
        state = {"w": torch.zeros(4)}
        step = store.load(state)["step"]
        for end in upto:
            rows = [
                {
                    "run": "large",
                    "attempt": number,
                    "step": s,
                    "tokens": s,
                    "loss": 1 / s + number,
                    "time": NOW,
                }
                for s in range(step + 1, end + 1)
            ]
            event = {
                "run": "large",
                "attempt": number,
                "step": end + 1,
                "action": "stop",
                "why": "nan",
                "time": NOW,
            }
            tables = {"steps": table(STEPS, rows), "events": table(EVENTS, [event] if stop else [])}
            store.save(
                state, step=end, tokens=end, tables=tables, kind=kind if end == upto[-1] else "checkpoint"
            )
            step = end

    def damage(self, step: int) -> None:
        """A byte of the newest checkpoint's data is lost."""
        place = self.study / "runs" / RUN.name
        record = [r for r in LogReader(place).records() if r.step == step and r.parts][-1]
        part = next(part for part in record.parts if part.kind == "data")
        (place / part.path).replace((place / part.path).read()[:-1])

    def losses(self) -> list[tuple[int, float]]:
        return list(Study(self.study).steps().sort("step").select("step", "loss").collect().iter_rows())


@pytest.fixture
def training(tmp_path: Any) -> Training:
    return Training(Location.parse(tmp_path / "study"))


def test_a_users_name_may_be_that_of_a_rows_column() -> None:
    row = {"run": "r", "step": 100, "tokens": 10, "attempt": 1, "time": datetime(2026, 1, 1, tzinfo=UTC)}
    names = ("step", "value", "time", "tokens", "arc")
    (point,) = points((), downstream=[{**row, "name": name, "value": 3.0} for name in names])
    assert (point.step, point.time) == (100, row["time"])
    assert point.values == {f"downstream/{name}": 3.0 for name in names}


@pytest.mark.parametrize(
    "data",
    [
        {"path": SECRET},
        {"options": {"url": SECRET}},
        {"parts": [{"name": "web", "source": "mine.code:Src", "path": SECRET, "weight": 1}]},
        {"parts": [{"name": "web", "source": "mine.code:Src", "options": {"url": SECRET}, "weight": 1}]},
    ],
)
def test_no_password_of_a_corpus_reaches_a_tracker(data: dict[str, Any]) -> None:
    run = RUN.replace(data={"source": "mine.code:Src"} | data)
    told = [str(settings(run)), str(said(describe(run)))]
    assert "hunter2" not in "".join(told)
    assert "postgres://***@db/corpus" in told[0]
    plain = RUN.replace(
        data={"source": "mine.code:Src", "path": "s3://bucket/tokens", "options": {"of": "a:b@c"}}
    )
    assert settings(plain) == plain.to_dict()


def losses(points: list[Point]) -> list[tuple[int, float]]:
    return [(point.step, point.values["train/loss"]) for point in points if point.values]


def test_a_damaged_checkpoint_makes_another_revision_and_the_first_is_closed(training: Training) -> None:
    tracker = Memory()
    session = RunSession(training.study, RUN, tracker)
    training.attempt(4, 8)
    session.send()
    training.damage(8)
    with pytest.warns(UserWarning, match="is damaged"):
        training.attempt(6, 12, kind="finished")
    for _ in range(2):
        session.send(final=True)
    first, second = tracker.runs
    assert second == f"{first}-2"
    assert tracker.statuses == {first: "superseded", second: "finished"}
    assert losses(tracker.runs[second]) == training.losses()
    late = Memory()  # who comes afterwards tells the same, under the same key
    RunSession(training.study, RUN, late).send(final=True)
    assert late.runs == {second: tracker.runs[second]}


def test_after_an_error_another_session_sends_the_rest_and_nothing_twice(training: Training) -> None:
    tracker = Memory(fails=3)
    training.attempt(4, 8)
    with pytest.raises(Lost):
        RunSession(training.study, RUN, tracker).send()
    RunSession(training.study, RUN, tracker).send(final=True)
    assert set(tracker.statuses.values()) == {""}  # to be gone on with
    training.attempt(9, kind="finished")
    for _ in range(2):
        RunSession(training.study, RUN, tracker).send(final=True)
    (points,) = tracker.runs.values()
    assert losses(points) == training.losses()
    assert set(tracker.statuses.values()) == {"finished"}


def test_a_run_that_diverged_ends_with_what_says_why(training: Training) -> None:
    tracker = Memory()
    training.attempt(4, 6, stop=True)
    session = RunSession(training.study, RUN.replace(stability="ladder"), tracker)
    session.send()
    (points,) = tracker.runs.values()
    assert set(tracker.statuses.values()) == {"diverged"}
    assert losses(points) == training.losses()
    assert [(point.step, point.events) for point in points if point.events][-1] == (7, "stop: nan")


def test_what_can_be_gone_back_from_is_not_told(training: Training) -> None:
    tracker = Memory()
    session = RunSession(training.study, RUN.replace(stability="ladder"), tracker)
    session.send()  # the run has not begun
    training.attempt(40, 200, 339)
    session.send()
    assert tracker.runs == {session.key: []}
    training.attempt(340)
    session.send()
    assert [point.step for point in tracker.runs[session.key]] == list(range(1, 41))
