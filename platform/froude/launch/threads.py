"""How many threads a worker computes with on a CPU, and so how many CPUs of one node it reserves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from froude.config import ConfigError, Run


def reserved(device: str, threads: int) -> dict[str, float]:
    """What a worker on this device asks Ray for: a GPU or a CPU, and a CPU for each thread that its run names."""
    return {"GPU": 1, **({"CPU": threads} if threads else {})} if device == "cuda" else {"CPU": threads or 1}


def worker_resources(device: str, cluster: Mapping[str, float], threads: int = 0) -> dict[str, float]:
    """What one worker requests: a GPU where the run may use one and the cluster has some, else a CPU; one a thread.

    ConfigError if the run insists on GPUs and the cluster has none.
    """
    if device == "cpu" or (device == "auto" and not cluster.get("GPU")):
        return reserved("cpu", threads)
    if not cluster.get("GPU"):
        raise ConfigError(
            '`device` is "cuda", but no node of the cluster has a GPU; use "auto" or another cluster'
        )
    return reserved("cuda", threads)


def check_nodes(runs: Iterable[Run]) -> None:
    """ConfigError if no node of the connected cluster alone has what one worker reserves."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cluster = {"GPU": sum(node.get("GPU", 0) for node in nodes)}
    for device, threads in sorted({(r.device, r.compute.threads) for r in runs if not r.trainer.command}):
        wanted = worker_resources(device, cluster, threads)
        if wanted == reserved("cpu", 0) or any(has(node, wanted) for node in nodes):
            continue
        gpu = "a GPU and " if "GPU" in wanted else ""
        largest = max((int(node.get("CPU", 0)) for node in nodes if node.get("GPU") or not gpu), default=0)
        raise ConfigError(
            f"a worker must find a node with {gpu}a CPU for each of its threads, `compute.threads` = {threads}, but "
            f"the largest node{' with a GPU' if gpu else ''} has {largest}; lower it, or use larger nodes"
        )


def has(node: Mapping[str, float], wanted: Mapping[str, float]) -> bool:
    """Whether a node of these resources has room for that when it is empty."""
    return all(node.get(kind, 0) >= number for kind, number in wanted.items())
