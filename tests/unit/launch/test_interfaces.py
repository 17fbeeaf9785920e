"""Which interface the process groups of a worker use."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.train.torch import TorchConfig

from froude.launch.hosts import interfaces
from froude.launch.hosts.interfaces import GLOO, NCCL, NodeInterface, interface_of, use_node_interface


def card(*addresses: str) -> list[SimpleNamespace]:
    return [SimpleNamespace(address=address) for address in addresses]


CARDS = {
    "lo": card("127.0.0.1", "::1"),
    "docker0": card("172.17.0.1"),
    "eth0": card("02:fc:00:00:00:01", "10.0.0.7", "10.0.0.77", "fe80::1%eth0"),
}


@pytest.mark.parametrize(
    "address, name",
    [("10.0.0.7", "eth0"), ("10.0.0.77", "eth0"), ("fe80::1", "eth0"), ("127.0.0.1", "lo"), ("10.0.0.8", "")],
)
def test_the_interface_is_the_one_with_the_nodes_address(address: str, name: str) -> None:
    assert interface_of(address, CARDS) == name


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces.psutil, "net_if_addrs", lambda: CARDS)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.0.0.7")
    for name in (GLOO, NCCL):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)


def test_what_the_user_has_named_stays(variables: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NCCL, "ib0")
    use_node_interface()
    assert (os.environ[GLOO], os.environ[NCCL]) == ("eth0", "ib0")


def test_an_address_of_no_interface_leaves_the_choice_to_them(
    variables: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a simulated cluster, whose nodes have addresses that only the loopback device knows."""
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.3")
    use_node_interface()
    assert GLOO not in os.environ
    assert NCCL not in os.environ


def test_workers_choose_before_their_group_is_made(variables: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own backend makes it as soon as it starts."""
    theirs, seen = TorchConfig().backend_cls, list[str]()
    monkeypatch.setattr(theirs, "on_start", lambda *_: seen.append(os.environ[GLOO]))
    group: Any = SimpleNamespace(execute=lambda function: function())
    backend = NodeInterface(backend="gloo").backend_cls
    assert issubclass(backend, theirs)
    backend().on_start(group, None)
    assert seen == ["eth0"]
    assert os.environ[NCCL] == "=eth0"
