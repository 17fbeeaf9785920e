"""Independent tasks, each a plain function of one value, on all cores of a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from froude.config import ConfigError

#: Tasks that wait for a core, besides those that run: a cluster that grows finds something to do.
WAITING = 64


def over_cluster(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
    """Results of a function over tasks on the connected cluster, a core each, in the order in which they end.

    The first error ends it; tasks already given to the cluster run on until this process ends or disconnects, since
    Ray aborts a driver that cancels a task as it finishes. A task whose host is lost runs again: it must write files
    whole or not at all.
    """
    import ray

    remote = ray.remote(num_cpus=1, max_retries=3)(_on_one_core)
    running: list[Any] = []

    def ended() -> Any:
        done, running[:] = ray.wait(running, num_returns=1)
        if isinstance(result := ray.get(done[0]), ConfigError):
            raise result
        return result

    for task in tasks:
        running.append(remote.remote(function, task))
        if len(running) >= WAITING + 2 * int(ray.cluster_resources().get("CPU", 0)):
            yield ended()
    while running:
        yield ended()


def _on_one_core(function: Callable[[Any], Any], task: Any) -> Any:
    """The function's result; what a user can correct is one too: Ray would print the traceback of an error."""
    os.environ.setdefault("RAYON_NUM_THREADS", "1")  # of the library tokenizers, read at its first use
    try:
        return function(task)
    except ConfigError as error:
        return ConfigError(str(error))
