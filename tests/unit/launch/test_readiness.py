"""A cluster that has only its head yet is waited for, up to a time."""

from types import SimpleNamespace

import pytest

from froude.config import ConfigError
from froude.launch import readiness

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
