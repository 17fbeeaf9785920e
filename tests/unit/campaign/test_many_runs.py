"""benchmarks/_many_runs.py on runs of two steps: a process that is killed, a run that diverges, and what goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from froude.config import Run

RUN = Run(
    tokens=64,
    batch=32,
    eval_windows=2,
    seed=3,
    model={"width": 16, "depth": 1, "head_dim": 8, "context": 16},
    optimizer={"lr": 2**-7},
    schedule={"warmup_tokens": 32},
)
KILLER = """
import os, signal
from pathlib import Path
from froude.train.model import Transformer


class Killer(Transformer):
    def __init__(self, run):
        if not Path(run.model.options["pardon"]).exists():
            os.kill(os.getpid(), signal.SIGKILL)
        super().__init__(run)
"""


@pytest.fixture
def many(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(root / "benchmarks")
    import _many_runs

    return _many_runs


def written(many: Any, file: Path, runs: dict[str, Run]) -> Path:
    file.write_text("".join(json.dumps(many.job_of(name, run)) + "\n" for name, run in runs.items()))
    return file


def test_a_last_line_that_was_cut_off_is_no_line(many: Any, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    assert many.lines(file) == []
    file.write_text('{"name": "a"}\n{"name": "b", "lo')
    assert many.lines(file) == [{"name": "a"}]


def test_a_result_is_of_its_run_not_of_its_name(many: Any) -> None:
    jobs = [many.job_of("a", RUN), many.job_of("b", RUN.replace(seed=4))]
    results = [many.ended(jobs[0], "finished", 1.0), many.ended(jobs[1], "failed", error="no memory")]
    assert many.results_of(jobs, results) == {"a": results[0]}
    changed = [many.job_of("a", RUN.replace({"optimizer.lr": 0.5}))]
    assert many.results_of(changed, results) == {}


@pytest.mark.slow
def test_what_died_is_said_and_trained_by_the_next_call(
    many: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "killer.py").write_text(KILLER)
    monkeypatch.syspath_prepend(tmp_path)
    pardon, results = tmp_path / "pardon", tmp_path / "results.jsonl"
    killed = RUN.replace({"model.factory": "killer:Killer", "model.options": {"pardon": str(pardon)}})
    runs = {
        "killed": killed,
        "diverged": RUN.replace({"optimizer.lr": 1e30}),
        "no text": RUN.replace({"data.source": "froude.train.data.text:TextFile", "data.path": "/nowhere"}),
        "one": RUN,
        "two": RUN.replace(seed=4),
    }
    jobs = written(many, tmp_path / "jobs.jsonl", runs)
    results.write_text('{"name": "two", "sta')
    assert many.train(jobs, results, processes=2, device="cpu") == 2
    found = {line["name"]: line for line in many.lines(results)}
    assert {name: line["status"] for name, line in found.items()} == {
        "killed": "failed",
        "diverged": "diverged",
        "no text": "failed",
        "one": "finished",
        "two": "finished",
    }
    assert found["killed"]["error"] == "its process died with exit code -9"
    assert found["diverged"]["loss"] is None
    assert "2 runs have no result; the same command goes on" in capfd.readouterr().out

    pardon.touch()
    assert many.train(jobs, results, processes=1, device="cpu") == 1
    names = [line["name"] for line in many.lines(results)]
    assert sorted(names[5:]) == ["killed", "no text"]
    assert many.train(jobs, results, processes=1, device="cpu", minutes=0) == 1


@pytest.mark.slow
def test_where_every_process_dies_no_more_are_started(
    many: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "killer.py").write_text(KILLER)
    monkeypatch.syspath_prepend(tmp_path)
    killed = RUN.replace(
        {"model.factory": "killer:Killer", "model.options": {"pardon": str(tmp_path / "no")}}
    )
    jobs = written(many, tmp_path / "jobs.jsonl", {str(seed): killed.replace(seed=seed) for seed in range(9)})
    assert many.train(jobs, tmp_path / "results.jsonl", processes=1, device="cpu") == 9
    assert len(many.lines(tmp_path / "results.jsonl")) == 2
