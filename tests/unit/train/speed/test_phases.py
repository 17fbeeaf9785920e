"""Times by phase: here, on a pretended GPU, in a run's steps and in a profile; the collector between steps."""

from __future__ import annotations

import gc
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from froude.checkpoint.run_store import RunStore
from froude.cli import main
from froude.config import Run
from froude.store import Location
from froude.study import Study
from froude.train import optimizers
from froude.train.api import Unsupervised
from froude.train.observers import Made
from froude.train.observers.timing import TIMED, Timing
from froude.train.parallel import World
from froude.train.speed import phases
from froude.train.speed import profile as profiling
from froude.train.speed.collector import between_steps
from froude.train.speed.phases import Clock, running
from froude.train.speed.profile import measure
from froude.train.step import StepResult
from froude.train.worker import run_worker

RUN = Run(tokens=256 * 4, batch=256, slots=2, eval_windows=8, model={"width": 16}, reduction="exact")

MADE = "from froude.config import Run\n\ndef made():\n    return Run(tokens=7680, model={'width': 32})\n"


class Event:
    """A CUDA event whose times are told by a test."""

    now = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = Event.now

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "one that no table has")


def test_a_clock_divides_its_time_without_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 3.0, 6.0, 10.0])
    monkeypatch.setattr(phases.time, "perf_counter", lambda: next(times))
    phases.begin("data")  # no clock runs
    with running(clock := Clock()):
        phases.begin("forward")
        phases.begin("backward")
        phases.begin("forward")
    phases.begin("data")
    assert clock.seconds() == {"other": 1.0, "forward": 2.0 + 4.0, "backward": 3.0}


@pytest.mark.usefixtures("gpu")
def test_on_a_gpu_the_rows_of_a_step_are_filled_when_the_next_has_waited() -> None:
    observer, rows = Timing(), []
    observer.begin(SimpleNamespace(run=RUN, trainer=_trainer(1)))  # type: ignore[arg-type]
    for step in (1, 2):
        with observer.around(step):
            phases.begin("forward")
            Event.now += 2000
            phases.begin("reduce")
            Event.now += 500 * step
            observer.gradients(step)
        made = Made(step, StepResult(1.0, 1.0, 1.0), 0.0)
        observer.stepped(made)
        assert made.columns == {}
        rows.append({"tokens_per_second": 100.0})
        observer.wrote(rows[-1])
    assert (rows[0]["forward_seconds"], rows[0]["reduce_seconds"]) == (2.0, 0.5)
    assert "forward_seconds" not in rows[1]
    observer.checkpoint(2)
    assert rows[1]["reduce_seconds"] == 1.0


def test_mfu_is_the_share_of_all_workers_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100 80GB HBM3")
    observer = Timing()
    run = RUN.replace(precision="bf16")
    observer.begin(SimpleNamespace(run=run, trainer=_trainer(2)))  # type: ignore[arg-type]
    observer.clock = Clock()
    observer.wrote(row := {"tokens_per_second": 1e6})
    assert row["mfu"] == pytest.approx(1e6 * 6e8 / (2 * 989.4e12))


def _trainer(workers: int) -> Any:
    return SimpleNamespace(world=World(0, workers, torch.device("cuda")), flops_per_token=6e8)


@pytest.mark.slow
def test_a_runs_steps_have_their_times(tmp_path: Path) -> None:
    study = Location.parse(tmp_path / "study")
    store = RunStore(study / "runs" / "large", "large")
    store.open_attempt("recipe")
    run_worker(RUN.replace(name="large"), store, Unsupervised(), device="cpu")
    steps = Study(study.url).steps().collect()
    assert steps.height == RUN.steps
    assert steps["mfu"].null_count() == RUN.steps  # nobody knows the peak of a CPU
    for row in steps.iter_rows(named=True):
        known = [row[f"{phase}_seconds"] for phase in TIMED]
        assert min(known) > 0
        assert sum(known) <= row["seconds"]


def test_the_collector_is_off_in_steps_and_back_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[int] = []
    with between_steps(every=2) as passed:
        monkeypatch.setattr(gc, "collect", lambda: collected.append(1))
        assert not gc.isenabled()
        for _ in range(5):
            passed()
        with between_steps() as inner:  # a run in a run leaves it to the outer one
            inner()
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    assert len(collected) == 2


@pytest.mark.long
@pytest.mark.own_process
def test_a_profile_adds_up_to_the_step_and_its_trace_shows_the_phases(tmp_path: Path) -> None:
    found = measure(RUN, tmp_path / "trace.json", steps=3, device="cpu", progress=lambda *_: None)
    assert found.covered == pytest.approx(1.0, abs=0.05)
    assert min(found.phases[phase] for phase in TIMED) > 0
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event.get("name") in phases.PHASES and event.get("ph") == "X"]
    assert {event["name"] for event in spans} == set(phases.PHASES)
    assert sum(event["name"] == "forward" for event in spans) == 3 * RUN.slots
    ordered = sorted(spans, key=lambda event: event["ts"])
    assert all(one["ts"] + one["dur"] <= other["ts"] + 1 for one, other in itertools.pairwise(ordered))


@pytest.mark.long
@pytest.mark.own_process
def test_a_profile_of_a_stored_run_is_told_in_a_table(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text(RUN.to_toml())
    arguments = [
        "profile",
        str(tmp_path / "run.toml"),
        "--trace",
        str(tmp_path / "trace.json"),
        "--steps",
        "1",
    ]
    assert main([*arguments, "--device", "cpu"]) == 0
    said, told = capfd.readouterr()
    assert "profiler_start" not in told  # by Kineto, from C++
    for phase in (*phases.PHASES, "checkpoint copy", "evaluation"):
        assert f"\n{phase}" in said
    assert main([*arguments, "--device", "tpu"]) == 2
    assert "--device must be auto, cpu or cuda" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["/dev/full", "run.toml", "file.toml/x.json", "/proc/x.json", "folder"])
def test_a_trace_that_cannot_be_written_is_refused_before_anything_is_measured(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("froude.train.speed.profile.Loop", None)
    Path("run.toml").write_text(RUN.to_toml())
    Path("file.toml").touch()
    Path("folder").mkdir()
    assert main(["profile", "run.toml", "--trace", name, "--device", "cpu"]) == 2
    said = capsys.readouterr().err
    assert "trace must be a" in said
    assert name in said
    assert Path("run.toml").read_text() == RUN.to_toml()
    assert {each.name for each in tmp_path.iterdir()} == {"run.toml", "file.toml", "folder"}


@pytest.mark.parametrize("written", [None, "", '{"traceEvents": [{'])
def test_a_trace_that_is_not_whole_takes_no_place(written: str | None, tmp_path: Path) -> None:
    def export(name: str) -> None:
        if written is not None:
            Path(name).write_text(written)

    (tmp_path / "trace.json").write_text("before")
    with pytest.raises(OSError, match="must be written whole"):
        profiling.write(SimpleNamespace(export_chrome_trace=export), tmp_path / "trace.json")  # type: ignore[arg-type]
    assert [each.name for each in tmp_path.iterdir()] == ["trace.json"]
    assert (tmp_path / "trace.json").read_text() == "before"


def test_an_interrupted_profile_does_not_say_that_it_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here of a run that a function makes."""

    def interrupted(run: Run, *_: object, **__: object) -> None:
        assert run.model.width == 32
        raise KeyboardInterrupt

    monkeypatch.setattr(profiling, "measure", interrupted)
    (tmp_path / "mine.py").write_text(MADE)
    arguments = ["profile", f"{tmp_path / 'mine.py'}:made", "--trace", str(tmp_path / "trace.json")]
    assert main([*arguments, "--device", "cpu"]) == 130
    assert "interrupted; no trace was written; the same command starts anew" in capsys.readouterr().err


def test_what_a_command_trains_is_not_profiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RUN.replace(trainer={"command": ["python", "train.py"]}, reduction="fast")
    (tmp_path / "run.toml").write_text(run.to_toml())
    assert main(["profile", str(tmp_path / "run.toml")]) == 2
    assert "a command trains" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("device", "size", "chosen"), [("cuda", 4, "fused"), ("cpu", 4, "foreach"), ("cpu", 1, "fused")]
)
def test_a_fast_run_on_gpus_has_the_fused_optimizer(device: str, size: int, chosen: str) -> None:
    run = RUN.replace(reduction="fast")
    assert optimizers._implementation(run, run.optimizer, World(0, size, torch.device(device))) == chosen
