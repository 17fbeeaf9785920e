"""Trials that went wrong are shown: by the sweep's last lines, by a status, by a fit and by a promotion."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from small_study import write_study

from froude import schemas
from froude.cli import main
from froude.config import Run
from froude.launch import cluster
from froude.launch.status import find_bad_trials, told
from froude.launch.status import status as status_of
from froude.promote.checks.rows import TRIALS_FAILED, unfinished
from froude.promote.ladder.unfinished import earlier_line
from froude.space import Trial
from froude.store import Location
from froude.study import Study
from froude.sweep import trial_store
from froude.train.rows import describe

SPACE = """
from froude.config import Run
from froude.space import Grid, Space, Trial

def space(seed=0):
    runs = [Run(name=f"t{i}", tokens=7680, model={"width": 32}, seed=seed) for i in range(9)]
    return Space("nine", seed, (Grid("law", lambda rows: [Trial(run.name, (run,)) for run in runs], role="loss_law"),),
        runs[0].replace(name="large"))
"""
ALL = ["finished", *["diverged"] * 7, "failed"]


def write(folder: Path, statuses: list[str]) -> list[str]:
    """A study whose nine trials ended so; the words of a sweep that finds nothing left to do."""
    place, file = Location.parse(folder / "study"), folder / "nine.py"
    file.write_text(SPACE)
    for number, ended in enumerate(statuses):
        run = Run(name=f"t{number}", tokens=7680, model={"width": 32}, stage="law")
        trial = Trial(run.name, (run,))
        if ended == "failed":
            trial_store.write_failed(place, trial, error="OSError: the disk is on fire", attempts=3)
            continue
        row: Mapping[str, Any] = {"status": ended, "trial": run.name, "attempts": 1, "params": 10**4 + number}
        own = {"loss": 2.0} if ended == "finished" else {"reason": f"it ended at {number}, above its start"}
        trial_store.write(place, trial, trials=[{**describe(run), **row, **own}])
    return ["sweep", str(file), "--out", place.url]


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("a cluster was started")

    monkeypatch.setattr(cluster, "simulated", started)


def test_a_cluster_whose_owner_is_gone_is_an_error_and_no_closed_terminal() -> None:
    """A broken pipe would end the command as one whose output nobody reads any more: with 0."""
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(RuntimeError, match="the process that owns it ended before start"):
        cluster._request(ours, op="start")


def test_a_sweep_ends_with_those_that_diverged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = write(tmp_path, ["finished", "finished", *["diverged"] * 7])
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("7 diverged, 2 finished")
    assert lines[1] == "  diverged  t2: it ended at 2, above its start"
    assert len(lines) == 7
    assert "and 2 more diverged: froude status " in lines[-1]
    assert main([*command, "--json"]) == 0
    bad = json.loads(capsys.readouterr().out)["bad_trials"]
    assert [each["trial"] for each in bad] == [f"t{n}" for n in range(2, 9)]


def test_a_status_names_every_trial_that_failed_or_diverged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = write(tmp_path, ["finished"] * 9)
    assert main(command) == 0  # writes what the study is
    write(tmp_path, ALL)
    capsys.readouterr()
    assert main(["status", command[-1]]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[3] == "failed    t8 in 3 attempts: OSError: the disk is on fire"
    assert [line.split(":")[0] for line in printed[4:11]] == [f"diverged  t{n}" for n in range(1, 8)]
    assert "not begun" in printed[-1]
    assert main(["status", command[-1], "--json"]) == 0
    bad = json.loads(capsys.readouterr().out)["bad_trials"]
    assert bad[0] == {
        "status": "failed",
        "trial": "t8",
        "stage": "law",
        "run": "t8",
        "runs": 1,
        "attempts": 3,
        "reason": "OSError: the disk is on fire",
    }
    assert len(bad) == 8


def test_trials_that_a_space_no_longer_has_fail_nothing_and_hide_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = write(tmp_path, [*["finished"] * 8, "failed"])
    file = Path(command[1])
    file.write_text(file.read_text().replace("range(9)", "range(6)"))
    said = (
        "3 trials are of an earlier version of the space (1 failed, 2 finished): laws of their stages still read what "
        "finished"
    )
    assert main(command) == 0
    assert said in capsys.readouterr().out
    assert main(["status", command[-1]]) == 0
    assert said in capsys.readouterr().out
    study = Study(command[-1])
    trials = study.trials().collect()
    case: Any = SimpleNamespace(study=study, trials=trials)
    assert TRIALS_FAILED.measure(case) == 0
    assert unfinished(study, trials) == []
    assert unfinished(study, trials.filter(pl.col("trial") != "t1")) == ["1 trials of stage law"]


def test_trials_of_a_stage_that_is_gone_are_not_said_to_be_read() -> None:
    trials = pl.DataFrame(
        {"stage": ["old", "old", "law"], "trial": ["a", "b", "c"], "status": ["finished"] * 3}
    )
    stages = {"law": {"names": ["c"]}}
    assert "2 trials are of an earlier version of the space (2 finished): no law reads them" == earlier_line(
        trials, stages
    )
    assert earlier_line(trials, {"law": {"names": []}}).endswith("laws do not read the 2 whose stage is gone")


def test_a_sweep_and_a_fit_of_which_all_diverged_fail_and_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = write(tmp_path, ["diverged"] * 9)
    assert main(command) == 1
    assert "no trial of" in (said := capsys.readouterr().err)
    assert "9 diverged" in said
    assert "lower the learning rates" in said
    assert main(["fit", command[-1]]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == said
    assert main(["promote", command[-1]]) == 2
    said = capsys.readouterr().err
    assert "loss_law (its trials: 9 diverged)" in said
    assert "`froude status` says why" in said
    assert "to its end" not in said


@pytest.mark.slow
def test_a_promotion_of_a_study_that_is_not_done_still_says_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_study(
        tmp_path / "study", change=lambda row: row if row["stage"] not in ("law", "recipe") else None
    )
    assert main(["promote", str(folder)]) == 2
    assert "lacks search, loss_law; run `froude sweep` to its end" in capsys.readouterr().err
    meta = json.loads((folder / "study.json").read_text())
    meta["stages"] = {name: stage for name, stage in meta["stages"].items() if stage["role"] == "lr_transfer"}
    (folder / "study.json").write_text(json.dumps(meta))
    assert main(["promote", str(folder)]) == 2
    assert "lacks search, loss_law; add such stages to the search space" in capsys.readouterr().err


def test_branches_of_a_trial_are_one_line_and_a_long_reason_is_cut(tmp_path: Path) -> None:
    place = Location.parse(tmp_path)
    runs = tuple(Run(name=f"n{n}", tokens=768 * n) for n in (5, 8, 12))
    rows = [{**describe(run), "trial": "trunk", "status": "diverged"} for run in runs]
    rows[0]["status"] = "finished"
    trial_store.write(place, Trial("trunk", runs), trials=[{**row, "reason": "x" * 500} for row in rows])
    (bad,) = find_bad_trials(Study(place))
    assert (bad.trial, bad.run, bad.runs) == ("trunk", "n8", 2)
    (line,) = told([bad], "more")
    assert line.startswith("diverged  trunk (n8): xxx")
    assert line.endswith("…")
    assert len(line) < 450


def test_rows_of_before_there_were_reasons_are_shown_too(tmp_path: Path) -> None:
    command = write(tmp_path, ALL)
    place = Path(command[-1])
    for file in (place / "trials").iterdir():
        table = pq.read_table(file)
        pq.write_table(table.drop_columns(["last_loss", "reason", "model", "corpus"]), file)
    rows = Study(place).trials().collect()
    assert rows.columns == schemas.TRIALS.names
    assert rows["reason"].null_count() == 9
    failed, *diverged = find_bad_trials(Study(place))
    assert failed.reason == "OSError: the disk is on fire"
    assert {each.line().partition(": ")[2] for each in diverged} == {
        "the version that trained it kept no reason"
    }
    assert trial_store.read(Location.parse(place), "t8").failed


def test_a_status_without_trials_has_no_bad_ones(tmp_path: Path) -> None:
    place = Location.parse(tmp_path)
    (place / "study.json").replace(b'{"stages": {}, "froude": "study"}')
    assert list(status_of(place).bad_trials) == []
