"""The schedule of failures is a pure function of its seed; kinds that are not possible here are refused by name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from froude.cli import main
from froude.config import ConfigError, Run
from froude.launch import cluster
from froude.launch.chaos import KINDS, available, faults
from froude.launch.chaos.conduct import Course, Recovery
from froude.launch.chaos.schedule import schedule
from froude.launch.chaos.verdict import rows
from froude.promote.forecast import Forecast
from froude.promote.recipe import seal
from froude.store import Location

LONG = {"steps": 2000, "checkpoint_every": 20, "nodes": 3}


def test_the_seed_decides() -> None:
    one, again, other = (schedule(seed, 30, list(KINDS), **LONG) for seed in (7, 7, 8))
    assert one == again
    assert one != other


@given(st.integers(0, 2**31), st.integers(len(KINDS), 44))
def test_all_kinds_occur_in_order_of_steps(seed: int, failures: int) -> None:
    made = schedule(seed, failures, list(KINDS), **LONG)
    assert len(made) == failures
    assert {failure.kind for failure in made} == set(KINDS)
    steps = [failure.step for failure in made]
    assert steps == sorted(steps)
    assert 0 < steps[0]
    assert steps[-1] < 2000
    assert all(0 <= failure.target < 1 for failure in made)


@given(st.integers(0, 2**31), st.integers(2, 5), st.integers(1, 2))
def test_nodes_stay_between_the_least_and_all(seed: int, nodes: int, least: int) -> None:
    made = schedule(seed, 40, list(KINDS), **{**LONG, "nodes": nodes}, least=least)
    there = nodes
    for failure in made:
        change = KINDS[failure.kind].nodes
        there = nodes if change is None else there + change
        assert least <= there <= nodes


def test_kinds_come_equally_often_where_nodes_allow() -> None:
    counts = Counter(failure.kind for failure in schedule(0, 40, ["worker-kill", "head-kill"], **LONG))
    assert counts == {"worker-kill": 20, "head-kill": 20}


def test_as_many_failures_as_there_is_room_for_are_scheduled() -> None:
    """Of 1,000 steps .9 count; in binary fractions that is a little less than 900."""
    short = {"steps": 1000, "checkpoint_every": 50, "nodes": 3}
    assert len(schedule(0, 9, list(KINDS), **short)) == 9
    with pytest.raises(ConfigError, match="room for 1 to 9 failures"):
        schedule(0, 10, list(KINDS), **short)


def test_too_many_failures_for_a_run_are_refused() -> None:
    with pytest.raises(ConfigError, match="room for 1 to 45 failures"):
        schedule(0, 46, list(KINDS), **LONG)


def test_a_run_without_room_for_any_is_told_what_helps() -> None:
    with pytest.raises(ConfigError, match="every 100 has none; lower `checkpoint_every`"):
        schedule(0, 1, list(KINDS), **{**LONG, "steps": 40, "checkpoint_every": 100})


def test_taking_nodes_away_for_ever_is_refused() -> None:
    with pytest.raises(ConfigError, match="add node-add"):
        schedule(0, 3, ["node-kill"], **LONG)


def test_a_row_counts_what_was_recovered_from() -> None:
    made = [
        Recovery("node-kill", 1, "", 3.0, True),
        Recovery("node-kill", 2, "", 5.0, True),
        Recovery("s3-5xx", 3, "", 0.5, False),
        Recovery("s3-5xx", 4, "", None, False, "no commit"),
    ]
    found = rows(Course(tuple(made), frozenset(), "").recoveries)
    assert [(row.kind, row.count, row.restarts, row.median, row.worst) for row in found] == [
        ("node-kill", 2, 2, 4.0, 5.0),
        ("s3-5xx", 1, 0, 0.5, 0.5),
    ]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("a driver was started")

    monkeypatch.setattr(cluster, "simulated", started)
    monkeypatch.setattr("froude.launch.chaos.scene.Life", started)
    run = Run(name="large", tokens=768 * 400, slots=6, workers=(1, 3), checkpoint_every=20)
    forecast = Forecast(1.3, 1.2, 1.4, 0.9, False, "prior_driven", (), 1.5)
    made = seal(run=run, profile="", fits={}, fingerprints={}, extrapolation={}, checks=(), forecast=forecast)
    made.write(Location.parse(tmp_path) / "recipe.toml")
    return tmp_path / "recipe.toml"


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["chaos", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert 1 <= len(captured.err.splitlines()) <= 2
    return captured.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--kinds", "meteor"], "meteor"),
        (["--kinds", "s3-5xx,worker-kill"], "s3-5xx needs a study on S3"),
        (["--kinds", "s3-hang", "--out", "s3://bucket/x"], "AWS_ENDPOINT_URL"),
        (["--kinds", "clock-jump", "--out", "s3://bucket/x"], "local disk"),
        (["--kinds", "disk-full", "--out", "s3://bucket/x"], "local disk"),
        (["--failures", "40"], "room for"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    options: list[str],
    words: str,
    recipe: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    assert words in refused([str(recipe), *options], capsys)
    assert {path.name for path in recipe.parent.iterdir()} == {"recipe.toml", "forecast.json"}


def test_what_is_not_installed_is_named_with_its_remedy(
    recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults.shutil, "which", lambda name: None)
    monkeypatch.setattr(faults, "may_mount", lambda: False)
    assert "apt install gcc" in refused([str(recipe), "--kinds", "clock-jump"], capsys)
    assert "root" in refused([str(recipe), "--kinds", "disk-full"], capsys)
    used, left_out = available.chosen([], Location.parse(recipe.parent))
    assert set(left_out) == {"clock-jump", "disk-full", "s3-5xx", "s3-hang"}
    assert {*used, *left_out} == set(KINDS)


def test_a_place_that_holds_something_is_refused(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (recipe.parent / "chaos-3").mkdir()
    (recipe.parent / "chaos-3" / "thesis.tex").write_text("years of work")
    assert "thesis.tex" in refused(
        [str(recipe), "--seed", "3", "--failures", "2", "--kinds", "worker-kill"], capsys
    )
