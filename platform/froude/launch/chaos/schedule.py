"""Which failure strikes when: a pure function of the seed; nothing here acts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from froude.config import ConfigError

FIRST, LAST = 0.04, 0.94  # shares of the run between which failures strike
#: Each failure is followed by a commit before the next one strikes, which takes up to two intervals between them.
COMMITS = 2


@dataclass(frozen=True)
class Kind:
    """A kind of failure: what happens; how it changes the number of nodes (None: back to the first number); its needs.

    `restarts` says that no attempt outlives it; `needs` is s3, mount, compiler or nothing.
    """

    what: str
    nodes: int | None = 0
    restarts: bool = True
    needs: str = ""


KINDS: dict[str, Kind] = {
    "worker-kill": Kind("SIGKILL of a worker"),
    "worker-hang": Kind("SIGSTOP of a worker"),
    "node-kill": Kind("SIGKILL of a node's processes", nodes=-1),
    "node-drain": Kind("a node gets notice and ends", nodes=-1),
    "node-add": Kind("a node joins", nodes=1),
    "head-kill": Kind("SIGKILL of the head and the driver; the command is repeated", nodes=None),
    "kill-in-save": Kind("SIGKILL of all workers while a checkpoint's data is written"),
    "kill-before-record": Kind("SIGKILL of all workers between a checkpoint's data and its record"),
    "zombie": Kind("the whole cluster is suspended, another takes the run up, the first wakes", nodes=None),
    "flipped-byte": Kind("a byte of the newest checkpoint is flipped, then the workers are killed"),
    "clock-jump": Kind("the clock of a node jumps by hours", restarts=False, needs="compiler"),
    "s3-5xx": Kind("the store answers 503 to a burst of requests", restarts=False, needs="s3"),
    "s3-hang": Kind("the store does not answer for longer than a client waits", restarts=False, needs="s3"),
    "disk-full": Kind("the store's file system is full", restarts=False, needs="mount"),
}


@dataclass(frozen=True)
class Failure:
    """One failure: its kind, the step from which on it strikes, and a number from 0 to 1 that chooses its target."""

    step: int
    kind: str
    target: float


def schedule(
    seed: int,
    failures: int,
    kinds: Sequence[str],
    *,
    steps: int,
    checkpoint_every: int,
    nodes: int,
    least: int = 1,
) -> list[Failure]:
    """The failures of a run of `steps` steps on `nodes` nodes, which never leave fewer than `least` nodes.

    Kinds occur equally often as far as the number of nodes allows. ConfigError if the run is too short for this many
    failures, or if these kinds would leave too few nodes.
    """
    needed = failures * COMMITS * checkpoint_every
    if failures < 1 or needed > (LAST - FIRST) * steps:
        most = int((LAST - FIRST) * steps) // (COMMITS * checkpoint_every)
        raise ConfigError(
            f"a run of {steps} steps with a checkpoint every {checkpoint_every} has room for 1 to {most} failures, "
            f"but got --failures {failures}; use fewer, or a longer run"
        )
    random_ = random.Random(seed)
    width = (LAST - FIRST) * steps / failures
    chosen = _kinds(random_, failures, kinds, nodes, least)
    return [
        # Each in the first half of its share, so that what it costs falls into the same share.
        Failure(int(FIRST * steps + (i + random_.random() / 2) * width), kind, random_.random())
        for i, kind in enumerate(chosen)
    ]


def _kinds(random_: random.Random, failures: int, kinds: Sequence[str], nodes: int, least: int) -> list[str]:
    """At each place one of the kinds that may come there and came least often before."""
    counts = dict.fromkeys(kinds, 0)
    there, chosen = nodes, []
    for _ in range(failures):
        possible = [kind for kind in kinds if least <= _after(kind, there, nodes) <= nodes]
        if not possible:
            raise ConfigError(
                f"at least {least} of {nodes} nodes must be left, but --kinds {','.join(kinds)} only takes nodes away; "
                "add node-add, or use fewer failures"
            )
        fewest = min(counts[kind] for kind in possible)
        rarest = [kind for kind in possible if counts[kind] == fewest]
        # A node can be added only while one is missing, so that goes first.
        kind = random_.choice([kind for kind in rarest if KINDS[kind].nodes == 1] or rarest)
        counts[kind] += 1
        there = _after(kind, there, nodes)
        chosen.append(kind)
    return chosen


def _after(kind: str, there: int, nodes: int) -> int:
    change = KINDS[kind].nodes
    return nodes if change is None else there + change
