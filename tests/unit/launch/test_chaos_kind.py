"""A kind of failure that the package does not have: one object among the kinds, and `froude chaos` knows it."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from honest_run import RUN, sealed

from froude.checkpoint.run_store import RunStore
from froude.cli import main
from froude.launch.chaos import KINDS, Kind, Need, conduct
from froude.launch.chaos.available import chosen
from froude.launch.chaos.life import Seen
from froude.launch.chaos.scene import Act, Scene, choose
from froude.launch.chaos.schedule import schedule
from froude.launch.control_channel import Beat
from froude.promote.recipe import read
from froude.runlog import LogReader
from froude.store import Location
from froude.sweep import preflight
from froude.train.api import Unsupervised
from froude.train.exact import environment
from froude.train.worker import run_worker

WIRE = "OWN_WIRE"
STEPS = 40


def no_wire(place: Location) -> str:
    return "" if WIRE in os.environ else f"needs a wire; set {WIRE}"


class Tripwire:
    """The kind, and what was seen of it."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.kind = Kind(
            "tripwire", "the driver gives its attempt up", self.act, needs=Need(no_wire, self.wired)
        )

    @contextmanager
    def wired(self, scene: Scene) -> Iterator[None]:
        scene.environment[WIRE] = "taut"
        self.seen.append("strung")
        yield
        assert not any(life.thread.is_alive() for life in scene.lives)  # type: ignore[attr-defined]
        self.seen.append("rolled up")

    def act(self, scene: Scene, target: float) -> Act:
        node = choose(target, scene.life.nodes)
        scene.strike()
        scene.life.request("trip", node)
        yield f"attempt {scene.life.beats[-1].beat.attempt}"
        self.seen.append("mended")


class Played(Unsupervised):
    """A driver whose only worker is a thread of this process, which makes a step whenever somebody looks."""

    def __init__(self, order: Mapping[str, Any], environment: Mapping[str, str], log: Path) -> None:
        assert environment[WIRE] == "taut"
        self.recipe = Location.parse(order["recipe"])
        self.nodes, self.refused, self.end = ["the only one"], [], None
        self.beats: list[Seen] = []
        self.began = time.monotonic()
        self.tripped = self.closed = False
        self.looked = threading.Event()
        self.thread = threading.Thread(target=self.train, daemon=True)
        self.thread.start()

    def train(self) -> None:
        recipe = read(self.recipe)
        run, place = recipe.run, self.recipe.parent / "runs" / recipe.run.name
        environment.make_deterministic(torch.device("cpu"))
        build = environment.describe(torch.device("cpu"))
        while not self.closed and self.end is None:
            store = RunStore(place, run.name)
            self.attempt, self.tripped = store.open_attempt(recipe.sha256, {"build": build}), False
            self.beat(LogReader(place).records()[-1].step)
            run_worker(run.replace(workers=1), store, self, device="cpu")
            if LogReader(place).records()[-1].kind == "finished":
                self.end = ("finished", "")

    def beat(self, step: int) -> None:
        self.beats.append(Seen(time.monotonic(), Beat(self.attempt, 1, step, time.time())))

    def poll(self, step: int) -> str:  # type: ignore[override]
        self.beat(step)
        assert self.looked.wait(60)
        self.looked.clear()
        return "stop" if self.tripped or self.closed else "none"

    def over(self) -> bool:
        self.looked.set()
        return not self.thread.is_alive()

    def request(self, operation: str, node: object = None) -> None:
        assert (operation, node) == ("trip", "the only one")
        self.tripped = True

    def close(self) -> None:
        self.closed = True
        self.looked.set()
        self.thread.join(60)


@pytest.fixture
def tripwire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tripwire]:
    made, threads = Tripwire(), torch.get_num_threads()
    monkeypatch.setenv(WIRE, "1")
    monkeypatch.setattr("froude.launch.chaos.scene.Life", Played)
    monkeypatch.setattr(conduct, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(preflight, "free_memory", lambda: 2**40)
    with monkeypatch.context() as patch:
        patch.setitem(KINDS, made.kind.name, made.kind)
        yield made
    assert made.kind.name not in KINDS
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    sealed(tmp_path, run=RUN.replace({"tokens": 768 * STEPS, "checkpoint_every": 3}))
    return str(tmp_path / "recipe.toml")


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["chaos", *arguments]) == 2
    return capsys.readouterr().err


@pytest.mark.long  # trains twice
def test_a_run_goes_through_it_and_the_verdict_counts_it(
    tripwire: Tripwire, recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--kinds", "tripwire", "--failures", "3", "--simulate", "1", "--out", str(tmp_path / "out")]
    assert main(["chaos", recipe, *options, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["good"]
    assert [(row["kind"], row["count"], row["restarts"]) for row in said["kinds"]] == [("tripwire", 3, 3)]
    assert [one["struck"] for one in said["failures"]] == ["attempt 1", "attempt 2", "attempt 3"]
    steps = [one["step"] for one in said["failures"]]
    assert steps == sorted(steps)
    assert {check["name"]: check["passed"] for check in said["checks"]}[
        "an undisturbed rerun ends with the same bits"
    ]
    assert tripwire.seen == ["strung", "mended", "mended", "mended", "rolled up"]


@pytest.mark.usefixtures("tripwire")
def test_the_seed_draws_it_as_often_as_any_other() -> None:
    long = {"steps": 2000, "checkpoint_every": 20, "nodes": 3}
    assert Counter(failure.kind for failure in schedule(1, 40, ["worker-kill", "tripwire"], **long)) == {
        "worker-kill": 20,
        "tripwire": 20,
    }
    assert "tripwire" in {failure.kind for failure in schedule(1, 40, list(KINDS), **long)}


@pytest.mark.usefixtures("tripwire")
def test_what_it_lacks_is_said(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "disk-full, tripwire, but got meteor" in refused([recipe, "--kinds", "meteor"], capsys)
    place = Location.parse(tmp_path)
    assert "tripwire" in chosen([], place)[0]
    monkeypatch.delenv(WIRE)
    assert f"tripwire needs a wire; set {WIRE}" in refused([recipe, "--kinds", "tripwire"], capsys)
    assert chosen([], place)[1]["tripwire"] == f"needs a wire; set {WIRE}"


def test_memory_for_all_its_clusters_is_asked_for(
    recipe: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WIRE, "1")
    monkeypatch.setattr(preflight, "free_memory", lambda: 0)

    def asked(clusters: int) -> float:
        monkeypatch.setitem(KINDS, "tripwire", replace(Tripwire().kind, clusters=clusters))
        options = ["--kinds", "tripwire", "--failures", "1", "--simulate", "1"]
        found = re.search(r"needs ([\d.]+) GiB of free memory", refused([recipe, *options], capsys))
        assert found
        return float(found[1])

    assert asked(2) == pytest.approx(2 * asked(1), abs=0.11)


def test_without_it_nobody_knows_its_name(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "but got tripwire" in refused([recipe, "--kinds", "tripwire"], capsys)
