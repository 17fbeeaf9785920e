"""What a kind of failure is: how it is told and scheduled, what it needs round the run, how it is brought about."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from froude.launch.chaos.scene import Act, Scene
from froude.store import Location


@dataclass(frozen=True)
class Need:
    """What must stand round a run before some failure can strike.

    `missing(place)` is what a study at `place` lacks for it, with the remedy; "" where nothing. `around(scene)` is
    entered before the first driver starts, and left when the last has ended. `always`: entered wherever it can be had,
    whatever the kinds.
    """

    missing: Callable[[Location], str]
    around: Callable[[Scene], AbstractContextManager[object]]
    always: bool = False


@dataclass(frozen=True)
class Kind:
    """A kind of failure: what happens, and how it is carried out.

    `act(scene, target)` is a generator: what comes before its `yield` brings the failure about, what follows is done
    once the run has recovered, and it yields what was struck. By how many it changes the `nodes` (None: to as many as
    at first); `restarts` says that no attempt outlives it; `clusters` is how many there are of them at once.
    """

    name: str
    what: str
    act: Callable[[Scene, float], Act]
    nodes: int | None = 0
    restarts: bool = True
    clusters: int = 1
    needs: Need | None = None
