"""Failures of what the run stands on: its S3 server, its disk, a clock; and what stands in their place for that."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from froude.config import Run
from froude.launch.chaos import clock
from froude.launch.chaos.kind import Kind, Need
from froude.launch.chaos.life import lives
from froude.launch.chaos.s3_proxy import S3Proxy
from froude.launch.chaos.scene import Act, Scene, choose, wait_for
from froude.launch.chaos.small_disk import SmallDisk
from froude.s3 import READ_TIMEOUT_S, Settings
from froude.store import Location

REQUESTS = 12  # refused in a burst; a client asks three times
HANG_SECONDS = READ_TIMEOUT_S + 5
FULL_SECONDS = 60.0
HOURS = (-30, -2, 3, 40)
CAP_SYS_ADMIN = 1 << 21


def no_proxy(place: Location) -> str:
    """What a study lacks for a proxy before its S3 server."""
    if place.is_local:
        return f"needs a study on S3, but this one is local ({place}); pass --out s3://bucket/prefix"
    endpoint = Settings.from_environment().endpoint or ""
    if not endpoint.startswith("http://"):
        return (
            f"puts a proxy before the S3 server, which needs AWS_ENDPOINT_URL=http://host:port, but it is "
            f"{endpoint or 'not set'}"
        )
    return ""


@contextmanager
def proxied(scene: Scene) -> Iterator[None]:
    """The run's requests to its S3 server go through a proxy."""
    with S3Proxy(Settings.from_environment().endpoint or "") as proxy:
        scene.proxy = proxy
        scene.environment |= {"AWS_ENDPOINT_URL": proxy.url, "AWS_ENDPOINT_URL_S3": proxy.url}
        yield


#: Wherever it can be had, since it also sees what is being uploaded.
PROXY = Need(no_proxy, proxied, always=True)


def s3_5xx(scene: Scene, target: float) -> Act:
    """The server answers 503 to a burst of requests."""
    assert scene.proxy is not None
    proxy = scene.proxy
    scene.strike()
    proxy.refuse(REQUESTS)
    wait_for(lambda: not proxy.refusals, f"{REQUESTS} requests")
    yield f"{REQUESTS} requests refused"


S3_5XX = Kind("s3-5xx", "the store answers 503 to a burst of requests", s3_5xx, restarts=False, needs=PROXY)


def s3_hang(scene: Scene, target: float) -> Act:
    """The server accepts requests and answers none, for longer than a client waits."""
    assert scene.proxy is not None
    proxy = scene.proxy
    proxy.hang()
    try:
        wait_for(lambda: proxy.held, "a request")
        scene.strike()
        time.sleep(HANG_SECONDS)  # the failure's own length: longer than a client waits
    finally:
        proxy.flow()
    yield f"{proxy.held} requests held"


S3_HANG = Kind(
    "s3-hang",
    "the store does not answer for longer than a client waits",
    s3_hang,
    restarts=False,
    needs=PROXY,
)


def no_mount(place: Location) -> str:
    """What a study lacks for a small file system of its own."""
    if not place.is_local:
        return "needs a study on a local disk; pass --out with a path"
    if not sys.platform.startswith("linux") or not shutil.which("mount") or not may_mount():
        return (
            "mounts a small file system for the study, which needs root on Linux; run as root or leave it out"
        )
    return ""


def may_mount() -> bool:
    """Whether this process may mount a file system."""
    status = Path("/proc/self/status").read_text()
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return os.geteuid() == 0 and bool(int(effective, 16) & CAP_SYS_ADMIN)


@contextmanager
def on_small_disk(scene: Scene) -> Iterator[None]:
    """The run's directory is a file system of its own."""
    with SmallDisk(scene.place.path, disk_bytes(scene.run)) as disk:
        scene.disk = disk
        yield


def disk_bytes(run: Run) -> int:
    """Room for the checkpoints that a run keeps and a few more (fp32: a parameter and two moments), and its tables."""
    from froude.train.api import build_model, count_parameters

    parameters = count_parameters(build_model(run, "meta")).params_with_embeddings
    kept = run.keep_checkpoints or run.steps // run.checkpoint_every
    return 2**26 + 12 * parameters * (kept + 4)


SMALL_DISK = Need(no_mount, on_small_disk)


def disk_full(scene: Scene, target: float) -> Act:
    """No byte is free until a worker has failed of it."""
    assert scene.disk is not None
    workers = scene.life.workers()
    scene.strike()
    scene.disk.fill()
    try:
        wait_for(
            lambda: not all(lives(worker) for worker in workers),
            "a save that fails",
            seconds=FULL_SECONDS,
        )
    finally:
        scene.disk.free()
    yield f"until one of {len(workers)} workers failed"


DISK_FULL = Kind("disk-full", "the store's file system is full", disk_full, restarts=False, needs=SMALL_DISK)


def no_clocks(place: Location) -> str:
    """What a study lacks for nodes whose clocks can be set."""
    if not place.is_local:
        return "needs a study on a local disk: an S3 server refuses what a clock that is hours off has signed"
    if not sys.platform.startswith("linux") or not shutil.which("cc"):
        return "needs a C compiler on Linux; install one (Debian, Ubuntu: apt install gcc libc6-dev) or leave it out"
    return ""


@contextmanager
def with_clocks(scene: Scene) -> Iterator[None]:
    """Each node's wall clock can be set."""
    with TemporaryDirectory(prefix="froude-clocks-") as folder:
        scene.environment |= clock.preload(Path(folder))
        scene.order["node_environment"] = clock.node_clock(Path(folder))
        yield


CLOCKS = Need(no_clocks, with_clocks)


def clock_jump(scene: Scene, target: float) -> Act:
    """A node's wall clock jumps by hours, forwards or back, and stays wrong."""
    node = choose(target, scene.life.nodes)
    hours = HOURS[int(target * 997) % len(HOURS)]
    scene.strike()
    clock.set_clock(node.raylet_pid, 3600 * hours)
    yield f"a node's clock by {hours:+d} h"


CLOCK_JUMP = Kind(
    "clock-jump", "the clock of a node jumps by hours", clock_jump, restarts=False, needs=CLOCKS
)
