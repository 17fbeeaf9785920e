"""What a cluster must be ready for: nodes to train on, a study that all hosts see, a process for the next restart."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from froude.config import ConfigError, Run
from froude.hardware.sizes import PROCESS_BYTES
from froude.launch import ray_internals
from froude.launch.cluster import ConnectedCluster, SimulatedCluster
from froude.store import Location
from froude.sweep.plan import worker_bytes
from froude.sweep.preflight import cpus, free_memory
from froude.train.speed.timing import cores

NODES_SECONDS = 3600.0  # until a cluster's first node: a cloud takes minutes, a spot market longer
POLL_SECONDS = 2.0
BUSY_SECONDS = 120.0  # of an attempt, before nodes whose cores all work start spares


def spares_after(
    run: Run, cluster: SimulatedCluster | ConnectedCluster, wanted: bool | None = None
) -> float | None:
    """Seconds of an attempt until each node is asked for a spare; None for never.

    If wanted, at once. If it is left open, where each node has the memory for one more idle process: at once with a
    core to spare, else late. A spare takes a busy core for as long as it saves a restart: attempts of minutes do
    better without.
    """
    if wanted is False or not ray_internals.supported():
        return None
    if wanted:
        return 0.0
    each = cpus([run])
    if isinstance(cluster, SimulatedCluster):  # its nodes share this machine
        nodes = len(cluster.nodes)
        needed = min(nodes, run.max_workers) * worker_bytes(run) + nodes * PROCESS_BYTES
        fits, idle = free_memory() > needed, cores() > nodes * each
    else:
        import ray

        resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        memory = min((node.get("memory", 0) for node in resources), default=0)
        fits = memory > worker_bytes(run) + 2 * PROCESS_BYTES
        idle = all(node["CPU"] > each for node in resources if node.get("CPU"))
    return (0.0 if idle else BUSY_SECONDS) if fits else None


def wait_for_nodes(cpus: int = 1) -> None:
    """Return when the connected cluster has a CPU or a GPU: for minutes after `ray up` it is a head that has neither.

    An autoscaler is asked for a node of `cpus` meanwhile. ConfigError after NODES_SECONDS.
    """
    import ray

    wait_until(
        _has_workers,
        [{"CPU": cpus}],
        "the cluster has no CPU or GPU yet",
        lambda: (
            f"a cluster must have nodes with a CPU or a GPU, but {ray.get_runtime_context().gcs_address} has had none "
            f"for {NODES_SECONDS / 60:.0f} minutes; `ray status` says why; start again then"
        ),
    )


def wait_until(
    ready: Callable[[], bool], bundles: list[dict[str, float]], lacks: str, missing: Callable[[], str]
) -> None:
    """Return when the connected cluster is ready; an autoscaler is asked for these bundles meanwhile.

    Says what it `lacks`, if anything; ConfigError that says what is `missing` after NODES_SECONDS.
    """
    if ready():
        return
    from ray.autoscaler.sdk import request_resources

    print(f"froude: {lacks}: waiting for nodes", file=sys.stderr, flush=True)
    began = time.monotonic()
    request_resources(bundles=bundles)
    try:
        while not ready():
            if time.monotonic() - began > NODES_SECONDS:
                raise ConfigError(missing())
            time.sleep(POLL_SECONDS)
    finally:
        request_resources()  # what runs now asks for itself


def _has_workers() -> bool:
    import ray

    have = ray.cluster_resources()
    return any(have.get(kind, 0) > 0 for kind in ("CPU", "GPU"))


def check_shared(location: Location, *, shared: bool, what: str = "a study") -> None:
    """ConfigError if several hosts of the connected cluster would use a local path that is not shared."""
    if not location.is_local or shared:
        return
    import ray

    addresses = {str(node["NodeManagerAddress"]) for node in ray.nodes() if node["Alive"]}
    hosts = {"127.0.0.1" if address.startswith("127.") else address for address in addresses}
    if len(hosts) > 1:
        raise ConfigError(
            f"{what} must be where all {len(hosts)} hosts of the cluster can write, but {location} is a local path; "
            "use an s3:// URL, or pass --shared if all hosts mount this path"
        )
