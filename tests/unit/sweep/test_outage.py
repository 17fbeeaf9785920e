"""What is computed waits for a store that does not answer, and not for one that has answered."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from played_sweep import outcome

from froude import s3
from froude.config import ConfigError, Run
from froude.launch.trainable import Proxy, Stopped, Task
from froude.launch.tuning import Queue, Room
from froude.space import Grid, Space, Trial
from froude.store import Location, reported
from froude.sweep import outage, trial_store
from froude.sweep.agenda import Agenda
from froude.sweep.outage import OUTAGE_SECONDS, through_outage

RUN = Run(name="a", model={"width": 32}, tokens=768 * 4, eval_windows=16, stage="law", device="cpu")
TRIAL = Trial("a", (RUN,))
AWAY = OSError(errno.EIO, "AWS Error NETWORK_CONNECTION during HeadObject operation")


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Lengths of the pauses, in which alone time passes."""
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    monkeypatch.setattr(outage, "time", clock)
    return pauses


def failing(times: int, error: Exception, then: Callable[..., Any]) -> Callable[..., Any]:
    left = [error] * times

    def call(*given: Any, **named: Any) -> Any:
        if left:
            raise left.pop()
        return then(*given, **named)

    return call


def refused_by(error: OSError) -> None:
    with reported(Location("s3://bucket/study"), "a study must be readable"):
        raise error


def test_a_store_that_is_away_for_a_minute_is_waited_for(waited: list[float]) -> None:
    assert through_outage(failing(10, AWAY, lambda: "rows")) == "rows"
    assert 60 < sum(waited) < 90


def test_one_that_stays_away_is_an_error_in_the_end(waited: list[float]) -> None:
    with pytest.raises(ConfigError, match="a study must be readable, but s3://bucket/study"):
        through_outage(lambda: refused_by(AWAY))
    assert OUTAGE_SECONDS < sum(waited) < OUTAGE_SECONDS + 10


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError("no such file"),
        PermissionError("not yours"),
        s3.Refused("keys"),
        ValueError("a bug"),
    ],
)
def test_an_answer_is_not_waited_for(waited: list[float], error: Exception) -> None:
    with pytest.raises(type(error)):
        through_outage(failing(9, error, lambda: None))
    if isinstance(error, OSError):
        with pytest.raises(ConfigError):
            through_outage(lambda: refused_by(error))
    assert waited == []


def test_a_trial_whose_data_s_store_is_away_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Location.parse(tmp_path / "study")
    (study / "study.json").replace(b"{}")
    for error, refused in ((AWAY, False), (PermissionError("not yours"), True)):
        monkeypatch.setattr(Proxy, "_material", lambda self, error=error: refused_by(error))
        proxy = Proxy(config=Task("a", TRIAL.to_json(), study.url, "cpu").config())
        try:
            if refused:
                assert "a study must be readable" in proxy.step()["refused"]
            else:
                with pytest.raises(ConfigError, match="a study must be readable"):
                    proxy.step()
        finally:
            proxy.cleanup()


def test_who_is_told_to_stop_waits_no_longer(waited: list[float]) -> None:
    with pytest.raises(Stopped):
        through_outage(failing(9, AWAY, lambda: None), failing(1, Stopped(), lambda: None))
    assert len(waited) == 1


def test_a_trial_that_is_trained_is_not_trained_again_for_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waited: list[float]
) -> None:
    monkeypatch.setattr(trial_store, "write", failing(2, AWAY, trial_store.write))
    study = Location.parse(tmp_path / "study")
    (study / "study.json").replace(b"{}")
    proxy = Proxy(config=Task("a", TRIAL.to_json(), study.url, "cpu").config())
    try:
        while not (result := proxy.step())["done"]:
            pass
    finally:
        proxy.cleanup()
    assert result["statuses"] == "finished"
    assert len(waited) == 2
    assert not trial_store.read(study, "a").failed


@pytest.mark.parametrize("error", [None, "it raised"])
def test_a_sweep_goes_on_when_its_driver_misses_the_store_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waited: list[float], error: str | None
) -> None:
    study = Location.parse(tmp_path / "study")
    (study / "study.json").replace(b'{"froude": "study", "stages": {"law": {}}}')
    space = Space("x", 0, (Grid("law", lambda rows: [TRIAL], role="loss_law"),), RUN)
    queue = Queue(Agenda(space, {}), study, None, lambda: Room({"CPU": 1.0}, one_machine=False))
    assert queue.suggest("1")["name"] == "a"
    trial_store.write(study, TRIAL, trials=outcome(TRIAL, lambda run: 2.0).rows.to_pylist())
    queue.end("a", error, 1)
    monkeypatch.setattr(Location, "read", failing(1, AWAY, Location.read))
    assert queue.suggest("2") == Queue.FINISHED
    assert len(waited) == 1
    assert queue.agenda.results["a"].failed == (error is not None)
