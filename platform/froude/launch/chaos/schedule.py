"""Which failure strikes when: a pure function of the seed; nothing here acts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from froude.config import ConfigError
from froude.launch.chaos import KINDS

FIRST, LAST = 0.04, 0.94  # shares of the run between which failures strike
#: Each failure is followed by a commit before the next one strikes, which takes up to two intervals between them.
COMMITS = 2


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
    most = round((LAST - FIRST) * steps) // (COMMITS * checkpoint_every)
    if not most:
        raise ConfigError(
            f"chaos needs room for a failure and its recovery, but a run of {steps} steps with a checkpoint every "
            f"{checkpoint_every} has none; lower `checkpoint_every`, or take a longer run"
        )
    if not 1 <= failures <= most:
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
