"""Where nothing answers at a cluster's address, a verb says so in seconds."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import ray

from froude.cli.common import cluster as any_cluster
from froude.config import ConfigError
from froude.launch import cluster
from froude.store import Location


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that Ray was asked to connect to."""
    found: list[str] = []

    def init(address: str) -> None:
        found.append(address)
        raise ConnectionError

    monkeypatch.setattr(cluster, "_init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    return found


@pytest.fixture
def closed() -> int:
    """A port of this machine that nothing listens at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "no-such-host.invalid", "." * 80])
@pytest.mark.parametrize("way", ["option", "environment"])
def test_ray_is_not_asked_where_nothing_listens(
    asked: list[str], closed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, way: str
) -> None:
    address = f"{host}:{closed}"
    monkeypatch.setenv("RAY_ADDRESS", address if way == "environment" else "")
    given, study = address if way == "option" else "", Location.parse(tmp_path)
    with (
        pytest.raises(ConfigError, match=r"a Ray cluster must answer at .*, but none does; start one"),
        any_cluster(given, 0, study, shared=False),
    ):
        pass
    assert asked == []


@pytest.mark.parametrize("address", ["auto", "local", "ray://127.0.0.1:1"])
def test_other_addresses_are_rays_to_judge(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConnectionError), cluster.connect(address):
        pass
    assert asked == [address]


def test_a_port_that_there_cannot_be_is_none_that_listens(asked: list[str]) -> None:
    with pytest.raises(ConnectionError, match="nothing answers at"), cluster.connect("127.0.0.1:99999"):
        pass
    assert asked == []


def test_a_cluster_that_listens_is_connected_to(asked: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        with pytest.raises(ConnectionError), cluster.connect(address):
            pass
    assert asked == [address]
