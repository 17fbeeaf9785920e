"""Ray clusters to run on: a simulated one of several nodes on this machine, or one that exists already."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from froude.launch.ray_internals import (
    FAST_KNOBS,
    coordinator_on_head,
    not_set_by_user,
    prepare_driver,
    silence_driver,
)
from froude.store import Location

OBJECT_STORE_BYTES = 80 * 2**20  # Ray refuses less than 75 MiB; froude sends nothing large through it
SOCKET_PATH_BYTES = 107  # sun_path of Linux, less the terminating zero
LONGEST_SOCKET = "/ray/session_2000-00-00_00-00-00_000000_0000000/sockets/plasma_store.00"
ANSWER_SECONDS = 5.0  # until a cluster takes a connection
START_SECONDS = 300.0  # for one node; Ray gives up earlier and says why
PREFIX = "froude-ray-"

ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",  # loopback only; a token file left by another Ray would lock job submission out
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE": "1",
    # What each node measures of itself for graphs that nobody looks at here: a fiftieth of two cores.
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
    "METRICS_RECORD_INTERVAL_S": "60",
    "RAY_metrics_report_interval_ms": "60000",
    "RAY_worker_register_timeout_seconds": "180",  # a busy laptop starts processes slowly
    "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
    # glibc otherwise gives each step's activations back to the kernel and faults them in again: 10 to 20% of a step at
    # widths up to 64.
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
    "MALLOC_TOP_PAD_": str(2**26),
}


@dataclass(frozen=True)
class NodeHandle:
    """One worker node of a simulated cluster."""

    node_id: str
    raylet_pid: int


@dataclass
class SimulatedCluster:
    """A head without CPUs and worker nodes, all on this machine, each with its own raylet.

    `nodes` lists the worker nodes that were started and not killed by `kill_node`. The methods may be called from any
    thread; they raise RuntimeError if the node can't be started or the process that owns the nodes is gone.
    """

    address: str
    dashboard: str
    host_pid: int
    nodes: list[NodeHandle]
    _channel: socket.socket
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add_node(self) -> NodeHandle:
        """Start one more worker node and wait until it is registered."""
        with self._lock:
            answer = _request(self._channel, op="add", count=1)
            (node,) = _handles(answer)
            self.nodes.append(node)
            return node

    def kill_node(self, node: NodeHandle) -> None:
        """SIGKILL the node's raylet and every process that it started, workers included."""
        with self._lock:
            _request(self._channel, op="kill", node_id=node.node_id)
            self.nodes.remove(node)

    def drain_node(self, node: NodeHandle, seconds: int = 20) -> None:
        """Give a node notice, as a cloud does of a spot machine; CalledProcessError if the head refuses.

        It ends by itself when the notice is over; `kill_node` makes sure of it.
        """
        words = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "notice"]
        words += ["--deadline-remaining-seconds", str(seconds)]
        command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--address", self.address]
        subprocess.run([*command, "--node-id", node.node_id, *words], check=True, capture_output=True)


@dataclass(frozen=True)
class ConnectedCluster:
    """A cluster that was there before this process and stays when it ends."""

    address: str


@contextmanager
def simulated(
    nodes: int,
    *,
    cpus_per_node: int = 1,
    log_dir: Path,
    knobs: Mapping[str, str] = FAST_KNOBS,
    node_environment: Mapping[str, str] | None = None,
) -> Iterator[SimulatedCluster]:
    """Start a head and `nodes` worker nodes on this machine, connect as driver, and remove all of it at exit.

    The nodes' processes are in a session of their own, which ends when this process does, however it does (exception,
    signal, SIGKILL). Ray's logs end up in `log_dir/ray`. `knobs` are environment variables for the cluster and, as long
    as it lives, for this process, unless the user has set them; `node_environment` are more for the worker nodes
    only, in which `{node}` stands for a number that no other node has. ValueError if `nodes` or `cpus_per_node` is
    below 1, RuntimeError (naming the log file) if the cluster doesn't start.
    """
    for name, value in (("nodes", nodes), ("cpus_per_node", cpus_per_node)):
        if value < 1:
            raise ValueError(f"a simulated cluster needs {name} >= 1, got {value}")
    log_dir.mkdir(parents=True, exist_ok=True)
    _remove_stale()
    with (
        environment({**not_set_by_user(knobs), **ENVIRONMENT}),
        sigterm_exits() as arm,
        _host(log_dir.resolve()) as (host, channel),
    ):
        import ray  # while the other process does the same

        given = {"object_store": OBJECT_STORE_BYTES, "environment": dict(node_environment or {})}
        started = _request(channel, op="start", cpus=cpus_per_node, **given)
        added = _request(channel, op="add", count=nodes)
        address = str(started["address"])
        try:
            _init(address)
            arm()  # ray.init replaces the handler
            yield SimulatedCluster(address, str(started["dashboard"]), host.pid, _handles(added), channel)
        finally:
            ray.shutdown()


def log_dir(location: Location) -> Path:
    """Where a simulated cluster's logs go: inside a local study, else in the working directory."""
    return location.path / "logs" if location.is_local else Path("logs") / location.name


@contextmanager
def connect(address: str | None = None) -> Iterator[ConnectedCluster]:
    """Connect this process as driver to an existing cluster: `address`, else RAY_ADDRESS, else one on this machine.

    SIGTERM, with which `ray job stop` ends a job, then interrupts as Ctrl-C does. Leaves a connection that this process
    had before as it was. ConnectionError if there is no such cluster.
    """
    import ray

    ours = not ray.is_initialized()
    with sigterm_exits(interrupt=True) as arm:
        try:
            if ours:
                _check_answers(address or os.environ.get("RAY_ADDRESS", ""))
                _init(address or "auto")
            arm()  # ray.init replaces the handler
            yield ConnectedCluster(str(ray.get_runtime_context().gcs_address))
        finally:
            if ours:
                ray.shutdown()


def _check_answers(address: str) -> None:
    """ConnectionError if nothing takes connections at this HOST:PORT: Ray goes on trying for more than seven minutes.

    Addresses of other forms are left to Ray.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in address or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:  # a port or a name that there can't be
        raise ConnectionError(f"nothing answers at {address}: {error}") from error


def _init(address: str) -> None:
    """Connect as driver, without Ray's and its workers' words on our terminal."""
    import ray

    prepare_driver()
    ray.init(address=address, namespace="froude", log_to_driver=False, logging_level=logging.ERROR)
    silence_driver()
    coordinator_on_head()


def _request(channel: socket.socket, **message: Any) -> dict[str, Any]:
    try:
        channel.sendall(json.dumps(message).encode() + b"\n")
    except OSError as error:  # a broken pipe: left as it is, it would be taken for that of a closed terminal
        raise RuntimeError(
            f"simulated cluster: the process that owns it ended before {message['op']}"
        ) from error
    answer = b""
    while not answer.endswith(b"\n"):
        received = channel.recv(1 << 16)
        if not received:
            raise RuntimeError(f"simulated cluster: the process that owns it ended during {message['op']}")
        answer += received
    decoded: dict[str, Any] = json.loads(answer)
    if "error" in decoded:
        raise RuntimeError(f"simulated cluster: {message['op']} failed: {decoded['error']}")
    return decoded


def _handles(answer: dict[str, Any]) -> list[NodeHandle]:
    return [NodeHandle(str(node["node_id"]), int(node["raylet_pid"])) for node in answer["nodes"]]


@contextmanager
def _host(log_dir: Path) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """The process that owns the cluster's processes; on leaving, all of them are gone."""
    temp = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_temp_root()))
    ours, theirs = socket.socketpair()
    ours.settimeout(START_SECONDS)
    script = Path(__file__).with_name("cluster_host.py")
    environment = {
        **os.environ,
        "RAY_TMPDIR": str(temp),  # keeps this cluster's current-cluster file away from those of others
        "PYTHONPATH": os.pathsep.join(_own_paths()),
    }
    environment.pop("RAY_ADDRESS", None)
    with ours, (log_dir / "cluster.log").open("wb") as log:
        with theirs, _locked(temp) as lock:  # the child's copy of the descriptor keeps the lock
            host = subprocess.Popen(
                [
                    *(sys.executable, "-P", str(script)),
                    *(str(theirs.fileno()), str(lock), str(temp), str(log_dir / "ray")),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=(theirs.fileno(), lock),
                start_new_session=True,
            )
        try:
            yield host, ours
        except RuntimeError as error:
            error.add_note(f"the cluster's log is {log_dir / 'cluster.log'}")
            raise
        finally:
            ours.close()
            try:
                host.wait(timeout=30)
            except subprocess.TimeoutExpired:
                family = [*psutil.Process(host.pid).children(recursive=True), host]
                for process in family:
                    process.kill()
                host.wait()
                shutil.rmtree(temp, ignore_errors=True)


def _own_paths() -> list[str]:
    """Where this process finds modules besides the interpreter's own places: the workers shall find the same."""
    installed = (sys.prefix, sys.base_prefix)
    return [os.path.abspath(path) for path in sys.path if path and not path.startswith(installed)]


def _temp_root() -> str:
    """The directory for temporary files, or /tmp where its name would make Ray's socket paths too long."""
    usual = tempfile.gettempdir()
    longest = len(f"{usual}/{PREFIX}00000000{LONGEST_SOCKET}".encode())
    return usual if longest <= SOCKET_PATH_BYTES else "/tmp"


@contextmanager
def _locked(temp: Path) -> Iterator[int]:
    """Mark a temporary directory as in use; BlockingIOError if it is. Yields the lock's descriptor."""
    lock = os.open(temp / "lock", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield lock
    finally:
        os.close(lock)


def _remove_stale() -> None:
    """Remove what clusters left in the temporary directory whose owner was killed."""
    for temp in Path(_temp_root()).glob(f"{PREFIX}*"):
        try:
            with _locked(temp):
                shutil.rmtree(temp, ignore_errors=True)
        except OSError:
            continue  # in use, another user's, or being removed


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables, and put the former ones back."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def sigterm_exits(*, interrupt: bool = False) -> Iterator[Callable[[], None]]:
    """Turn SIGTERM into SystemExit(143), so that clean-up runs, or into what Ctrl-C raises.

    Yields a function that installs the handler again.
    """

    def leave(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt if interrupt else SystemExit(128 + signal.SIGTERM)

    def arm() -> None:
        if main:
            signal.signal(signal.SIGTERM, leave)

    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    arm()
    try:
        yield arm
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)
