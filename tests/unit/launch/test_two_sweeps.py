"""Of two sweeps of one study, that which has lost its run to the other ends, and does not take it back."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from froude.config import Run
from froude.launch import elastic
from froude.launch.elastic import RunFailed
from froude.launch.trainable import Proxy, Task
from froude.launch.tuning import Queue, Room, _Ear
from froude.space import Grid, Space, Trial
from froude.store import Location
from froude.sweep.agenda import Agenda

RUN = Run(name="wide", tokens=768 * 4, workers=(1, 2), stage="law")
TRIAL = Trial("wide", (RUN,))


def ended(study: Location, monkeypatch: pytest.MonkeyPatch, kind: str) -> Any:
    """What the trial's process tells Tune when its driver has failed in this way."""

    def train(*given: Any, **named: Any) -> None:
        raise RunFailed("another driver has taken over 'wide'; this one ends", kind)

    monkeypatch.setattr(elastic, "train", train)
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(gcs_address="127.0.0.1:1"))
    (study / "study.json").replace(b"{}")
    proxy = Proxy(config=Task("wide", TRIAL.to_json(), study.url, "").config())
    try:
        while not (result := proxy.step())["done"]:
            pass
        return result
    finally:
        proxy.cleanup()


def test_a_sweep_whose_run_another_has_taken_over_ends_without_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Location.parse(tmp_path / "study")
    space = Space("x", 0, (Grid("law", lambda rows: [TRIAL], role="loss_law"),), RUN)
    queue = Queue(Agenda(space, {}), study, None, lambda: Room({"CPU": 2.0}, one_machine=False))
    task: Any = queue.suggest("1")
    told: Any = SimpleNamespace(config=task, last_result=ended(study, monkeypatch, "Fenced"))
    _Ear(queue, None).on_trial_complete(0, [], told)
    with pytest.raises(RunFailed, match=r"another sweep of .* has taken over: .*'wide'.* is kept"):
        queue.suggest("2")
    assert (study / "trials").children() == []


def test_any_other_failure_of_its_driver_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunFailed):
        ended(Location.parse(tmp_path / "study"), monkeypatch, "Corrupt")
