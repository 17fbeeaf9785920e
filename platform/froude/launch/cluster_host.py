"""The process that owns the Ray processes of one simulated cluster (started by `froude.launch.cluster`).

It leads a session of its own, so neither Ctrl-C at the terminal nor anything that signals a process group reaches both
sides, and it lives exactly as long as its driver: it ends when the driver closes the socket, which the kernel does
for a driver that was killed. Ray's daemons get SIGKILL from the kernel when this process dies
(`PR_SET_PDEATHSIG`, set by Ray), and whatever they leave behind is adopted here (`PR_SET_CHILD_SUBREAPER`).

Run as `python -P cluster_host.py SOCKET LOCK TEMP LOGS`: the descriptors of a connected stream socket that carries one
JSON object a line and of a file whose lock says that TEMP is in use, and the place where Ray's logs shall end up.
Imports nothing of froude, so it works wherever `ray` does.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import select
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
from ray.cluster_utils import Cluster

T = TypeVar("T")

PR_SET_CHILD_SUBREAPER = 36
START_ATTEMPTS = 4
LOOPBACK = "127.0.0.1"
# Each node gets an address of its own in 127/8, all of which Linux routes to the loopback device: nothing is reachable
# from outside, and node ranks are as on real nodes. 127.0.0.1 itself won't do, since Ray replaces it by the machine's.
FIRST_NODE = 2


def free_port() -> int:
    """A TCP port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def kill_all(processes: list[psutil.Process]) -> None:
    """SIGKILL each process and wait until none is left."""
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes, timeout=10)


def kill_descendants() -> None:
    """SIGKILL every descendant of this process, again until no new one appears."""
    me = psutil.Process()
    for _ in range(20):
        children = me.children(recursive=True)
        if not children:
            return
        kill_all(children)
    raise RuntimeError(
        f"processes that outlive SIGKILL: {[child.pid for child in me.children(recursive=True)]}"
    )


def patiently(start: Callable[[], T]) -> T:
    """Start a node; once more where Ray's own 30 seconds were not enough, after killing what the first try left."""
    for attempt in range(START_ATTEMPTS):
        before = set(psutil.Process().children(recursive=True))
        try:
            return start()
        except Exception as error:
            # Ray says "timed out during startup" with a plain Exception.
            if type(error) is not Exception or attempt == START_ATTEMPTS - 1:
                raise
            logging.exception("a node did not start; trying again")
            kill_all([child for child in psutil.Process().children(recursive=True) if child not in before])
    raise AssertionError("unreachable")


class ClusterHost:
    """A `ray.cluster_utils.Cluster` and the nodes that were added to it."""

    def __init__(self, temp: Path, cpus: int, object_store: int, environment: dict[str, str]) -> None:
        self.object_store = object_store
        self.environment = environment  # of the worker nodes; `{node}` stands for the node's number
        self.cpus = cpus
        self.nodes: dict[str, Any] = {}
        self.started = 0
        self.cluster = patiently(lambda: Cluster(initialize_head=True, head_node_args=self._head_args(temp)))

    def start(self) -> dict[str, Any]:
        head = self.cluster.head_node
        return {
            "address": self.cluster.address,
            "head": self._describe(head),
            "dashboard": self.cluster.webui_url,
        }

    def add(self, count: int) -> dict[str, Any]:
        """Start `count` worker nodes; each is registered when Ray returns it."""
        added = []
        for _ in range(count):
            node = patiently(lambda: self.cluster.add_node(wait=False, **self._worker_args()))
            self.nodes[node.node_id] = node
            added.append(self._describe(node))
        return {"nodes": added}

    def kill(self, node_id: str) -> dict[str, Any]:
        """SIGKILL a worker node's raylet and everything that it started, as a power cut would."""
        node = self.nodes.pop(node_id)
        try:
            raylet = psutil.Process(self._describe(node)["raylet_pid"])
            victims = [raylet, *raylet.children(recursive=True)]
        except psutil.NoSuchProcess:  # it has ended by itself, as after a drain notice
            victims = []
        for victim in victims:
            try:
                victim.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(victims, timeout=10)
        self.cluster.worker_nodes.discard(node)
        return {"killed": [victim.pid for victim in victims]}

    def _head_args(self, temp: Path) -> dict[str, Any]:
        return {
            **self._node_args(),
            "num_cpus": 0,
            "temp_dir": str(temp / "ray"),
            # A scheduler that stops a trial early needs the State API, which the dashboard serves.
            "include_dashboard": True,
            "dashboard_host": LOOPBACK,
            "dashboard_port": free_port(),
            "dashboard_agent_listen_port": 0,
        }

    def _node_args(self) -> dict[str, Any]:
        number = FIRST_NODE + self.started
        self.started += 1
        address = f"127.0.{number // 250}.{number % 250}" if sys.platform == "linux" else None
        return {"object_store_memory": self.object_store, "node_ip_address": address}

    def _worker_args(self) -> dict[str, Any]:
        number = self.started
        own = {name: value.format(node=number) for name, value in self.environment.items()}
        # Each node of a machine unpacks a job's working directory anew, deleting what is there: in a folder that nodes
        # share (Ray's default, a session's), it would go away under the job's driver.
        folder = f"runtime_resources_{number}"
        return {**self._node_args(), "num_cpus": self.cpus, "env_vars": own, "runtime_env_dir_name": folder}

    @staticmethod
    def _describe(node: Any) -> dict[str, Any]:
        return {"node_id": node.node_id, "raylet_pid": node.all_processes["raylet"][0].process.pid}


def reap() -> None:
    """Collect exited children, Ray's own Popen objects aside (they poll for theirs)."""
    for child in psutil.Process().children():
        try:
            if child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)
        except (psutil.NoSuchProcess, ChildProcessError):
            continue


def serve(channel: socket.socket, temp: Path, parent: int) -> None:
    """Answer the driver's requests until it says stop, closes its end, or dies."""
    host: ClusterHost | None = None
    pending = b""
    while os.getppid() == parent:
        readable, _, _ = select.select([channel], [], [], 1.0)
        reap()
        if not readable:
            continue
        received = channel.recv(1 << 16)
        if not received:
            return
        pending += received
        while b"\n" in pending:
            line, pending = pending.split(b"\n", 1)
            request = json.loads(line)
            operation = request.pop("op")
            try:
                if operation == "start":
                    host = ClusterHost(temp, **request)
                    answer = host.start()
                else:
                    assert host is not None
                    answer = host.add(**request) if operation == "add" else host.kill(**request)
            except (RuntimeError, OSError, psutil.Error) as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            channel.sendall(json.dumps(answer).encode() + b"\n")


def main() -> None:
    """Serve one driver, then end all that was started for it."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    os.set_inheritable(int(sys.argv[2]), False)
    temp, keep = Path(sys.argv[3]), Path(sys.argv[4])
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        serve(channel, temp, parent)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        kill_descendants()
        shutil.rmtree(keep, ignore_errors=True)
        for logs in (temp / "ray").glob("session_2*/logs"):
            shutil.copytree(logs, keep, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(temp, ignore_errors=True)
    os._exit(0)  # Ray's exit hooks would look for the processes that are gone


if __name__ == "__main__":
    main()
