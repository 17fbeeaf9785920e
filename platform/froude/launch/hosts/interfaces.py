"""By which network interface the workers of a run find each other: the one that has Ray's address of their node.

Otherwise gloo resolves the hostname, which is 127.0.1.1 on many Debian hosts, or nothing at all; NCCL takes the first
interface of the machine that is neither loopback nor a container's.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import psutil
from ray.train.torch import TorchConfig

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"


def interface_of(address: str, interfaces: Mapping[str, Sequence[Any]]) -> str:
    """Name of the interface with this address (as `psutil.net_if_addrs` lists them); empty if none has it."""
    for name, addresses in interfaces.items():
        if any(each.address.partition("%")[0] == address for each in addresses):
            return name
    return ""


def use_node_interface() -> None:
    """Let this process's gloo and NCCL use the interface of its node's address, unless the user has named one."""
    import ray

    if name := interface_of(ray.util.get_node_ip_address(), psutil.net_if_addrs()):
        os.environ.setdefault(GLOO, name)
        os.environ.setdefault(NCCL, f"={name}")  # without the sign NCCL takes every name that begins so


class NodeInterface(TorchConfig):
    """Ray's set-up of torch's process group, by that interface."""

    @property
    def backend_cls(self) -> Any:
        return _by_interface(super().backend_cls)


@functools.cache
def _by_interface(backend: Any) -> Any:
    """The backend, which first has each worker choose its interface: a group can be made as soon as it starts."""

    class ByInterface(backend):  # type: ignore[misc]
        def on_start(self, worker_group: Any, backend_config: Any) -> None:
            worker_group.execute(use_node_interface)
            super().on_start(worker_group, backend_config)

    return ByInterface
