"""Hooks into the controller of Ray Train: which nodes count, when to resize, when to give up."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import ray
from ray._common.constants import RAY_WARN_BLOCKING_GET_INSIDE_ASYNC_ENV_VAR
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.constants import (
    DEFAULT_RAY_WARN_BLOCKING_GET_INSIDE_ASYNC_VALUE,
    get_env_vars_to_propagate,
)
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.failure_handling import FailureDecision
from ray.train.v2._internal.execution.failure_handling.default import DefaultFailurePolicy
from ray.train.v2._internal.execution.scaling_policy import NoopDecision, ResizeDecision, ScalingDecision
from ray.train.v2._internal.execution.scaling_policy.elastic import ElasticScalingPolicy
from ray.train.v2.api.config import FailureConfig, ScalingConfig
from ray.train.v2.api.exceptions import TrainingFailedError

from froude.launch.notes import Notes
from froude.launch.ray_internals import live_nodes
from froude.launch.ray_internals.spares import Spares
from froude.runlog import LogReader
from froude.store import Location

logger = logging.getLogger("ray.train")

NODE_LABEL = "ray.io/node-id"
RETRY_SECONDS = 0.1
HOLD_SECONDS = 30.0  # a checkpoint that takes longer postpones the resize


class PlannedResize(ElasticScalingPolicy):
    """Counts only nodes that answer now, and resizes a healthy group only after it has committed and stopped."""

    def __init__(self, scaling_config: ScalingConfig, notes: Notes, spares: Spares | None = None) -> None:
        super().__init__(scaling_config)
        self.notes, self.spares = notes, spares
        self._looked, self._warm = -math.inf, False
        self._starts = False  # no group runs: a node that does not answer is not waited for
        self._asked: tuple[int, float] | None = None  # attempt that was asked to hold, and until when we wait

    def _get_reserved_resources(self) -> Any:
        """From nodes listed now: Ray's own list is up to 20 s old, and a start on a dead node costs its time-out."""
        try:
            return ray.get(
                self._autoscaling_coordinator.get_reserved_resources.remote(
                    self._requester_id, recompute=True
                ),
                timeout=5,
            )
        except ray.exceptions.RayError:
            logger.warning("no answer from the autoscaling coordinator", exc_info=True)
            return None

    def _count_possible_workers(self, reserved_resources: Any) -> int:
        live = live_nodes(ask=self._starts)
        return int(
            super()._count_possible_workers({k: v for k, v in reserved_resources.items() if k in live})
        )

    def on_controller_start_worker_group(self, *, scaling_config: ScalingConfig, num_workers: int) -> Any:
        """Keep the placement group off nodes that Ray still believes in."""
        return {NODE_LABEL: f"in({','.join(sorted(live_nodes(ask=True)))})"}

    def make_decision_for_non_running_worker_group(self) -> ScalingDecision:
        self._asked = None
        if self.spares is not None:
            self.spares.used()
        self._starts = True
        decision = super().make_decision_for_non_running_worker_group()
        self._starts = False
        if isinstance(decision, NoopDecision):
            time.sleep(RETRY_SECONDS)  # the controller asks again at once
        return decision

    def make_decision_for_running_worker_group(
        self, worker_group_state: Any, worker_group_status: Any
    ) -> ScalingDecision:
        if self._asked is not None:
            return self._when_held(worker_group_state.num_workers)
        if not self._spares_are_warm():
            return NoopDecision()
        decision = super().make_decision_for_running_worker_group(worker_group_state, worker_group_status)
        if isinstance(decision, ResizeDecision):
            beat = self.notes.beat()
            if beat is not None and beat.world == worker_group_state.num_workers:
                self.notes.ask_to_hold(beat.attempt)
                self._asked = (beat.attempt, time.monotonic() + HOLD_SECONDS)
        return NoopDecision()

    def _spares_are_warm(self) -> bool:
        """Looks for nodes as often as Ray does for a resize."""
        if self.spares is None:
            return True
        now = time.monotonic()
        interval = self.scaling_config.elastic_resize_monitor_interval_s
        if now - self._looked >= interval:
            self._looked, self._warm = now, self.spares.refill(self._hosts())
        return self._warm

    def _hosts(self) -> set[str]:
        """Live nodes that have what a worker requests; the head has not, as a rule."""
        wanted = self.scaling_config._resources_per_worker_not_none
        able = {
            node["NodeID"]
            for node in ray.nodes()
            if all(node["Resources"].get(name, 0) >= amount for name, amount in wanted.items())
        }
        return able & live_nodes()

    def _when_held(self, world: int) -> ScalingDecision:
        assert self._asked is not None
        attempt, until = self._asked
        held = self.notes.held(attempt)
        if not held and time.monotonic() < until:
            return NoopDecision()
        self._asked = None
        reserved = self._get_reserved_resources() if held else None
        workers = self._count_possible_workers(reserved) if reserved is not None else world
        if workers != world and workers >= self.scaling_config.min_workers:
            if self.spares is not None:
                self.spares.used()
            return self._get_resize_decision(workers)
        self.notes.release()
        return NoopDecision()


class BoundedFailures(DefaultFailurePolicy):
    """Retries while restarts commit checkpoints; gives up at once on errors that a restart can't mend."""

    def __init__(
        self, config: FailureConfig, notes: Notes, run: Location, no_progress: int, fatal: type[Exception]
    ) -> None:
        super().__init__(config)
        self.notes, self.run, self.no_progress, self.fatal = notes, run, no_progress, fatal
        self._in_a_row = 0
        self._committed = -1

    def make_decision(self, training_failed_error: TrainingFailedError) -> FailureDecision:
        decision = super().make_decision(training_failed_error)
        if find_cause(training_failed_error, self.fatal) is not None:
            return FailureDecision.RAISE
        committed = self._checkpoints()
        self._in_a_row = 1 if committed != self._committed else self._in_a_row + 1
        self._committed = committed
        if self._in_a_row > self.no_progress:
            self.notes.give_up()
            return FailureDecision.RAISE
        return decision

    def _checkpoints(self) -> int:
        """Records that are no attempts; as many as before while the store can't be read."""
        try:
            return sum(record.kind != "attempt" for record in LogReader(self.run).records())
        except OSError:
            return self._committed


class ElasticTrainer(TorchTrainer):
    """Ray's TorchTrainer with policies of ours in its controller."""

    _controller: Any = None

    def use(self, scaling: PlannedResize, failures: BoundedFailures) -> None:
        self._policies = {"scaling_policy": scaling, "failure_policy": failures}

    def _create_default_callbacks(self) -> list[Any]:
        """Without the one for datasets: we have none, and it starts a process of its own with every worker group."""
        theirs: Any = super()._create_default_callbacks  # type: ignore[misc]
        return [call for call in theirs() if not isinstance(call, DatasetsCallback)]

    def _initialize_and_run_controller(self, **arguments: Any) -> Any:
        """As Ray does it, but keeping hold of the controller, so that another thread can end it."""
        variables = get_env_vars_to_propagate()
        variables.setdefault(
            RAY_WARN_BLOCKING_GET_INSIDE_ASYNC_ENV_VAR, DEFAULT_RAY_WARN_BLOCKING_GET_INSIDE_ASYNC_VALUE
        )
        here = {NODE_LABEL: ray.get_runtime_context().get_node_id()}
        actor: Any = ray.remote(num_cpus=0, label_selector=here, runtime_env={"env_vars": variables})(
            TrainController
        )
        self._controller = actor.remote(**{**arguments, **self._policies})
        ray.get(self._controller.run.remote())
        return ray.get(self._controller.get_result.remote())

    def abort(self, seconds: float = 10) -> None:
        """End the workers and the controller; whoever waits in `fit` gets a RayError."""
        if self._controller is None:
            return
        try:
            ray.get(self._controller.abort.remote(), timeout=seconds)
        except ray.exceptions.RayError:
            pass  # it exits while it answers, or does not answer at all
        ray.kill(self._controller)


def find_cause(error: Exception, kind: type[Exception]) -> Exception | None:
    """The first exception of this kind that a rank of a failed worker group raised."""
    for _, failure in sorted(getattr(error, "worker_failures", {}).items()):
        base = getattr(failure, "_base_exc", failure)
        if isinstance(base, kind):
            return base
    return None
