"""A cluster that has only its head yet is waited for, up to a time."""

from types import SimpleNamespace

import pytest

from froude.config import ConfigError, Run
from froude.launch import readiness
from froude.launch.commanded.nodes import check_room
from froude.space import Trial

HEAD = {"node:__internal_head__": 1.0, "memory": 2e10}


@pytest.fixture
def asked(monkeypatch):
    """What an autoscaler was asked for."""
    found = []
    monkeypatch.setattr("ray.autoscaler.sdk.request_resources", lambda bundles=None: found.append(bundles))
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(gcs_address="10.0.0.1:6379"))
    monkeypatch.setattr(readiness, "POLL_SECONDS", 0.0)
    return found


@pytest.mark.parametrize("come", [{"CPU": 8.0}, {"GPU": 1.0}])
def test_the_first_nodes_are_waited_for(asked, monkeypatch, capsys, come):
    seen = iter([HEAD, HEAD | {"CPU": 0.0}, HEAD, HEAD | come])
    monkeypatch.setattr("ray.cluster_resources", lambda: next(seen))
    readiness.wait_for_nodes(4)
    assert next(seen, None) is None
    assert capsys.readouterr().err == "froude: the cluster has no CPU or GPU yet: waiting for nodes\n"
    assert asked == [[{"CPU": 4}], None]


def test_a_cluster_with_nodes_is_not_waited_for(asked, monkeypatch, capsys):
    monkeypatch.setattr("ray.cluster_resources", lambda: HEAD | {"CPU": 1.0})
    readiness.wait_for_nodes()
    assert (asked, capsys.readouterr().err) == ([], "")


def test_nodes_that_never_come_are_an_error(asked, monkeypatch):
    monkeypatch.setattr("ray.cluster_resources", lambda: HEAD)
    monkeypatch.setattr(readiness, "NODES_SECONDS", 0.0)
    with pytest.raises(ConfigError, match=r"10.0.0.1:6379 has had none for 0 minutes; `ray status` says"):
        readiness.wait_for_nodes()
    assert asked[-1] is None


def commanded(nodes, cpus=8):
    trainer = {"command": ["true"], "nodes": nodes, "cpus": cpus, "gpus": 1}
    return [Trial("r", (Run(name="r", tokens=768, trainer=trainer),))]


def test_a_command_s_second_node_is_waited_for(asked, monkeypatch, capsys):
    """As `min_workers: 2` brings them: the first is there when the sweep begins."""
    head, node = ({"Alive": True, "Resources": have} for have in (HEAD, {"CPU": 8.0, "GPU": 1.0}))
    seen = iter([[head, node], [head, node], [head, node], [head, node, node]])
    monkeypatch.setattr("ray.nodes", lambda: next(seen))
    check_room(commanded(2), wait=True)
    assert next(seen, None) is None
    assert (
        "has 1 of the 2 nodes that a trial needs, with 8 CPUs and 1 GPUs each: waiting"
        in capsys.readouterr().err
    )
    assert asked == [[{"CPU": 8.0, "GPU": 1.0}] * 2, None]


@pytest.mark.parametrize("cpus, wait, seconds", [(8, False, 3600.0), (16, True, 3600.0), (8, True, 0.0)])
def test_a_command_without_its_nodes_is_refused(asked, monkeypatch, cpus, wait, seconds):
    """At once on a cluster that can't grow, and where no node has what it reserves; else in the end."""
    monkeypatch.setattr(readiness, "NODES_SECONDS", seconds)
    monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True, "Resources": {"CPU": 8.0, "GPU": 1.0}}])
    with pytest.raises(ConfigError, match=r"2 with .* each, but the cluster has [01] such; reserve less"):
        check_room(commanded(2, cpus), wait=wait)
