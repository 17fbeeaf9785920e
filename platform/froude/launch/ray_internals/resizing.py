"""When a run grows or shrinks: hooks into the scaling policy of Ray Train, and which nodes count for it."""

from __future__ import annotations

import logging
import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.exceptions import RayError
from ray.train.v2._internal.constants import (
    DEFAULT_WORKER_GROUP_START_TIMEOUT_S,
    WORKER_GROUP_START_TIMEOUT_S_ENV_VAR,
)
from ray.train.v2._internal.execution.scaling_policy import NoopDecision, ScalingDecision
from ray.train.v2._internal.execution.scaling_policy.elastic import ElasticScalingPolicy
from ray.train.v2.api.config import ScalingConfig

from froude.launch.control_channel import ControlChannel
from froude.launch.ray_internals import draining_nodes, live_nodes
from froude.launch.ray_internals.spares import Spares

logger = logging.getLogger("ray.train")

NODE_LABEL = "ray.io/node-id"
RETRY_SECONDS = 0.1
ROUNDING = 1e-4  # of resources that Ray counts in ten-thousandths
HOLD_SECONDS = 180.0  # a step and a checkpoint that take longer postpone the resize


class PlannedResize(ElasticScalingPolicy):
    """Counts only nodes that answer now, and resizes a healthy group only after it has committed and stopped."""

    def __init__(
        self, scaling_config: ScalingConfig, channel: ControlChannel, spares: Spares | None = None
    ) -> None:
        super().__init__(scaling_config)
        self.channel, self.spares = channel, spares
        self._looked = -math.inf
        self._starts = False  # no group runs: a node that does not answer is not waited for
        self._asked: tuple[int, float] | None = None  # attempt that was asked to hold, and until when we wait
        self._before = 0  # the last attempt before the present group, whose beat is not its own
        self._requested = 0  # for how many workers
        self._began: float | None = None  # when a group was asked for that has not run yet
        self._crowded = False  # one was, and not all of it found a place

    def _get_num_workers_for_resource_request(self) -> int:
        """Adds the places on nodes that no worker may use: Ray does not know of that, and reserves them like others."""
        unfit = self.channel.left_out().keys() | draining_nodes()
        wanted = self.scaling_config._resources_per_worker_not_none
        return int(self.scaling_config.max_workers + sum(places(wanted, unfit).values()))

    def _get_reserved_resources(self) -> Any:
        """From nodes listed now: Ray's own list is up to 20 s old, and a start on a dead node costs its time-out."""
        if self._requested != (number := self._get_num_workers_for_resource_request()):
            self._requested = number  # Ray itself repeats a request every 20 s
            self._send_resource_request()  # type: ignore[no-untyped-call]
        try:
            return ray.get(
                self._autoscaling_coordinator.get_reserved_resources.remote(
                    self._requester_id, recompute=True
                ),
                timeout=5,
            )
        except RayError:
            logger.warning("no answer from the autoscaling coordinator", exc_info=True)
            return None

    def _count_possible_workers(self, reserved_resources: Any) -> int:
        live = live_nodes(ask=self._starts) - self.channel.left_out().keys()
        reserved = {node: its for node, its in reserved_resources.items() if node in live}
        if self._starts and self._crowded:
            reserved = self._unused(reserved, ())
        return int(super()._count_possible_workers(reserved))

    def _unused(
        self, reserved: Mapping[str, Mapping[str, float]], own: Iterable[str]
    ) -> dict[str, dict[str, float]]:
        """What of reserved nodes nobody uses but the workers on `own` (a node each).

        The coordinator counts as free what tasks and actors hold that never asked it: those of a sweep, a notebook, a
        second driver. Between two groups Ray's view of that is late, so it counts at a start only once one was crowded.
        """
        wanted, free = self.scaling_config._resources_per_worker_not_none, available_resources_per_node()
        ours = Counter(own)
        return {
            node: {
                name: min(
                    most, free.get(node, {}).get(name, 0.0) + ours[node] * wanted.get(name, 0.0) + ROUNDING
                )
                for name, most in its.items()
            }
            for node, its in reserved.items()
        }

    def on_controller_start_worker_group(self, *, scaling_config: ScalingConfig, num_workers: int) -> Any:
        """Keep the placement group off nodes that Ray still believes in, and off those that may not take part."""
        beat = self.channel.beat()
        self._before = beat.attempt if beat else 0
        self._began = time.monotonic()
        return {NODE_LABEL: f"in({','.join(sorted(live_nodes(ask=True) - self.channel.left_out().keys()))})"}

    def make_decision_for_non_running_worker_group(self) -> ScalingDecision:
        self._asked = None
        if self.spares is not None:
            self.spares.used()
        if self._began is not None and time.monotonic() - self._began >= start_timeout():
            self._crowded = True
        self._starts = True
        decision = super().make_decision_for_non_running_worker_group()
        self._starts = False
        if isinstance(decision, NoopDecision):
            time.sleep(RETRY_SECONDS)  # the controller asks again at once
        return decision

    def make_decision_for_running_worker_group(
        self, worker_group_state: Any, worker_group_status: Any
    ) -> ScalingDecision:
        """Asks the group to hold when there is something to resize it for, and resizes it when it does."""
        self._began, self._crowded = None, False
        if self._asked is not None:
            return self._when_held(worker_group_state)
        self._maybe_send_resource_request()  # type: ignore[no-untyped-call]
        beat = self.channel.beat()
        if (
            (leaving(worker_group_state) or self._may_grow(worker_group_state))
            and self._resized(worker_group_state)
            and beat is not None
            and beat.attempt > self._before
            and beat.world == worker_group_state.num_workers
        ):
            self.channel.ask_to_hold(beat.attempt)
            self._asked = (beat.attempt, time.monotonic() + HOLD_SECONDS)
        return NoopDecision()

    def _may_grow(self, group: Any) -> bool:
        """As often as Ray looks for a resize, and where new workers need not start cold."""
        now = time.monotonic()
        if now - max(self._looked, group.start_time) < self.scaling_config.elastic_resize_monitor_interval_s:
            return False
        self._looked = now
        return self.spares is None or self.spares.refill(self._hosts())

    def _resized(self, group: Any) -> int:
        """How many workers the group is to have, on nodes that stay; 0 to leave it as it is.

        A group that lost a node is not shrunk in this way: that is a failure, or will be.
        """
        reserved, leaves = self._get_reserved_resources(), leaving(group)
        if reserved is not None:
            reserved = self._unused(reserved, [worker.metadata.node_id for worker in group.workers])
        workers = 0 if reserved is None else self._count_possible_workers(reserved)
        moves = workers > group.num_workers or leaves
        return workers if moves and workers >= self.scaling_config.min_workers else 0

    def _hosts(self) -> set[str]:
        return hosts(self.scaling_config._resources_per_worker_not_none, self.channel)

    def _when_held(self, group: Any) -> ScalingDecision:
        assert self._asked is not None
        attempt, until = self._asked
        held = self.channel.held(attempt)
        if not held and time.monotonic() < until:
            return NoopDecision()
        self._asked = None
        if held and (workers := self._resized(group)):
            if self.spares is not None:
                self.spares.used()
            return self._get_resize_decision(workers)
        self.channel.release()
        return NoopDecision()


def start_timeout() -> float:
    """For how many seconds Ray waits for the places of a group."""
    return float(os.environ.get(WORKER_GROUP_START_TIMEOUT_S_ENV_VAR, DEFAULT_WORKER_GROUP_START_TIMEOUT_S))


def hosts(wanted: Mapping[str, float], channel: ControlChannel) -> set[str]:
    """Live nodes that have what a worker requests (the head has not, as a rule), and are not left out."""
    able = {node for node, workers in places(wanted, live_nodes()).items() if workers}
    return able - channel.left_out().keys()


def places(wanted: Mapping[str, float], nodes: Set[str]) -> dict[str, int]:
    """How many workers with this request each of these nodes has room for when it is empty; 0 on one that is lost."""
    return {
        node["NodeID"]: int(min(node["Resources"].get(name, 0) // wanted[name] for name in wanted))
        for node in ray.nodes()
        if node["NodeID"] in nodes
    }


def leaving(group: Any) -> set[str]:
    """The nodes of this worker group that have got notice."""
    return {worker.metadata.node_id for worker in group.workers} & draining_nodes()
