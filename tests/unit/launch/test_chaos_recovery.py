"""How long a run stood still is read from its signs of life."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from froude.config import Run
from froude.launch.chaos import KINDS, conduct
from froude.launch.chaos.life import Life, Seen
from froude.launch.chaos.scene import Act, NotInjected, Scene, choose, wait_for
from froude.launch.chaos.schedule import Failure
from froude.launch.control_channel import Beat
from froude.store import Location

RUN = Run(name="large", tokens=768 * 10)


def life(*beats: tuple[float, int, int]) -> Life:
    """A driver that was seen at these (seconds, attempt, step)."""
    made = Life.__new__(Life)
    made.beats = [Seen(at, Beat(attempt, 3, step, at)) for at, attempt, step in beats]
    return made


def scene(tmp_path: Path, struck: float, *lives: Life) -> Scene:
    made = Scene(RUN, Location.parse(tmp_path), {}, {}, tmp_path)
    made.struck = struck
    made.lives.extend(lives)
    return made


def recovered(made: Scene, kind: str, monkeypatch: pytest.MonkeyPatch, commit: int = 5) -> object:
    monkeypatch.setattr(conduct, "last_commit", lambda _: commit)
    before = next(seen for life in made.lives for seen in life.beats)
    return conduct.recovered(made, kind, before, 4)


def test_from_the_failure_to_the_first_new_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first beat of an attempt says that it has begun, the second that it has made a step."""
    made = scene(tmp_path, 10.5, life((10.0, 1, 50), (20.0, 2, 50), (22.5, 2, 41)))
    assert recovered(made, "worker-kill", monkeypatch) == (12.0, True)


def test_a_planned_change_counts_from_the_last_step_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = scene(tmp_path, 10.5, life((10.0, 1, 50), (14.0, 1, 80), (15.0, 2, 80), (17.0, 2, 81)))
    assert recovered(made, "node-add", monkeypatch) == (3.0, True)


def test_another_driver_counts_as_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = scene(tmp_path, 10.5, life((10.0, 1, 50)), life((30.0, 2, 0), (31.0, 2, 41)))
    assert recovered(made, "head-kill", monkeypatch) == (20.5, True)


def test_what_is_absorbed_costs_its_longest_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = scene(tmp_path, 10.5, life((10.0, 1, 50), (11.0, 1, 54), (14.0, 1, 55), (14.5, 1, 58)))
    assert recovered(made, "s3-hang", monkeypatch) == (3.0, False)
    assert recovered(made, "worker-kill", monkeypatch) is None  # no attempt outlives that


def test_no_recovery_before_a_new_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = scene(tmp_path, 10.5, life((10.0, 1, 50), (20.0, 2, 50), (22.5, 2, 41)))
    assert recovered(made, "worker-kill", monkeypatch, commit=4) is None


def test_a_run_that_is_over_with_its_new_attempt_has_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its few last steps passed between two looks."""
    made = scene(tmp_path, 10.5, life((10.0, 1, 5), (20.0, 2, RUN.steps)))
    assert recovered(made, "worker-kill", monkeypatch) == (9.5, True)


def test_a_run_that_is_over_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = scene(tmp_path, 0.0, life((10.0, 1, RUN.steps)))
    monkeypatch.setattr(conduct, "last_commit", lambda _: 5)
    monkeypatch.setattr(Life, "over", lambda self: True)
    kind = replace(KINDS["worker-kill"], act=lambda scene, target: iter_struck(scene))
    monkeypatch.setitem(KINDS, "worker-kill", kind)
    outcome = conduct.strike(made, Failure(8, "worker-kill", 0.5), lambda doing: None)
    assert outcome.seconds is None
    assert "over before" in outcome.why


def iter_struck(made: Scene) -> Act:
    made.strike()
    yield "somebody"


def test_a_target_is_one_of_what_is_there() -> None:
    assert [choose(target, "abc") for target in (0.0, 0.5, 0.999, 1.0)] == ["a", "b", "c", "c"]
    with pytest.raises(NotInjected, match="nothing to strike"):
        choose(0.5, [])
    with pytest.raises(NotInjected, match="in vain for a miracle"):
        wait_for(lambda: False, "a miracle", seconds=0.0)
