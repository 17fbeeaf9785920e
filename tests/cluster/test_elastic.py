"""An elastic run on real nodes: one is killed, one comes, one has to go; no token is lost or trained twice."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import psutil
import pytest

from froude.checkpoint.run_store import RunStore
from froude.checkpoint.tensors import digest
from froude.config import ConfigError, Run
from froude.launch.cluster import SimulatedCluster, simulated
from froude.launch.control_channel import ControlChannel
from froude.launch.elastic import ElasticResult, NoProgress, Progress, RunFailed, train
from froude.launch.step_trial import time_steps
from froude.runlog import LogReader
from froude.store import Location
from froude.study import Study
from froude.train.api import Unsupervised
from froude.train.worker import run_worker

RUN = Run(
    name="large",
    model={"width": 32},
    slots=12,
    reduction="exact",
    tokens=768 * 200,
    checkpoint_every=10,
    workers=(1, 3),
    schedule={"warmup_tokens": 768 * 10},
    eval_windows=64,
)


CRASHING = """
from froude.train.model import Transformer

class Crashing(Transformer):
    def forward(self, tokens):
        raise OSError("the disk is on fire")
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedCluster]:
    """Three nodes, whose processes can import `crashing` as the driver can."""
    modules = tmp_path_factory.mktemp("modules")
    (modules / "crashing.py").write_text(CRASHING)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(modules))
        with simulated(3, log_dir=tmp_path_factory.mktemp("logs")) as running:
            yield running


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(tmp_path_factory.mktemp("study"))


@dataclass
class Storm:
    """Kills a node; later adds one; then gives one notice that it will end. The run waits for the last two to be seen:

    so few steps are left that it might be done before.
    """

    cluster: SimulatedCluster
    channel: ControlChannel
    killed: bool = False
    added: bool = False
    drained: bool = False

    def __call__(self, now: Progress) -> None:
        share = now.step / now.steps
        if now.world == 3 and share >= 1 / 4 and not self.killed:
            self.killed = True
            self.cluster.kill_node(self.cluster.nodes[-1])
        if now.world == 2 and share >= 1 / 2 and not self.added:
            self.added = True
            self.channel.ask_to_hold(now.attempt)
            self.cluster.add_node()
        if now.world == 3 and share >= 3 / 4 and not self.drained:
            self.drained = True
            self.channel.ask_to_hold(now.attempt)
            self.cluster.drain_node(self.cluster.nodes[-1])


@pytest.fixture(scope="module")
def result(cluster: SimulatedCluster, study: Study) -> ElasticResult:
    storm = Storm(cluster, ControlChannel((study.location / "runs" / RUN.name).url))
    result = train(RUN, study.location, cluster=cluster, progress=storm)
    assert storm.killed
    assert storm.added
    assert storm.drained
    cluster.kill_node(cluster.nodes[-1])  # its time is up
    cluster.add_node()
    return result


def test_the_run_goes_on_with_whoever_is_left(result: ElasticResult) -> None:
    assert result.finished
    assert result.step == RUN.steps
    assert result.world_sizes == [3, 2, 3, 2]
    assert result.restarts == 3
    assert len(result.recovery_seconds) == 3
    assert all(seconds > 0 for seconds in result.recovery_seconds)


def test_neither_growth_nor_a_notice_repeats_a_step(study: Study, result: ElasticResult) -> None:
    attempts = study.commits().filter(run=RUN.name, kind="attempt").collect()
    for planned, share in ((attempts.row(2, named=True), 1 / 2), (attempts.row(3, named=True), 3 / 4)):
        beyond = (pl.col("attempt") == planned["attempt"] - 1) & (pl.col("step") > planned["step"])
        lost = study.ledger(all=True).filter(beyond, run=RUN.name)
        assert lost.collect().is_empty()
        assert planned["step"] >= share * RUN.steps


def test_each_token_entered_the_weights_once(study: Study, result: ElasticResult) -> None:
    from froude.promote.token_audit import token_account

    mine = pl.col("run") == RUN.name
    ledger = study.ledger().filter(mine).collect()
    slots = ledger.group_by("step", "slot").len()
    assert slots.height == RUN.steps * RUN.slots
    assert slots["len"].unique().to_list() == [1]
    tokens = token_account(study, RUN.name, RUN)
    assert (tokens.expected, tokens.skipped, tokens.repeated) == (RUN.tokens, 0, 0)
    steps = study.steps().filter(mine).sort("step").collect()
    assert steps["step"].to_list() == list(range(1, RUN.steps + 1))
    assert steps["world"].rle().struct.field("value").to_list() == [3, 2, 3, 2]


def test_it_has_the_bits_of_an_undisturbed_run(study: Study, result: ElasticResult, tmp_path: Path) -> None:
    """One worker in this process, from step 0 to the end: parameters, optimizer state and losses."""
    place = Location.parse(tmp_path) / "runs" / RUN.name
    store = RunStore(place, RUN.name)
    host = Unsupervised(attempt=store.open_attempt("recipe"))
    assert run_worker(RUN.replace(workers=1), store, host, device="cpu") == result.loss
    theirs = study.location / "runs" / RUN.name
    assert digest(place, LogReader(place).lineage()[-1]) == digest(theirs, LogReader(theirs).lineage()[-1])
    columns = ["step", "loss", "grad_norm"]
    ours, seen = (
        s.steps().filter(run=RUN.name).select(columns).sort("step").collect()
        for s in (Study(tmp_path), study)
    )
    assert ours.equals(seen)
    meta = LogReader(theirs).records()[-1].meta
    assert meta["build"]["threads"] == 1
    assert 0 < meta["matmul_error"]["relative"] < 1e-6


def test_a_finished_run_opens_no_attempt(
    cluster: SimulatedCluster, study: Study, result: ElasticResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = LogReader(study.location / "runs" / RUN.name).records()
    monkeypatch.setattr("froude.launch.elastic._fit", None)
    assert train(RUN, study.location, cluster=cluster) == result
    assert LogReader(study.location / "runs" / RUN.name).records() == before


DRIVER = """
import sys
from froude.config import Run
from froude.launch.cluster import connect
from froude.launch.elastic import train
from froude.store import Location

run = Run.from_toml(sys.stdin.read())
with connect(sys.argv[1]) as cluster:
    train(run, Location.parse(sys.argv[2]), cluster=cluster, progress=lambda now: print(now.step, flush=True))
"""


@pytest.mark.long
def test_a_killed_or_interrupted_driver_is_followed_by_another(
    cluster: SimulatedCluster, study: Study
) -> None:
    """On a living cluster, where the dead driver's reservation would block the next one for three minutes."""
    run = RUN.replace(name="driverless")
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, cluster.address, study.location.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        driver.stdin.write(run.to_toml())
        driver.stdin.close()
        for line in driver.stdout:
            if int(line) >= 2 * run.checkpoint_every:
                break
        driver.send_signal(signal.SIGKILL)
    assert driver.returncode == -signal.SIGKILL

    def interrupt(now: Progress) -> None:
        if now.attempt == 2 and now.step >= run.steps / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(run, study.location, cluster=cluster, progress=interrupt)
    assert "ray-train" not in {thread.name for thread in threading.enumerate()}
    result = train(run, study.location, cluster=cluster)
    assert result.finished
    assert result.restarts == 2
    assert result.world_sizes == [3, 3, 3]
    assert result.recovery_seconds == []  # nobody recovered by itself
    rows = study.ledger().filter(run=run.name).group_by("step", "slot").len().collect()
    assert rows.height == run.steps * run.slots
    assert rows["len"].unique().to_list() == [1]


WITH_HEAD = """
import sys
from pathlib import Path
from froude.config import Run
from froude.launch.cluster import simulated
from froude.launch.elastic import train
from froude.store import Location

run = Run.from_toml(sys.stdin.read())
with simulated(1, log_dir=Path(sys.argv[1])) as cluster:
    print(cluster.host_pid, flush=True)
    train(run, Location.parse(sys.argv[2]), cluster=cluster, progress=lambda now: print(now.step, flush=True))
"""


@pytest.mark.long
def test_a_dead_head_is_followed_by_another(cluster: SimulatedCluster, study: Study, tmp_path: Path) -> None:
    """The head dies, and the driver on it; the same call on another cluster goes on from the last commit."""
    run = RUN.replace(name="headless", tokens=768 * 80)
    place = study.location / "runs" / run.name
    with subprocess.Popen(
        [sys.executable, "-c", WITH_HEAD, str(tmp_path), study.location.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        driver.stdin.write(run.to_toml())
        driver.stdin.close()
        host = psutil.Process(int(driver.stdout.readline()))
        for line in driver.stdout:
            if int(line) >= 3 * run.checkpoint_every:
                break
        (head,) = (process for process in host.children() if process.name() == "gcs_server")
        head.kill()
        driver.kill()
        assert psutil.wait_procs([host], timeout=60)[0]  # the other node outlives its head by a moment
    last = LogReader(place).records()[-1]
    assert last.kind == "checkpoint"
    assert last.step >= 2 * run.checkpoint_every

    resumed = train(run, study.location, cluster=cluster)
    assert resumed.finished
    assert resumed.world_sizes == [1, 3]
    opened = LogReader(place).records()[last.seq + 1]
    assert (opened.kind, opened.attempt, opened.step) == ("attempt", 2, last.step)
    rows = study.ledger().filter(run=run.name).group_by("step", "slot").len().collect()
    assert rows.height == run.steps * run.slots
    assert rows["len"].unique().to_list() == [1]
    assert study.steps().filter(run=run.name).collect()["step"].sort().to_list() == list(
        range(1, run.steps + 1)
    )


@pytest.mark.long
def test_a_foreign_model_and_source_train_on_two_nodes(cluster: SimulatedCluster, study: Study) -> None:
    run = RUN.replace(
        {
            "name": "foreign",
            "tokens": 768 * 40,
            "workers": (1, 2),
            "model.factory": "foreign_model:factory",
            "data.source": "foreign_model:Counting",
            "parametrization": "sp",
            "optimizer.lr": 0.03,
            "schedule.warmup_tokens": 768,
        }
    )
    result = train(run, study.location, cluster=cluster, trust=True)
    assert result.world_sizes == [2]
    losses = study.steps().filter(run=run.name).sort("step").collect()["loss"]
    assert result.loss is not None
    assert result.loss < 1 < losses[0]
    assert study.ledger().filter(run=run.name).collect()["tokens"].sum() == run.tokens


@pytest.mark.long
def test_restarts_without_progress_end(cluster: SimulatedCluster, study: Study) -> None:
    run = RUN.replace({"name": "crashing", "model.factory": "crashing:Crashing"})
    with pytest.raises(ConfigError, match="trust"):
        train(run, study.location, cluster=cluster)
    with pytest.raises(NoProgress, match="1 restart in a row committed nothing; the last failed with: "):
        train(run, study.location, cluster=cluster, trust=True, no_progress=1)
    kinds = [record.kind for record in LogReader(study.location / "runs" / run.name).records()]
    assert set(kinds) == {"attempt"}
    assert len(kinds) <= 2


def test_what_no_restart_mends_ends_at_once(cluster: SimulatedCluster, study: Study) -> None:
    log = LogReader(study.location / "runs" / "hot")
    run = RUN.replace(
        {
            "name": "hot",
            "optimizer.lr": 1e30,
            "optimizer.clip": 1e30,
            "schedule.warmup_tokens": 0,
            "stability": "off",
        }
    )
    with pytest.raises(RunFailed, match="finite") as failed:
        train(run, study.location, cluster=cluster)
    assert failed.value.kind == "Diverged"
    assert sum(record.kind == "attempt" for record in log.records()) == 1


def test_a_run_goes_on_with_its_own_recipe_only(
    cluster: SimulatedCluster, study: Study, result: ElasticResult, tmp_path: Path
) -> None:
    shutil.copytree(study.location.path / "runs" / RUN.name, tmp_path / "runs" / RUN.name)
    commits = tmp_path / "runs" / RUN.name / "commits"
    max(commits.iterdir()).unlink()  # no longer finished
    with pytest.raises(ConfigError, match="must go on with the recipe that it began with"):
        train(RUN, Location.parse(tmp_path), cluster=cluster, recipe="another")


def test_a_cluster_without_gpus_cannot_serve_them(cluster: SimulatedCluster, study: Study) -> None:
    with pytest.raises(ConfigError, match="no node of the cluster has a GPU"):
        train(RUN.replace(name="gpu", device="cuda"), Location.parse(study.location), cluster=cluster)


@pytest.mark.campaign
def test_steps_are_timed_by_the_fewest_workers_and_by_the_most(cluster: SimulatedCluster) -> None:
    timed = time_steps(RUN, [768, 2304])
    assert [(each.workers, each.batch) for each in timed] == [(1, 768), (1, 2304), (3, 768), (3, 2304)]
    assert all(each.seconds > 0 for each in timed)
    with pytest.raises(ConfigError, match="room"):
        time_steps(RUN.replace(workers=(1, 12)), [768])
