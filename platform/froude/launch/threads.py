"""How many threads a worker computes with on a CPU, and so how many CPUs of one node it reserves."""

from __future__ import annotations

from collections.abc import Iterable

from froude.config import ConfigError, Run
from froude.sweep.preflight import cpus


def reserved(device: str, threads: int) -> dict[str, float]:
    """What a worker on this device asks Ray for: a GPU or a CPU, and a CPU for each thread that its run names."""
    return {"GPU": 1, **({"CPU": threads} if threads else {})} if device == "cuda" else {"CPU": threads or 1}


def check_nodes(runs: Iterable[Run]) -> None:
    """ConfigError if no node of the connected cluster has as many CPUs as one worker reserves."""
    import ray

    wanted = cpus(runs)
    largest = max((int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]), default=0)
    if wanted > max(largest, 1):
        raise ConfigError(
            f"a worker must find a node with a CPU for each of its threads, `compute.threads` = {wanted}, but the "
            f"largest node has {largest}; lower it, or use larger nodes"
        )
