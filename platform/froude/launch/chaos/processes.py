"""Failures of workers, nodes, the head and whole clusters: real signals to real processes."""

from __future__ import annotations

import signal

from froude.launch.chaos.kind import Kind
from froude.launch.chaos.life import END_SECONDS, send
from froude.launch.chaos.scene import Act, NotInjected, Scene, choose, wait_for


def worker_kill(scene: Scene, target: float) -> Act:
    """SIGKILL of a worker."""
    workers = scene.life.workers()
    victim = choose(target, workers)
    scene.strike()
    send([victim], signal.SIGKILL)
    yield f"one of {len(workers)} workers"


WORKER_KILL = Kind("worker-kill", "SIGKILL of a worker", worker_kill)


def worker_hang(scene: Scene, target: float) -> Act:
    """SIGSTOP of a worker."""
    workers = scene.life.workers()
    victim = choose(target, workers)
    scene.strike()
    send([victim], signal.SIGSTOP)
    yield f"one of {len(workers)} workers"
    send([victim], signal.SIGKILL)  # the run has gone on without it; Ray has killed it where it looked


WORKER_HANG = Kind("worker-hang", "SIGSTOP of a worker", worker_hang)


def node_kill(scene: Scene, target: float) -> Act:
    """SIGKILL of a node's raylet and all that it started."""
    before = len(scene.life.nodes)
    node = choose(target, scene.life.nodes)
    scene.strike()
    scene.life.request("kill", node)
    yield f"one of {before} nodes"


NODE_KILL = Kind("node-kill", "SIGKILL of a node's processes", node_kill, nodes=-1)


def node_drain(scene: Scene, target: float) -> Act:
    """Twenty seconds' notice; then the node ends."""
    before = len(scene.life.nodes)
    node = choose(target, scene.life.nodes)
    scene.strike()
    scene.life.request("drain", node)
    yield f"one of {before} nodes"
    scene.life.request("kill", node)  # its time is up
    wait_for(lambda: node not in scene.life.nodes, "the drained node to end")


NODE_DRAIN = Kind("node-drain", "a node gets notice and ends", node_drain, nodes=-1)


def node_add(scene: Scene, target: float) -> Act:
    """A node joins."""
    before = len(scene.life.nodes)
    scene.strike()
    scene.life.request("add")
    wait_for(lambda: len(scene.life.nodes) > before or scene.life.refused, "a new node")
    if scene.life.refused:
        raise NotInjected(scene.life.refused.pop())
    yield f"added to {before} nodes"


NODE_ADD = Kind("node-add", "a node joins", node_add, nodes=1)


def head_kill(scene: Scene, target: float) -> Act:
    """SIGKILL of the head's processes and of the driver; the same is begun again on another head."""
    lost = scene.life
    scene.strike()
    send(lost.head(), signal.SIGKILL)
    scene.begin()
    yield "the head, its daemons and the driver"
    lost.close()
    scene.lives.remove(lost)


HEAD_KILL = Kind(
    "head-kill", "SIGKILL of the head and the driver; the command is repeated", head_kill, nodes=None
)


def zombie(scene: Scene, target: float) -> Act:
    """The whole cluster is suspended, another takes the run up; then the first wakes, and must end as fenced."""
    suspended = scene.life
    family = suspended.family()
    scene.strike()
    send(family[::-1], signal.SIGSTOP)  # the workers first: nothing shall notice that they stand still
    scene.begin()
    try:
        yield f"{len(family)} processes"
    finally:
        send(family, signal.SIGCONT)
    try:
        wait_for(suspended.over, "the woken driver to find itself superseded", seconds=END_SECONDS)
    finally:
        suspended.close()
        scene.lives.remove(suspended)
    kind, text = suspended.end or ("nothing", "it ended without saying why")
    if kind != "Fenced":
        raise NotInjected(f"the woken driver had to end as fenced, but ended with {kind}: {text}")


ZOMBIE = Kind(
    "zombie",
    "the whole cluster is suspended, another takes the run up, the first wakes",
    zombie,
    nodes=None,
    clusters=2,
)
