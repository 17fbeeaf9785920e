"""Spares where there is memory; at once where a core is idle; and which hosts share a study."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from froude.config import ConfigError, Run
from froude.launch import readiness
from froude.launch.cluster import NodeHandle, SimulatedCluster
from froude.launch.readiness import BUSY_SECONDS, spares_after
from froude.store import Location

RUN = Run(tokens=768, workers=(1, 3))
NODES = 3


@pytest.fixture
def cluster() -> SimulatedCluster:
    nodes = [NodeHandle(str(i), i) for i in range(NODES)]
    return SimulatedCluster("address", "", 0, nodes, socket.socket())


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(readiness, "cores", lambda: NODES + 1)
    monkeypatch.setattr(readiness, "free_memory", lambda: 2**40)
    return monkeypatch


def test_with_memory_and_an_idle_core_at_once(cluster: SimulatedCluster, machine: pytest.MonkeyPatch) -> None:
    assert spares_after(RUN, cluster) == 0


def test_with_busy_cores_late(cluster: SimulatedCluster, machine: pytest.MonkeyPatch) -> None:
    machine.setattr(readiness, "cores", lambda: NODES)
    assert spares_after(RUN, cluster) == BUSY_SECONDS
    assert spares_after(RUN, cluster, wanted=True) == 0


def test_without_memory_never(cluster: SimulatedCluster, machine: pytest.MonkeyPatch) -> None:
    needed = NODES * (readiness.worker_bytes(RUN) + readiness.PROCESS_BYTES)
    machine.setattr(readiness, "free_memory", lambda: needed)
    assert spares_after(RUN, cluster) is None
    machine.setattr(readiness, "free_memory", lambda: needed + 1)
    assert spares_after(RUN, cluster) == 0


def test_as_wanted(
    cluster: SimulatedCluster, machine: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spares_after(RUN, cluster, wanted=False) is None
    machine.setattr(readiness, "free_memory", lambda: 0)
    assert spares_after(RUN, cluster, wanted=True) == 0
    monkeypatch.setattr(readiness.ray_internals, "supported", lambda: False)
    assert spares_after(RUN, cluster, wanted=True) is None


def nodes(*addresses: str) -> list[dict[str, Any]]:
    return [{"NodeManagerAddress": address, "Alive": not address.endswith(".9")} for address in addresses]


def test_a_local_study_is_for_one_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    place = Location.parse(tmp_path)
    monkeypatch.setattr(ray, "nodes", lambda: nodes("10.0.0.1", "10.0.0.2"))
    with pytest.raises(
        ConfigError, match=r"all 2 hosts of the cluster can write, but .* is a local path; use an s3"
    ):
        readiness.check_shared(place, shared=False)
    readiness.check_shared(place, shared=True)
    readiness.check_shared(Location.parse("s3://bucket/study"), shared=False)
    for alone in (nodes("10.0.0.1", "10.0.0.9"), nodes("127.0.0.1", "127.0.0.2")):
        monkeypatch.setattr(ray, "nodes", lambda alone=alone: alone)
        readiness.check_shared(place, shared=False)
