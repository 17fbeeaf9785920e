"""The driver of a run under chaos, in a process of its own, since it has to die with its head.

Run as `python -m froude.launch.chaos.driver`. Reads JSON lines: first the order (recipe, nodes, node_environment,
log_dir, trust), then requests (add, kill or drain, with a node_id). Writes JSON lines: the cluster's nodes after each
change, a beat whenever the run has moved, and at the end how it ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from froude.launch.cluster import SimulatedCluster, simulated
from froude.launch.control_channel import Beat, ControlChannel
from froude.launch.elastic import Progress, train
from froude.promote import recipe as recipes
from froude.runlog import LogReader
from froude.store import Location
from froude.sweep.preflight import cpus

Say = Callable[..., None]


def tell_nodes(say: Say, cluster: SimulatedCluster) -> None:
    """Say which nodes there are now."""
    say("nodes", host=cluster.host_pid, nodes=[asdict(node) for node in cluster.nodes])


def obey(cluster: SimulatedCluster, say: Say) -> None:
    """Change the cluster as the lines of standard input ask for."""
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["op"] == "add":
                cluster.add_node()
            else:
                (node,) = (node for node in cluster.nodes if node.node_id == request["node_id"])
                (cluster.kill_node if request["op"] == "kill" else cluster.drain_node)(node)
        except (RuntimeError, OSError, ValueError, subprocess.CalledProcessError) as error:
            say("refused", text=f"{request['op']}: {error}")
        tell_nodes(say, cluster)
    os.kill(os.getpid(), signal.SIGTERM)  # whoever conducts this has gone


def main() -> int:
    """Serve one conductor; 1 if the run did not finish."""
    # Whatever else writes to standard output goes where the errors go.
    channel, lock = os.fdopen(os.dup(1), "w"), threading.Lock()
    os.dup2(2, 1)

    def say(event: str, **content: Any) -> None:
        with lock:
            print(json.dumps({"event": event, **content}), file=channel, flush=True)

    order = json.loads(sys.stdin.readline())
    place = Location.parse(order["recipe"])
    recipe, study = recipes.read(place), place.parent
    of_run = ControlChannel((study / "runs" / recipe.run.name).url)
    last: Beat | None = None

    def watch(_: Progress) -> None:
        nonlocal last
        beat = of_run.beat()
        if beat is not None and beat != last:
            last = beat
            say("beat", **asdict(beat))

    with simulated(
        order["nodes"],
        cpus_per_node=cpus([recipe.run]),
        log_dir=Path(order["log_dir"]),
        node_environment=order["node_environment"],
    ) as cluster:
        tell_nodes(say, cluster)
        threading.Thread(target=obey, args=(cluster, say), daemon=True).start()
        try:
            train(
                recipe.run,
                study,
                cluster=cluster,
                recipe=recipe.sha256,
                trust=order["trust"],
                progress=watch,
            )
        except Exception as error:  # noqa: BLE001  how it ended is the conductor's to judge
            say("end", kind=getattr(error, "kind", "") or type(error).__name__, text=str(error))
            return 1
        head = LogReader(study / "runs" / recipe.run.name).head()
        if head is not None:  # its last steps may have passed between two looks
            say("beat", **asdict(Beat(head.attempt, head.world, head.step, time.time())))
        say("end", kind="finished", text="")
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # at a usual end Python would wait for the thread that waits for a line
