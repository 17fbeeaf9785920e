"""Failures of what the run stands on: its S3 server, its disk, a clock; generators as in `processes`."""

from __future__ import annotations

import time

from froude.launch.chaos import clock
from froude.launch.chaos.life import lives
from froude.launch.chaos.scene import Act, Scene, choose, wait_for
from froude.s3 import READ_TIMEOUT_S

REQUESTS = 12  # refused in a burst; a client asks three times
HANG_SECONDS = READ_TIMEOUT_S + 5
FULL_SECONDS = 60.0
HOURS = (-30, -2, 3, 40)


def s3_5xx(scene: Scene, target: float) -> Act:
    """The server answers 503 to a burst of requests."""
    assert scene.proxy is not None
    proxy = scene.proxy
    scene.strike()
    proxy.refuse(REQUESTS)
    wait_for(lambda: not proxy.refusals, f"{REQUESTS} requests")
    yield f"{REQUESTS} requests refused"


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


def clock_jump(scene: Scene, target: float) -> Act:
    """A node's wall clock jumps by hours, forwards or back, and stays wrong."""
    node = choose(target, scene.life.nodes)
    hours = HOURS[int(target * 997) % len(HOURS)]
    scene.strike()
    clock.set_clock(node.raylet_pid, 3600 * hours)
    yield f"a node's clock by {hours:+d} h"


#: By kind of failure (`schedule.KINDS`).
INJECTORS = {
    "clock-jump": clock_jump,
    "s3-5xx": s3_5xx,
    "s3-hang": s3_hang,
    "disk-full": disk_full,
}
