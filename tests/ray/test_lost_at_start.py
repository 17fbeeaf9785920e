"""Workers that are lost while their group begins: a failure like another, and nothing stays reserved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from waiting import wait_until

from froude.config import Run
from froude.launch.cluster import SimulatedCluster, simulated
from froude.launch.elastic import train
from froude.launch.ray_internals.trainer import ElasticTrainer
from froude.runlog import LogReader
from froude.store import Location

RUN = Run(name="large", model={"width": 32}, slots=2, tokens=768 * 20, workers=(2, 2), eval_windows=8)


class Once(WorkerGroupCallback):
    """Strikes the first group before its processes know of each other."""

    def __init__(self, strike: Callable[[Any], None]) -> None:
        self.strike, self.struck = strike, False

    def after_worker_group_start(self, worker_group: Any) -> None:
        if not self.struck:
            self.struck = True
            self.strike(worker_group)


def lose_one(group: Any) -> None:
    """Ray's own set-up of the process group, which comes next, meets a dead actor."""
    ray.kill(group.get_workers()[1].actor)


def see_it_from_a_peer(group: Any) -> None:
    """A worker is lost, and another is the first to say so."""
    ray.kill(group.get_workers()[1].actor)

    def peer() -> None:
        raise RuntimeError("connection closed by peer")

    group.execute_single(0, peer)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedCluster]:
    with simulated(2, log_dir=tmp_path_factory.mktemp("logs")) as running:
        yield running


@pytest.mark.parametrize("strike", [lose_one, pytest.param(see_it_from_a_peer, marks=pytest.mark.long)])
def test_the_run_goes_on_at_once_with_all_of_the_cluster(
    cluster: SimulatedCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    strike: Callable[[Any], None],
) -> None:
    theirs = ElasticTrainer._create_default_callbacks
    monkeypatch.setattr(
        ElasticTrainer, "_create_default_callbacks", lambda self: [Once(strike), *theirs(self)]
    )
    result = train(RUN, Location.parse(tmp_path), cluster=cluster, spares=False)
    assert result.finished
    assert result.world_sizes == [2]
    records = LogReader(Location.parse(tmp_path) / "runs" / RUN.name).records()
    assert [record.kind for record in records].count("attempt") == 1  # the first group made none
    # Actors end after the run, and raylets tell of it a moment later.
    assert wait_until(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"])
