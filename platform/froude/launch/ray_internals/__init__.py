"""The only home of what Ray does not promise: each hook has a contract test, and gives way on another version.

Nothing here imports Ray before it is called. `resizing`, `failures` and `trainer` hook into Ray Train's controller.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import socket
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

TESTED_RAY = "2.60."
NAMESPACE = b"froude"
CONNECT_SECONDS = 0.5
ANSWER_SECONDS = 3.0  # a raylet on a machine that is busy with something else may take as long

#: Detect failures in a few seconds. Set before the head, every node and the driver start; too eager for nodes that
#: stall for seconds under load, so real clusters keep slower ones (cluster.yaml).
FAST_KNOBS: dict[str, str] = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    # A killed raylet refuses connections and is detected at once; only a silent one costs this long. At 2 s a machine
    # that is busy with something else loses its head.
    "RAY_health_check_timeout_ms": "10000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.25",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "60",
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "20",
    "TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S": "2",
}

#: Those of cluster.yaml.
MODERATE_KNOBS: dict[str, str] = {
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "4000",
    "RAY_health_check_failure_threshold": "4",
}

#: Read by Ray Train in the driver, on any cluster.
DRIVER_SETTINGS: dict[str, str] = {
    # Asking the workers costs a message each, whatever the network; Ray asks every 2 s.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    # Ray's own reaction to a drain notice ends a run as finished, or asks for that node again: ours shrinks the group.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # paths in a recipe mean what they mean to the driver
}
_prepared: set[str] = set()  # those that `prepare_driver` has set in this process


@functools.cache
def supported() -> bool:
    """Whether this Ray is one whose internals were tested; warns once if not."""
    import ray

    if ray.__version__.startswith(TESTED_RAY):
        return True
    warnings.warn(
        f"Ray {ray.__version__} is not {TESTED_RAY}*: froude uses its public behaviour only, and recovers more slowly",
        stacklevel=2,
    )
    return False


def prepare_driver() -> None:
    """Set what Ray Train reads from the driver's environment, unless the user has set it."""
    for name, value in DRIVER_SETTINGS.items():
        if name not in os.environ:
            os.environ[name] = value
            _prepared.add(name)


def not_set_by_user(knobs: Mapping[str, str]) -> dict[str, str]:
    """Those of the knobs that the user's environment leaves to froude."""
    return {name: value for name, value in knobs.items() if name not in os.environ or name in _prepared}


def run_first(function: Callable[[], None]) -> dict[str, Any]:
    """A worker's runtime environment in which Ray calls `function` when the process starts.

    Ray offers this to whole jobs only; it passes the name on in this variable.
    """
    from ray._private.ray_constants import WORKER_PROCESS_SETUP_HOOK_ENV_VAR

    return {"env_vars": {WORKER_PROCESS_SETUP_HOOK_ENV_VAR: f"{function.__module__}.{function.__name__}"}}


def silence_driver() -> None:
    """Keep what Ray's daemons publish (such as the death of a node) off the driver's standard output."""
    logging.getLogger("ray.train").setLevel(logging.ERROR)
    if supported():
        from ray._private.ray_logging import global_worker_stdstream_dispatcher, stdout_deduplicator

        global_worker_stdstream_dispatcher.remove_handler("ray_print_logs")
        # The death of a node takes another way, past the handlers.
        stdout_deduplicator.skip_re = re.compile("")


def health_checks() -> dict[str, int]:
    """How the head checks its nodes, as a process there sees it: the numbers of `RAY_health_check_*`, without prefix.

    They are read from the environment when the head starts, and no later. {} where nothing of that is known.
    """
    if not supported():
        return {}
    import ray

    def read() -> dict[str, int]:
        from ray import _raylet

        config: Any = _raylet
        return {name: int(getattr(config.Config, name)()) for name in names}

    names = [knob.removeprefix("RAY_") for knob in MODERATE_KNOBS]
    there = ray.remote(num_cpus=0, resources={"node:__internal_head__": 0.001})(read)
    found: dict[str, int] = ray.get(there.remote(), timeout=60)
    return found


def coordinator_on_head() -> None:
    """Create the actor that hands out reservations from this driver, which runs on the head.

    Ray pins that detached actor to the node of whoever asks first; on a worker node it would die with the node, and
    every elastic run with it.
    """
    if supported():
        _coordinator()


def cancel_reservation(run_id: str) -> None:
    """Give back what a Ray Train run with this id has reserved, if anything.

    The reservation of a killed driver would otherwise be kept for 180 s, and its successor wait for it.
    """
    if supported():
        import ray

        ray.get(_coordinator().cancel_request.remote(f"train-{run_id}"), timeout=30)


def _coordinator() -> Any:
    from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
        get_or_create_autoscaling_coordinator,
    )

    return get_or_create_autoscaling_coordinator()


def draining_nodes() -> set[str]:
    """Ids of the nodes that have got notice."""
    from ray._private.state import state

    return set(state.get_draining_nodes())


def live_nodes(*, ask: bool = False) -> set[str]:
    """Ids of the nodes that are alive, are not being drained, and whose raylet accepts a connection now.

    Ray itself takes seconds to notice a node that has vanished. With `ask` the raylets must also answer: one that was
    stopped, or lost in the network, is no place to start workers on.
    """
    import ray

    draining = draining_nodes()
    nodes = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in draining]
    reached = _answers if ask else _connects
    with ThreadPoolExecutor(max_workers=32) as pool:
        found = pool.map(lambda node: reached(node["NodeManagerAddress"], node["NodeManagerPort"]), nodes)
    return {node["NodeID"] for node, fine in zip(nodes, found, strict=True) if fine}


def _connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _answers(host: str, port: int) -> bool:
    """By gRPC's own health check, which a raylet serves to the head; its request is an empty message."""
    import grpc
    from ray._private.grpc_utils import init_grpc_channel

    channel = init_grpc_channel(f"{host}:{port}")
    try:
        channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=ANSWER_SECONDS)
    except grpc.RpcError:
        return False
    finally:
        channel.close()
    return True


def node_lost(text: str, node: str) -> bool:
    """Whether the error of a Tune trial on `node` is the loss of that node, or of one whose actor it waited for."""
    if not supported():
        return False
    # A lost connection may be told before the death of the node is known.
    return "because its node has died" in text or bool(node and node not in live_nodes())


def put_value(key: str, value: dict[str, Any] | None) -> None:
    """Leave a value on the head that any process of the cluster can read; None takes it away."""
    if supported():
        from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_put

        if value is None:
            _internal_kv_del(key.encode(), namespace=NAMESPACE)
        else:
            _internal_kv_put(key.encode(), json.dumps(value).encode(), overwrite=True, namespace=NAMESPACE)


def get_value(key: str) -> dict[str, Any] | None:
    """The value under this key; None if there is none."""
    if not supported():
        return None
    from ray.experimental.internal_kv import _internal_kv_get

    content = _internal_kv_get(key.encode(), namespace=NAMESPACE)
    return json.loads(content) if content else None
