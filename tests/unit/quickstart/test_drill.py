"""The failure drill kills one node and adds one, at the right steps, once each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from froude.launch.elastic import Progress
from froude.quickstart.drill import Drill


@dataclass
class Nodes:
    nodes: list[str] = field(default_factory=lambda: ["a", "b", "c"])
    log: list[str] = field(default_factory=list)

    def kill_node(self, node: str) -> None:
        self.nodes.remove(node)
        self.log.append(f"kill {node}")

    def add_node(self) -> str:
        self.nodes.append("d")
        self.log.append("add d")
        return "d"


def drill(cluster: Any, **settings: Any) -> Drill:
    return Drill(cluster, say=lambda _: None, **settings)


def test_one_node_dies_and_one_comes() -> None:
    cluster, log = Nodes(), []
    ours = drill(cluster)
    for step, world in (
        (0, 0),
        (10, 3),
        (32, 3),
        (34, 3),
        (36, 3),
        (60, 2),
        (61, 2),
        (70, 2),
        (75, 3),
        (99, 3),
    ):
        ours(Progress(step, 100, world, 1))
        log.append((step, len(cluster.log)))
    assert cluster.log == ["kill c", "add d"]
    assert next(step for step, n in log if n == 1) == 34
    assert next(step for step, n in log if n == 2) == 60


def test_the_kill_waits_for_all_nodes() -> None:
    cluster = Nodes()
    ours = drill(cluster)
    ours(Progress(50, 100, 2, 1))
    assert cluster.log == []
    ours(Progress(51, 100, 3, 2))
    assert cluster.log == ["kill c"]


def test_no_node_comes_before_the_run_went_on_without_the_lost_one() -> None:
    cluster = Nodes()
    ours = drill(cluster)
    ours(Progress(80, 100, 3, 1))
    ours(Progress(81, 100, 3, 1))  # the old attempt's last beat
    assert cluster.log == ["kill c"]
    ours(Progress(81, 100, 2, 2))
    assert cluster.log == ["kill c", "add d"]


def test_a_run_whose_kill_is_behind_it_is_left_alone() -> None:
    cluster = Nodes()
    ours = drill(cluster, killed=True, added=True)
    for step in (10, 50, 90):
        ours(Progress(step, 100, 3, 4))
    assert cluster.log == []


@pytest.mark.parametrize("add_at", [0.4, 0.9])
def test_the_shares_can_be_chosen(add_at: float) -> None:
    cluster = Nodes()
    ours = drill(cluster, kill_at=0.1, add_at=add_at)
    ours(Progress(10, 100, 3, 1))
    ours(Progress(int(100 * add_at) - 1, 100, 2, 2))
    assert cluster.log == ["kill c"]
    ours(Progress(int(100 * add_at), 100, 2, 2))
    assert cluster.log == ["kill c", "add d"]
