"""Independent tasks, each a plain function of one value, on all cores of a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

#: Tasks that wait for a core, besides those that run: a cluster that grows finds something to do.
WAITING = 64


def over_cluster(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
    """Results of a function over tasks on the connected cluster, a core each, in the order in which they end.

    The first error ends it. A task whose host is lost runs again: it must write files whole or not at all.
    """
    import ray
    from ray.exceptions import RayTaskError

    remote = ray.remote(num_cpus=1, max_retries=3)(_on_one_core)
    running: list[Any] = []
    try:
        for task in tasks:
            running.append(remote.remote(function, task))
            if len(running) >= WAITING + 2 * int(ray.cluster_resources().get("CPU", 0)):
                done, running = ray.wait(running, num_returns=1)
                yield ray.get(done[0])
        while running:
            done, running = ray.wait(running, num_returns=1)
            yield ray.get(done[0])
    except RayTaskError as error:
        raise error.cause from None  # as if it had been raised here
    finally:
        for each in running:
            ray.cancel(each, force=True)


def _on_one_core(function: Callable[[Any], Any], task: Any) -> Any:
    os.environ.setdefault("RAYON_NUM_THREADS", "1")  # of the library tokenizers, read at its first use
    return function(task)
