"""Exact runs on nodes that compute otherwise than one another, or than the run did: who is left out, who is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._private.state import state

from froude.checkpoint.run_store import RunStore
from froude.config import ConfigError, Run
from froude.launch.cluster import SimulatedCluster, simulated
from froude.launch.control_channel import ControlChannel
from froude.launch.elastic import Progress, train
from froude.launch.ray_internals.resizing import NODE_LABEL, PlannedResize
from froude.runlog import LogReader
from froude.store import Location

RUN = Run(
    name="large",
    model={"width": 32},
    slots=2,
    reduction="exact",
    tokens=768 * 20,
    workers=(1, 2),
    eval_windows=8,
    device="cpu",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedCluster]:
    """Two nodes, whose workers have different numbers of threads."""
    each = {"OMP_NUM_THREADS": "{node}", "ODD_HOST": "{node}"}
    with simulated(2, log_dir=tmp_path_factory.mktemp("logs"), node_environment=each) as running:
        yield running


def test_one_of_two_is_left_out_and_the_other_trains(cluster: SimulatedCluster, tmp_path: Path) -> None:
    seen: list[Progress] = []
    result = train(RUN, Location.parse(tmp_path), cluster=cluster, progress=seen.append)
    assert result.finished
    assert result.world_sizes == [1]
    (line,) = seen[-1].left_out
    addresses = [node["NodeManagerAddress"] for node in ray.nodes() if node["Resources"].get("CPU")]
    assert line.split(": ")[0] in [f"host {address}" for address in addresses]
    assert "its threads is" in line
    assert [record.kind for record in LogReader(Location.parse(tmp_path) / "runs/large").records()] == [
        "attempt",
        "finished",
    ]


def test_a_host_without_the_data_does_not_end_a_run(cluster: SimulatedCluster, tmp_path: Path) -> None:
    seen: list[Progress] = []
    run = RUN.replace({"reduction": "fast", "data.source": "odd_host:Mounted"})
    result = train(run, Location.parse(tmp_path), cluster=cluster, trust=True, progress=seen.append)
    assert result.finished
    assert result.world_sizes == [1]
    (line,) = seen[-1].left_out
    assert line.startswith("host 127.")
    assert "`data.path` must name at least one file, but '/data' has no file" in line


@pytest.mark.long
def test_a_run_that_went_elsewhere_ends_where_nobody_is_like_that(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    place = Location.parse(tmp_path) / "runs/large"
    RunStore(place, RUN.name).open_attempt(RUN.fingerprint, {"build": {"torch": "0.1", "threads": 1}})
    with pytest.raises(
        ConfigError, match=r"no host is left that may take part: host 127\..*torch is .* instead of '0.1'"
    ):
        train(RUN, Location.parse(tmp_path), cluster=cluster)
    assert len(LogReader(place).records()) == 1


@ray.remote(num_cpus=1)
class Worker:
    def begun(self) -> None:
        """It has its processor."""


@pytest.mark.parametrize("way", ["left out", "draining"])
def test_a_node_that_is_reserved_in_vain_does_not_hide_one_that_the_run_is_on(
    way: str, cluster: SimulatedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray reserves for as many workers as may be: if a node of no use is among them, one in use is not, nor is it free.

    A run would then never grow, or leave hosts idle at a start; which nodes those are depends on their random ids.
    """
    config = ray.train.ScalingConfig(num_workers=(1, 1), resources_per_worker={"CPU": 1})
    policy: Any = PlannedResize(config, ControlChannel(str(tmp_path)))
    policy.after_controller_start(SimpleNamespace(run_id=way))
    (reserved,) = policy._get_reserved_resources()
    (other,) = {node.node_id for node in cluster.nodes} - {reserved}
    worker = Worker.options(label_selector={NODE_LABEL: other}).remote()
    ray.get(worker.begun.remote(), timeout=60)
    if way == "draining":
        monkeypatch.setattr(state, "get_draining_nodes", lambda: {reserved: 0})
    else:
        policy.channel.leave_out({reserved: "it is unlike the others"})
    assert policy._count_possible_workers(policy._get_reserved_resources()) == 1
    ray.kill(worker)
    policy._cancel_resource_request()
