"""One session of recovery.py: a cluster, one run on it by one of the sides, and failures that it recovers from.

Run as `python _recovery_session.py SIDE STATE EVENTS SECONDS FOLDER SEED`; prints one JSON object a line: first the
process that owns the cluster, then each event's measures. No event begins when SECONDS have passed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from _recovery_sides import NODES, RUNS, SIDES, Ours, Row, Side, Stock, Watched

from froude.launch.cluster import NodeHandle, SimulatedCluster, simulated
from froude.store import Location

SETTLE_SECONDS = 6.0
WARM_TIMEOUT = 60.0
IMPORT_SECONDS = 2.0  # of CPU: a process that has used less has not imported what a worker needs
EVENT_TIMEOUT = 150.0
NOTICE_SECONDS = 20


def measure(rows: list[Row], at: float) -> dict[str, float | int | None]:
    """What an event cost; `seconds` is None while no step is new."""
    old = max(row.attempt for row in rows if row.time <= at)
    before = [row for row in rows if row.attempt <= old]
    after = [row for row in rows if row.attempt > old]
    reached = max(row.step for row in before)
    new = [row for row in after if row.step > reached]
    if not new:
        return {"seconds": None}
    return {
        "seconds": min(row.time for row in new) - at,
        "still": min(row.time for row in after) - max(row.time for row in before),
        "repeated": reached + 1 - min(row.step for row in after),
        "attempt": new[0].attempt,
        "world": new[0].world,
    }


def family(node: NodeHandle) -> list[psutil.Process]:
    raylet = psutil.Process(node.raylet_pid)
    return [raylet, *raylet.children(recursive=True)]


def titled(node: NodeHandle, title: str) -> list[psutil.Process]:
    found = []
    for process in family(node):
        try:
            if title in " ".join(process.cmdline()):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def drain(cluster: SimulatedCluster, node: NodeHandle) -> None:
    """Notice that the node will end, as a cloud gives it of a spot machine."""
    from ray._raylet import GcsClient
    from ray.core.generated import autoscaler_pb2

    reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    deadline = int(1000 * (time.time() + NOTICE_SECONDS))
    accepted, why = GcsClient(address=cluster.address).drain_node(node.node_id, reason, "notice", deadline)
    if not accepted:
        raise RuntimeError(f"the drain was refused: {why}")


def strike(cluster: SimulatedCluster, event: str) -> float:
    """Let the event happen to the newest node; the time at which it did."""
    if event == "added":
        cluster.add_node()
        return time.time()
    node = cluster.nodes[-1]
    victims = family(node)
    workers = titled(node, "RayTrainWorker")
    at = time.time()
    if event == "worker":
        workers[0].kill()
    elif event == "node":
        cluster.kill_node(node)
    elif event == "silent":
        for victim in victims:
            victim.send_signal(signal.SIGSTOP)
    elif event == "drain":
        drain(cluster, node)
    return at


def wait(ready: Callable[[], bool], watched: Watched, seconds: float) -> bool:
    """Whether it became ready in time; raises what ended the run."""
    until = time.monotonic() + seconds
    while not ready():
        if (error := watched.error()) is not None:
            raise RuntimeError("the run ended") from error
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def settle(cluster: SimulatedCluster, side: Side, watched: Watched, seconds: float = EVENT_TIMEOUT) -> None:
    """Wait until all nodes train, have written a checkpoint, and hold idle spares where there are some."""

    def trains() -> bool:
        rows = watched.rows()
        newest = [row for row in rows if row.attempt == rows[-1].attempt]
        return (
            bool(newest)
            and newest[-1].world == len(cluster.nodes)
            and newest[-1].step - newest[0].step > watched.run.checkpoint_every
            and newest[-1].time - newest[0].time > SETTLE_SECONDS
        )

    if not wait(lambda: bool(watched.rows()) and trains(), watched, seconds):
        raise RuntimeError(f"no settled run within {seconds} s; the newest rows: {watched.rows()[-3:]}")
    until = time.monotonic() + WARM_TIMEOUT
    while side.spares and time.monotonic() < until:
        spares = [titled(node, "ray::IDLE") for node in cluster.nodes]
        used = [max((sum(p.cpu_times()[:2]) for p in idle), default=0.0) for idle in spares]
        time.sleep(1.0)
        again = [max((sum(p.cpu_times()[:2]) for p in idle), default=0.0) for idle in spares]
        if all(b - a < 0.1 and b > IMPORT_SECONDS for a, b in zip(used, again, strict=True)):
            return


def observe(cluster: SimulatedCluster, side: Side, watched: Watched, event: str) -> dict[str, Any]:
    at = strike(cluster, event)
    recovered = wait(
        lambda: measure(watched.rows(), at)["seconds"] is not None, watched, EVENT_TIMEOUT + at - time.time()
    )
    if event in ("silent", "drain"):
        cluster.kill_node(cluster.nodes[-1])  # its time is up
    if not recovered:
        return {"event": event, "seconds": None}
    settle(cluster, side, watched)  # until then the first steps are committed
    rows = watched.rows(exact=True)
    found = measure(rows, at)
    return {"event": event, **found, "loop": watched.began(int(found["attempt"] or 0)) - at}


def checkpoint_seconds(watched: Watched) -> float:
    """Time between two checkpoints, as the newest steps go."""
    every = watched.run.checkpoint_every
    rows = watched.rows()[-every:]
    return every * (rows[-1].time - rows[0].time) / max(rows[-1].step - rows[0].step, 1)


def main() -> None:
    side, run, events = SIDES[sys.argv[1]], RUNS[sys.argv[2]], json.loads(sys.argv[3])
    until, folder, chance = (
        time.monotonic() + float(sys.argv[4]),
        Path(sys.argv[5]),
        random.Random(sys.argv[6]),
    )
    with simulated(NODES, log_dir=folder / "logs", knobs=side.knobs) as cluster:
        print(json.dumps({"host": cluster.host_pid}), flush=True)
        watched: Watched = (
            Stock(side, run, folder)
            if side.spares is None
            else Ours(side, run, cluster, Location.parse(folder) / "study")
        )
        settle(cluster, side, watched)
        for event in events:
            if event != "added" and len(cluster.nodes) < NODES:
                if side.resize is None:
                    break  # growth takes longer than another cluster
                cluster.add_node()
                settle(cluster, side, watched)
            if time.monotonic() > until:
                break
            time.sleep(chance.uniform(0, checkpoint_seconds(watched)))  # at any place between two checkpoints
            row = observe(cluster, side, watched, event)
            print(json.dumps(row), flush=True)
            if row["seconds"] is None:
                break
        shutil.rmtree(folder / "storage", ignore_errors=True)
        os._exit(0)  # the cluster ends with this process; a run in mid-flight would hold up a quiet end


if __name__ == "__main__":
    main()
