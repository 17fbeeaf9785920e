"""What W&B, TensorBoard and MLflow write of a run, read as its metrics: of trials and of jobs."""

from __future__ import annotations

import math
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
import wandb
from mlflow.tracking import MlflowClient
from tensorboardX import SummaryWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.proto.tensor_pb2 import TensorProto

from froude import Study
from froude.config import Run
from froude.external import jobs
from froude.external.metrics import read
from froude.external.trial import run_trial
from froude.launch.sweep import open_study
from froude.material import Material
from froude.section import ConfigError
from froude.space import Grid, Space, Trial
from froude.store import Location

SERIES = {"loss": "train/loss", "validation_loss": "val/loss", "lr": "train/lr", "params": "model.size"}
TRAINER = {"command": ["train"], "series": SERIES}
RUN = Run(tokens=7680, name="r", trainer=TRAINER)
#: How a tracker is told a number of a step.
Tell = Callable[[str, float, int], None]


@contextmanager
def weights_and_biases(folder: Path) -> Iterator[Tell]:
    run = wandb.init(
        project="theirs", dir=str(folder), mode="offline", config={"model": {"size": 100}, "lr": 1},
        settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
    )  # fmt: skip
    yield lambda name, value, step: run.log({name: value}, step=step)
    run.finish()
    wandb.teardown()  # writes what it holds


@contextmanager
def tensorboard(folder: Path) -> Iterator[Tell]:
    with SummaryWriter(str(folder)) as writer:
        writer.add_scalar("model.size", 100, 0)
        yield writer.add_scalar


@contextmanager
def mlflow(uri: str) -> Iterator[Tell]:
    client = MlflowClient(tracking_uri=uri)
    run = client.create_run("0").info.run_id
    client.log_param(run, "model.size", 100)
    yield lambda name, value, step: client.log_metric(run, name, value, step=step)


KINDS = {
    "wandb": weights_and_biases,
    "tensorboard": tensorboard,
    "mlflow": lambda folder: mlflow(folder.as_uri()),
    "mlflow.db": lambda folder: mlflow(f"sqlite:///{folder}/mlflow.db"),
}


@pytest.fixture(params=KINDS)  # a database takes MLflow seconds to make
def kind(request, monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    return KINDS[request.param]


def train(tell: Tell, *, nan: int = 0) -> None:
    for step in range(1, 11):
        tell("train/loss", math.nan if step == nan else 4 - step / 10, step)
        tell("train/lr", 0.5 / step, step)
    tell("val/loss", 3.25, 10)
    tell("grad_norm", 1.0, 10)


@pytest.mark.long
@pytest.mark.slow
def test_a_tracker_s_folder_tells_what_lines_would(kind, tmp_path):
    with kind(tmp_path / "logs") as tell:
        train(tell)
    found = read(tmp_path / "logs", RUN)
    assert [(row["step"], row["tokens"]) for row in found.steps.values()] == [
        (n, 768 * n) for n in range(1, 11)
    ]
    assert [row["loss"] for row in found.steps.values()] == pytest.approx([4 - n / 10 for n in range(1, 11)])
    assert [row["lr"] for row in found.steps.values()] == pytest.approx([0.5 / n for n in range(1, 11)])
    assert (found.evals, found.final) == ({(10, "validation"): 3.25}, 3.25)
    assert (found.size, found.why_diverged, found.unknown) == ({"params": 100}, "", set())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wandb", "tensorboard", "mlflow"], indirect=True)
def test_a_run_without_the_loss_is_no_second_one_and_one_with_it_is(kind, tmp_path):
    with kind(tmp_path / "logs" / "a") as tell:
        train(tell, nan=3)
    with kind(tmp_path / "logs" / "b") as tell:
        tell("accuracy", 0.5, 1)
    assert read(tmp_path / "logs", RUN).why_diverged == "the loss was not finite at step 3"
    with kind(tmp_path / "logs" / "b") as tell:
        train(tell)
    with pytest.raises(
        ConfigError, match=r"one run with train/loss or val/loss, but .*logs has 2: .*; name the"
    ):
        read(tmp_path / "logs", RUN)


@pytest.mark.slow
def test_a_series_that_is_lacking_is_told_with_those_that_are_there(tmp_path):
    with weights_and_biases(tmp_path) as tell:
        train(tell)
    said = read(tmp_path, Run(tokens=7680, name="r")).lacking()
    assert "it has only train/loss, val/loss, train/lr" in said
    assert "say its name in `trainer.series`" in said


@pytest.mark.slow
def test_steps_count_from_one_or_are_a_series_of_their_own(tmp_path):
    with weights_and_biases(tmp_path) as tell:
        for call in range(10):
            tell("train/loss", 4.0, call)
            tell("global_step", call + 1, call)
    with pytest.raises(ConfigError, match=r"1 to 10, but .* has 0; count from 1"):
        read(tmp_path, RUN)
    run = RUN.replace({"trainer.series": {**SERIES, "step": "global_step"}}, name="r")
    assert list(read(tmp_path, run).steps) == list(range(1, 11))


def test_a_trainer_that_goes_back_goes_back_in_tensorboard(tmp_path):
    for first, last, loss in ((1, 6, 4.0), (4, 10, 3.0)):
        with SummaryWriter(str(tmp_path), filename_suffix=f".{first}") as writer:
            for step in range(first, last + 1):
                writer.add_scalar("train/loss", loss, step)
    found = read(tmp_path, RUN)
    assert [row["loss"] for row in found.steps.values()] == [4.0] * 3 + [3.0] * 7


def test_scalars_of_tensorflow_count_and_damage_is_named(tmp_path):
    packed = TensorProto(dtype=1, tensor_content=np.float32(3.5).tobytes())
    with SummaryWriter(str(tmp_path)) as writer:
        for step, tensor in enumerate((packed, TensorProto(dtype=2, double_val=[2.5])), 1):
            value = Summary.Value(tag="train/loss", tensor=tensor)
            writer.file_writer.add_event(Event(summary=Summary(value=[value])), step)
    assert [row["loss"] for row in read(tmp_path, RUN).steps.values()] == [3.5, 2.5]
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    for place in (0, 12, len(content) - 30):  # a length, data, and data of the last record
        file.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        with pytest.raises(
            ConfigError, match=r"TensorBoard file must be whole, but .* is damaged at byte \d+;"
        ):
            read(tmp_path, RUN)
    file.write_bytes(content[:-7])  # as a process leaves it that is killed
    assert [row["loss"] for row in read(tmp_path, RUN).steps.values()] == [3.5]


def test_a_package_that_is_lacking_is_named_and_what_has_just_begun_tells_nothing(tmp_path, monkeypatch):
    (tmp_path / "offline-run-1").mkdir()
    (tmp_path / "offline-run-1" / "run-1.wandb").touch()
    (tmp_path / "other.db").write_text("no database")
    assert "it has nothing" in read(tmp_path, RUN).lacking()
    (tmp_path / "events.out.tfevents.1").touch()
    monkeypatch.setitem(sys.modules, "tensorboardX.proto.event_pb2", None)
    with pytest.raises(ConfigError, match=r"need the package tensorboardX, .* '\.\[tensorboard\]'"):
        read(tmp_path, RUN)


@pytest.mark.parametrize("key", ["los", "validation"])
def test_a_series_is_given_to_a_metric_that_there_is(key):
    with pytest.raises(ConfigError, match=rf"`trainer\.series` gives .* but '{key}' is none .did you mean"):
        Run(tokens=7680, name="r", trainer={**TRAINER, "series": {key: "x"}})


#: A command that writes a store of MLflow's in files as it is; its first attempt is killed with a run begun.
STORE = r"""
os.makedirs("metrics/0/run/metrics/train")
print("run_id: run", file=open("metrics/0/run/meta.yaml", "w"))
def log(name, step, value):
    print(step, value, step, file=open("metrics/0/run/metrics/" + name, "a"))
for step in range(5 * attempt - 4, 11):
    log("train/loss", step, 4.0 - attempt / 10)
    if attempt == 1 and step == 7:
        os.kill(os.getpid(), 9)
log("val", 10, 3.5)
"""
NAMES = {"loss": "train/loss", "validation_loss": "val"}


def mlflow_files(folder: Path, **series: list[tuple[int, int, float]]) -> None:
    """A store of MLflow's in files, of times, steps and values."""
    (folder / "run" / "metrics").mkdir(parents=True)
    (folder / "run" / "meta.yaml").write_text("run_id: run")
    for name, points in series.items():
        text = "".join(f"{time} {value} {step}\n" for time, step, value in points)
        (folder / "run" / "metrics" / name).write_text(text)


def mlflow_tables(folder: Path, **series: list[tuple[int, int, float]]) -> None:
    """As much of MLflow's database as is read, with what was told of a step one after the other."""
    folder.mkdir()
    with closing(sqlite3.connect(folder / "mlflow.db")) as base, base:
        base.execute("create table runs (run_uuid, lifecycle_stage)")
        base.execute("insert into runs values ('run', 'active')")
        base.execute("create table params (run_uuid, key, value)")
        base.execute(
            "create table metrics (key, value, timestamp, run_uuid, step, is_nan,"
            " primary key (key, timestamp, step, run_uuid, value, is_nan))"
        )
        rows = [(name, *point) for name, points in series.items() for point in points]
        for name, time, step, value in sorted(rows, key=lambda row: TOLD.index(row[1])):
            base.execute("insert into metrics values (?, ?, ?, 'run', ?, 0)", (name, value, time, step))


#: Of thirteen points, by a clock that is set back after the sixth.
TOLD = [1001, 1002, 1003, 1004, 1005, 1006, 7, 8, 9, 10, 11, 12, 13]


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("stored", [mlflow_files, mlflow_tables])
def test_a_clock_that_steps_back_takes_nothing_back(tmp_path, stored, back):
    # A file for each series then does not tell whether the evaluation at 5 came before the trainer went back.
    steps = [*range(1, 8), *range(5, 11)] if back else range(1, 11)
    points = [(time, step, 4 - n / 16) for n, (time, step) in enumerate(zip(TOLD, steps, strict=False))]
    last = points[-1][0]
    stored(tmp_path / "logs", loss=points, lr=points, val=[(1005, 5, 3.5), (last, 10, 3.0)])
    names = {"loss": "loss", "validation_loss": "val", "lr": "lr"}
    found = read(tmp_path / "logs", RUN.replace({"trainer.series": names}, name="r"))
    kept = [*points[:4], *points[7:]] if back else points
    assert [(row["step"], row["loss"], row["lr"]) for row in found.steps.values()] == [
        (step, value, value) for _, step, value in kept
    ]
    assert found.final == 3.0
    assert found.went_back == ((5, "validation") not in found.evals) == (back and stored is mlflow_tables)


def stored(commanded) -> Trial:
    return Trial("t", (commanded(STORE, name="t", trainer__retries=1, trainer__series=NAMES),))


def told(rows) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in rows]


EXPECTED = [(step, 3.9) for step in range(1, 6)] + [(step, 3.8) for step in range(6, 11)]


def test_a_trial_s_attempts_have_a_folder_each(tmp_path, commanded):
    rows = run_trial(stored(commanded), tmp_path, material=Material(), roots=[os.getcwd()])
    assert (rows.trials[0]["loss"], rows.trials[0]["attempts"], told(rows.steps)) == (3.5, 2, EXPECTED)
    code = STORE.replace('"val"', '"eval"').replace("attempt == 1", "False")
    trial = Trial("t", (commanded(code, trainer__series=NAMES, trainer__retries=5),))
    with pytest.raises(
        ConfigError, match=r"`trainer.series` calls it 'val', but it has eval; correct the name"
    ):
        run_trial(trial, tmp_path / "other", material=Material(), roots=[os.getcwd()])


@pytest.mark.slow
def test_jobs_have_a_folder_for_each_attempt(tmp_path, commanded):
    trial, study, place = stored(commanded), Location.parse(tmp_path / "study"), tmp_path / "jobs"
    space = Space("tiny", 0, (Grid("loss_law", lambda rows: [trial], "loss_law"),), commanded())
    jobs.write_jobs(open_study(space, study, trust=True, fresh=False), space, study, place)
    for _ in range(2):
        subprocess.run(["sh", "jobs.txt"], cwd=place, check=False)
        state = jobs.ingest(place)
    assert (state.done, state.failed) == (["t"], {})
    steps = Study(study).steps().sort("step").collect()
    assert told(steps.iter_rows(named=True)) == EXPECTED
