"""Warm spares: on each node one idle process that has imported all that a worker needs, so that a restart need not.

Ray starts idle processes on request, and gives a new actor one whose runtime environment is the same, byte for byte.
"""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import ray

from froude.launch.control_channel import ControlChannel
from froude.launch.ray_internals import get_value, put_value

logger = logging.getLogger("ray.train")

#: A resize waits until the spares say that they have imported everything, but no longer.
WARM_SECONDS = 20.0
KEEP_SECONDS = 86_400
RPC_SECONDS = 5.0


class Spares:
    """Keeps one spare on each node, from what a worker of the running attempt says of its own environment.

    The worker says so `early`, so that a resize can wait for it, or only when the attempt has lasted.
    """

    def __init__(self, channel: ControlChannel, *, early: bool = True) -> None:
        self.channel, self.early = channel, early
        self._since: dict[str, float] = {}
        self._spent = 0  # the last attempt whose template counts no longer

    def used(self) -> None:
        """A new worker group is about to take what there is; it asks for more itself when it has settled."""
        template = self.channel.template()
        if template is not None:
            self._spent = template["attempt"]
        self._since = {}

    def refill(self, nodes: set[str]) -> bool:
        """Ask each of these nodes for a spare, once; whether all are warm, or have had the time for it.

        False while a worker is about to say what a spare must be like. A node that can't be asked counts as served: its
        worker then starts cold.
        """
        template = self.channel.template()
        if template is None or template["attempt"] <= self._spent:
            return not self.early
        for node in nodes - self._since.keys():
            self._since[node] = time.monotonic()
            put_value(warmth(node), None)
            try:
                prestart(node, template["job"], template["environment"])
            except Exception as error:  # noqa: BLE001  gRPC's errors have no public base; a spare is never needed
                logger.warning("no spare on node %s: %s", node, error)
                self._since[node] = -math.inf
        now = time.monotonic()
        return all(
            now - self._since[node] >= WARM_SECONDS or get_value(warmth(node)) is not None for node in nodes
        )


def warmth(node_id: str) -> str:
    """The key under which a process on this node says that it has imported everything."""
    return f"{node_id}#warm"


def confirm_warm() -> None:
    """Say so, in a process of Ray's."""
    put_value(warmth(ray.get_runtime_context().get_node_id()), {})


def own_template() -> dict[str, Any]:
    """What makes a process usable instead of this one: its job, and its runtime environment as Ray wrote it."""
    context = ray.get_runtime_context()
    return {"job": context.get_job_id(), "environment": context.get_runtime_env_string()}


def prestart(node_id: str, job: str, environment: str) -> None:
    """Have a node's raylet start one idle worker process."""
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import node_manager_pb2, node_manager_pb2_grpc

    (node,) = (node for node in ray.nodes() if node["NodeID"] == node_id)
    messages: Any = node_manager_pb2
    request = messages.PrestartWorkersRequest(
        language=0, job_id=bytes.fromhex(job), num_workers=1, keep_alive_duration_secs=KEEP_SECONDS
    )
    request.runtime_env_info.serialized_runtime_env = environment
    channel = init_grpc_channel(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")
    try:
        stub = node_manager_pb2_grpc.NodeManagerServiceStub(channel)
        stub.PrestartWorkers(request, timeout=RPC_SECONDS)
    finally:
        channel.close()
