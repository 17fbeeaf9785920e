"""Sweeps on a real cluster of two nodes: to the end, again, and through every kind of trouble."""

from __future__ import annotations

import hashlib
import importlib.util
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

from froude.config import ConfigError, Run
from froude.external import jobs
from froude.launch import tuning
from froude.launch.cluster import SimulatedCluster, simulated
from froude.launch.sweep import open_study, sweep
from froude.space import Grid, LogUniform, Search, Space, Trial
from froude.store import Location
from froude.study import Study
from froude.sweep.progress import SweepProgress

STEPS = 12
LONG = 400  # steps of trials that are to be seen while they train, on a quick machine, too
BASE = Run(
    name="base",
    model={"width": 32},
    tokens=768 * STEPS,
    eval_windows=16,
    schedule={"warmup_tokens": 768 * 2},
    device="cpu",
)

FRAGILE = (Path(__file__).parents[1] / "data" / "fragile.py").read_text()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedCluster]:
    """Two nodes, whose processes can import `fragile` as the driver can."""
    modules = tmp_path_factory.mktemp("modules")
    (modules / "fragile.py").write_text(FRAGILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(modules))
        with simulated(2, log_dir=tmp_path_factory.mktemp("logs")) as running:
            yield running


def run(name: str, changes: dict | None = None, /, **more) -> Run:
    return BASE.replace({**(changes or {}), **more}, name=name)


def grid(*trials: Trial | Run, name: str = "loss_law", role: str = "loss_law") -> Grid:
    found = [trial if isinstance(trial, Trial) else Trial(trial.name, (trial,)) for trial in trials]
    return Grid(name, lambda rows: found, role=role)


def space(*stages: Search | Grid) -> Space:
    return Space("tiny", 0, stages, BASE)


def files(study: Location) -> dict[str, tuple[int, str]]:
    """Every Parquet file: when it was made and what is in it."""
    found = {}
    for file in study.walk(".parquet"):
        found[file.url] = (file.path.stat().st_mtime_ns, hashlib.sha256(file.read()).hexdigest())
    return found


def trials(study: Location) -> pl.DataFrame:
    return Study(study).trials().sort("run").collect()


#: A trainer of a user's: a node tells its rank to the first, which tells froude. The first attempt is killed.
TRAINER = """
import json, os, signal, socket
if os.environ["FROUDE_ATTEMPT"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
rank, nodes = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
if nodes > 1:
    place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank:
        while True:
            try:
                socket.create_connection(place).sendall(b"%d" % rank)
                break
            except OSError:
                pass
    else:
        with socket.create_server(place) as server:
            assert server.accept()[0].recv(9) == b"1"
if not rank:
    with open(os.environ["FROUDE_METRICS"], "a") as told:
        for line in ({"params": 100 * nodes}, {"step": 1, "loss": 4.0}, {"step": STEPS, "validation_loss": 2.5}):
            print(json.dumps(line), file=told)
"""


@pytest.fixture
def study(tmp_path: Path) -> Location:
    return Location.parse(tmp_path / "study")


def test_a_sweep_runs_every_stage_once_in_processes_that_it_uses_again(cluster, study, monkeypatch):
    pids, told = set(), []
    hear = tuning._Ear.on_trial_result

    def listen(self, iteration, trials, trial, result, **info):
        pids.add(result["pid"])
        hear(self, iteration, trials, trial, result, **info)

    monkeypatch.setattr(tuning._Ear, "on_trial_result", listen)
    search = Search(
        "search", BASE, {"optimizer.lr": LogUniform(1e-3, 1e-1)}, 4, 2, {"optimizer.lr": 1e-2}, parallel=2
    )

    def from_search(rows: pl.DataFrame) -> list[Trial]:
        lr = rows.sort("loss")["lr"][0] if rows.height else 1e-2
        wild = run("wild", {"optimizer.lr": 50.0, "optimizer.clip": 1e6})
        branches = tuple(run(f"n{n}", {"optimizer.lr": lr}, tokens=768 * n) for n in (6, 12))
        return [Trial("wild", (wild,)), Trial("trunk", branches)]

    stages = (search, Grid("loss_law", from_search, role="loss_law"))
    sweep(space(*stages), study, cluster, progress=told.append)

    rows = trials(study)
    assert dict(rows.select("run", "status").iter_rows()) == {
        "n12": "finished", "n6": "finished", "wild": "diverged", **{f"search-{i:02d}": "finished" for i in range(4)}
    }  # fmt: skip
    best = rows.filter(pl.col("stage") == "search").sort("loss")["lr"][0]
    assert set(rows.filter(pl.col("trial") == "trunk")["lr"]) == {best}
    assert rows["attempts"].to_list() == [1] * rows.height
    assert set(Study(study).steps().filter(pl.col("run") == "n12").collect()["step"]) == set(range(1, 13))
    assert Study(study).evals().collect().height == 7
    assert len(pids) <= 2
    assert (told[-1].done, told[-1].diverged) == (6, 1)
    assert Study(study).meta["stages"]["search"]["role"] == "search"

    before, began = files(study), time.monotonic()
    sweep(space(*stages), study, cluster)
    assert files(study) == before
    assert time.monotonic() - began < 30


@pytest.mark.long
def test_a_model_that_raises_makes_a_failed_row_and_is_tried_again_by_the_next_sweep(
    cluster, study, tmp_path, monkeypatch
):
    monkeypatch.setattr(tuning, "RETRIES", 1)
    broken = tmp_path / "broken"
    broken.touch()
    options = {"model.factory": "fragile:Fragile", "model.options": {"broken": str(broken)}}
    for_good = {**options, "model.options": {"broken": str(broken), "for_good": True}}
    work = space(grid(run("fragile", options), run("for_good", for_good), run("sound")))
    with pytest.raises(ConfigError, match=r"fragile:Fragile.*--trust"):
        sweep(work, study, cluster)
    with pytest.raises(ConfigError, match=r"OSError: the disk is on fire \(at .*fragile.py:\d+\)"):
        sweep(work, study, cluster, trust=True)
    assert study.children() == []

    sweep(work, study, cluster, trust=True, skip_probe=["forward"])
    rows = {row["run"]: row for row in trials(study).to_dicts()}
    assert (rows["fragile"]["status"], rows["sound"]["status"]) == ("failed", "finished")
    assert rows["fragile"]["error"] == "OSError: the disk is on fire"
    assert rows["fragile"]["reason"] == rows["fragile"]["error"]
    assert rows["fragile"]["model"] == "fragile:Fragile"
    assert rows["fragile"]["attempts"] == 2
    assert rows["fragile"]["loss"] is None
    # What no attempt would get past is not tried again.
    assert rows["for_good"]["status"] == "failed"
    assert rows["for_good"]["error"] == "ConfigError: the disk is on fire"
    assert rows["for_good"]["attempts"] == 1

    broken.unlink()
    sound = files(study)[(study / "trials" / "sound.parquet").url]
    sweep(work, study, cluster, trust=True)
    assert trials(study)["status"].to_list() == ["finished"] * 3
    assert files(study)[(study / "trials" / "sound.parquet").url] == sound


def long_runs(count: int) -> list[Run]:
    return [run(f"long-{i}", seed=i, tokens=768 * LONG) for i in range(count)]


def test_trials_of_a_node_that_dies_are_tried_again_elsewhere(cluster, study, monkeypatch):
    killed, lost, found = [], [], tuning.ray_internals.node_lost
    monkeypatch.setattr(tuning.ray_internals, "node_lost", lambda *on: lost.append(found(*on)) or lost[-1])

    def kill(progress: SweepProgress) -> None:
        if not killed and len(progress.running) == 2 and min(progress.running.values()) > 0:
            killed.append(progress.done)
            cluster.kill_node(cluster.nodes[0])

    sweep(space(grid(*long_runs(4))), study, cluster, progress=kill)
    cluster.add_node()
    rows = trials(study)
    assert killed
    assert rows["status"].to_list() == ["finished"] * 4
    assert sorted(rows["attempts"])[-1] == 2
    assert set(lost) == {True}  # so no failure of the trial
    assert Study(study).steps().collect().height == 4 * LONG


@pytest.mark.campaign
def test_a_proxy_of_two_ranks_trains_on_two_nodes_as_one_of_one_does(cluster, study):
    two = run("two", workers=2, slots=12, checkpoint_every=6)
    one = run("one", slots=12)
    wild = run("wild", {"optimizer.lr": 50.0, "optimizer.clip": 1e6}, workers=2, slots=12)
    work = space(grid(two, one, wild))
    sweep(work, study, cluster)
    rows = {row["run"]: row for row in trials(study).to_dicts()}
    statuses = {name: row["status"] for name, row in rows.items()}
    assert statuses == {"one": "finished", "two": "finished", "wild": "diverged"}
    assert rows["two"]["workers"] == 2
    assert rows["two"]["loss"] == pytest.approx(rows["one"]["loss"], abs=1e-4)
    for column in ("params", "params_with_embeddings", "flops", "tokens"):
        assert rows["two"][column] == rows["one"][column]
    assert (rows["two"]["last_loss"], rows["two"]["reason"]) == (rows["two"]["loss"], None)
    assert rows["wild"]["reason"]
    assert math.isfinite(rows["wild"]["last_loss"])
    steps = Study(study).steps().filter(pl.col("run") == "two").collect()
    assert steps["workers"].to_list() == [2] * STEPS
    assert steps["world"].to_list() == [2] * STEPS
    before = files(study)
    sweep(work, study, cluster)
    assert files(study) == before


def test_more_ranks_than_the_cluster_has_are_refused(cluster, study):
    with pytest.raises(ConfigError, match="5 workers needs as many CPUs"):
        sweep(space(grid(run("five", workers=5, slots=12))), study, cluster)


def test_a_precision_that_needs_a_gpu_is_refused_before_anything_is_deleted(cluster, study):
    (study / "trials" / "kept.parquet").replace(b"of an earlier sweep")
    with pytest.raises(ConfigError, match='"tf32" needs a GPU'):
        sweep(space(grid(run("tf32", precision="tf32"))), study, cluster, fresh=True)
    assert (study / "trials" / "kept.parquet").read() == b"of an earlier sweep"


DRIVER = """
import sys
sys.path.insert(0, sys.argv[1])
import test_sweep
from froude.launch.cluster import connect
from froude.launch.sweep import sweep
from froude.store import Location
with connect(sys.argv[2]) as cluster:
    sweep(test_sweep.space(test_sweep.grid(*test_sweep.long_runs(5))), Location.parse(sys.argv[3]), cluster)
"""


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.mark.long
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "Ctrl-C"])
def test_a_sweep_whose_driver_has_ended_goes_on_where_it_was(cluster, study, tmp_path, end):
    log = (tmp_path / "driver.log").open("wb")
    command = [sys.executable, "-c", DRIVER, str(Path(__file__).parent), cluster.address, study.url]
    driver = subprocess.Popen(command, stdout=log, stderr=log)

    def some_are_done() -> bool:
        assert driver.poll() is None, (tmp_path / "driver.log").read_text()
        return len((study / "trials").children()) >= 2

    try:
        wait_for(some_are_done, 180)
        driver.send_signal(end)
        wait_for(lambda: driver.poll() is not None, 60)
    finally:
        driver.kill()
        driver.wait()
    before = files(study)
    done = set(trials(study)["run"])
    assert 2 <= len(done) < 5
    sweep(space(grid(*long_runs(5))), study, cluster)
    after = files(study)
    kept = [url for url in before if any(url.endswith(f"/{name}.parquet") for name in done)]
    assert {url: after[url] for url in kept} == {url: before[url] for url in kept}
    assert trials(study)["status"].to_list() == ["finished"] * 5


def test_code_that_was_edited_is_refused_then_trained_again(cluster, study, tmp_path):
    fragile = Path(importlib.util.find_spec("fragile").origin)
    settings = {"model.factory": "fragile:Fragile", "model.options": {"broken": str(tmp_path / "no")}}
    made = space(grid(run("own", settings)))
    sweep(made, study, cluster, trust=True)
    first = trials(study)
    fragile.write_text(FRAGILE + "\nEDITED = True\n")
    with pytest.raises(ConfigError, match="module fragile is"):
        sweep(made, study, cluster, trust=True)
    sweep(made, study, cluster, trust=True, rerun_changed=True)
    second = trials(study)
    assert second["loss"].to_list() == first["loss"].to_list()
    assert second["time"][0] > first["time"][0]
    assert second["material"][0] != first["material"][0]
    (retired,) = (study / "retired").children()
    assert trials(study / "retired" / retired).equals(first)


def test_commands_train_trials_on_one_node_and_on_two(cluster, study, monkeypatch, tmp_path):
    (tmp_path / "train.py").write_text(TRAINER.replace("STEPS", str(STEPS)))
    monkeypatch.chdir(tmp_path)
    command = ["{python}", "-I", "-S", "train.py"]
    trainers = {"pair": {"retries": 1, "nodes": 2}, "untried": {"retries": 0}}
    made = [run(name, trainer={"command": command, **changes}) for name, changes in trainers.items()]
    target = run("large", trainer={"command": command, "params": 1000})
    work = Space("tiny", 0, (grid(*made),), target)
    with pytest.raises(ConfigError, match=r"train.py; read what it runs, then pass --trust"):
        sweep(work, study, cluster)
    sweep(work, study, cluster, trust=True)
    rows = trials(study)
    assert rows.select("run", "status", "params", "attempts", "trainer").rows() == [
        ("pair", "finished", 200, 2, "external"),
        ("untried", "failed", None, 1, "external"),
    ]
    assert "was ended by signal 9" in rows["error"][1]
    assert (study / "external" / "pair" / "node-1" / "stdout.txt").exists()
    too_many = run("wide", trainer={"command": command, "nodes": 9})
    with pytest.raises(ConfigError, match=r"9 with 1 CPUs and 0 GPUs each, but the cluster has 2 such"):
        sweep(Space("tiny", 0, (grid(*made, too_many),), target), study, cluster, trust=True)


@pytest.mark.long
def test_jobs_by_a_shell_make_the_study_that_the_cluster_makes(cluster, study, monkeypatch, tmp_path):
    (tmp_path / "train.py").write_text(TRAINER.replace("STEPS", str(STEPS)))
    monkeypatch.chdir(tmp_path)
    command = ["{python}", "-I", "-S", "train.py"]
    tried = [run(f"s{seed}", seed=seed, trainer={"command": command, "retries": 1}) for seed in (1, 2)]
    work = Space("tiny", 0, (grid(*tried),), run("large", trainer={"command": command, "params": 1000}))
    sweep(work, study, cluster, trust=True)
    other, place = Location.parse(tmp_path / "other"), tmp_path / "jobs"
    jobs.write_jobs(open_study(work, other, trust=True, fresh=False), work, other, place)
    for _ in range(2):
        subprocess.run(["sh", "jobs.txt"], cwd=place, check=False)
        state = jobs.ingest(place)
    assert state.done == ["s1", "s2"]
    for frame in ("trials", "steps", "evals"):
        here, there = (getattr(Study(each), frame)().collect() for each in (study, other))
        kept = [name for name in here.columns if name not in ("time", "seconds")]
        assert here.select(kept).sort(pl.all()).equals(there.select(kept).sort(pl.all())), frame
