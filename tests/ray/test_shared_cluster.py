"""A cluster that somebody else uses, too: a run takes the places that are free, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from froude.config import Run
from froude.launch.cluster import SimulatedCluster, simulated
from froude.launch.elastic import train
from froude.store import Location

RUN = Run(
    name="large", model={"width": 32}, slots=3, tokens=1152 * 20, batch=1152, workers=(1, 3), eval_windows=8
)


@ray.remote(num_cpus=1)
class Notebook:
    """Holds a processor, of which Ray's autoscaling coordinator was never asked."""

    def begun(self) -> None:
        """It has its processor."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "5")  # for a place; it is a minute
        with simulated(3, log_dir=tmp_path_factory.mktemp("logs")) as running:
            yield running


def test_a_run_begins_where_there_is_room(cluster: SimulatedCluster, tmp_path: Path) -> None:
    other = Notebook.remote()
    ray.get(other.begun.remote(), timeout=60)
    result = train(RUN, Location.parse(tmp_path), cluster=cluster, spares=False)
    assert result.finished
    assert result.world_sizes == [2]
