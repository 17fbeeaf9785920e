"""What watches the training loop, one file each: it keeps rows and state of what it saw, and changes no bit of a run.

A tracker is one more: a subclass of `Observer`, in TRACKERS or handed to `froude.train.worker.run_worker(observers=…)`.
"""

from collections.abc import Callable

from froude.train.observers.observer import Made, Observer, Watched

__all__ = ["TRACKERS", "Made", "Observer", "Watched", "trackers"]

#: Called in every worker of a launched run that has a commit log (the target run, and proxies of several workers), once
#: more after each pause; not where a run is trained again to be verified.
TRACKERS: list[Callable[[], Observer]] = []


def trackers() -> list[Observer]:
    """One of each."""
    return [make() for make in TRACKERS]
