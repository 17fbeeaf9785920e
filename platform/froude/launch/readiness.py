"""What a cluster must be ready for: a study that all its hosts see; a process kept ready for the next restart."""

from __future__ import annotations

from froude.config import ConfigError, Run
from froude.hardware.sizes import PROCESS_BYTES
from froude.launch import ray_internals
from froude.launch.cluster import ConnectedCluster, SimulatedCluster
from froude.store import Location
from froude.sweep.plan import worker_bytes
from froude.sweep.preflight import cpus, free_memory
from froude.train.speed.timing import cores

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
