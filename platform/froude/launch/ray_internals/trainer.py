"""Ray's trainer and its controller with our policies in them; a start that fails is a failure like any other."""

from __future__ import annotations

import os
from typing import Any

import ray
from ray._common.constants import RAY_WARN_BLOCKING_GET_INSIDE_ASYNC_ENV_VAR
from ray.exceptions import RayError
from ray.train.constants import TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.constants import (
    DEFAULT_RAY_WARN_BLOCKING_GET_INSIDE_ASYNC_VALUE,
    get_env_vars_to_propagate,
)
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.worker_group import WorkerGroup

from froude.launch.ray_internals.failures import BoundedFailures
from froude.launch.ray_internals.resizing import NODE_LABEL, PlannedResize

GROUP_SHUTDOWN_SECONDS = "5"


class CleanStart(WorkerGroup):
    """Ray's worker group, for which a worker that is lost while the group begins is a failure like another.

    Ray ends the run if a worker's peer is the first to notice, and otherwise forgets what the group has reserved.
    """

    def _start(self) -> None:
        try:
            super()._start()  # type: ignore[no-untyped-call]
        except Exception as error:
            if self._worker_group_state is not None:
                self._worker_group_state.shutdown()
                self._clear_state()  # type: ignore[no-untyped-call]
            if isinstance(error, RayError):
                raise WorkerGroupStartupFailedError(f"a worker failed at its start: {error}") from error
            raise


class ElasticController(TrainController):
    """Ray's controller with such groups."""

    worker_group_cls = CleanStart


def controller_environment(*, gpu: bool) -> dict[str, str]:
    """What Ray hands to the controller; on GPUs also how long survivors of a failure may take to leave their group.

    One that waits in an NCCL kernel never does, and Ray gives it 30 s, if nobody says less where the controller runs.
    """
    variables: dict[str, str] = get_env_vars_to_propagate()
    variables.setdefault(
        RAY_WARN_BLOCKING_GET_INSIDE_ASYNC_ENV_VAR, DEFAULT_RAY_WARN_BLOCKING_GET_INSIDE_ASYNC_VALUE
    )
    if gpu:
        own = os.environ.get(TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S, GROUP_SHUTDOWN_SECONDS)
        variables.setdefault(TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S, own)
    return variables


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
        variables = controller_environment(gpu=bool(self.scaling_config.use_gpu))
        here = {NODE_LABEL: ray.get_runtime_context().get_node_id()}
        actor: Any = ray.remote(num_cpus=0, label_selector=here, runtime_env={"env_vars": variables})(
            ElasticController
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
        except RayError:
            pass  # it exits while it answers, or does not answer at all
        ray.kill(self._controller)
