"""When a run is restarted after a failure, and when it is given up: a hook into the failure policy of Ray Train."""

from __future__ import annotations

from collections.abc import Mapping

from ray.train.v2._internal.execution.failure_handling import FailureDecision
from ray.train.v2._internal.execution.failure_handling.default import DefaultFailurePolicy
from ray.train.v2.api.config import FailureConfig
from ray.train.v2.api.exceptions import TrainingFailedError

from froude.config import ConfigError
from froude.launch.control_channel import ControlChannel
from froude.launch.hosts.admission import Unfit
from froude.launch.ray_internals.resizing import hosts
from froude.runlog import LogReader
from froude.store import Location


class BoundedFailures(DefaultFailurePolicy):
    """Retries while restarts commit checkpoints; gives up at once on errors that no restart gets past.

    No number of failures in all is too many: a long run on nodes that may be taken away has one after another. Hosts
    that may not take part are left out, and the run goes on while at least one other host is left.
    """

    def __init__(
        self,
        channel: ControlChannel,
        run: Location,
        no_progress: int,
        fatal: type[Exception],
        resources: Mapping[str, float],
    ) -> None:
        super().__init__(
            FailureConfig(max_failures=-1, controller_failure_limit=-1, max_preemption_failures=-1)
        )
        self.channel, self.run, self.no_progress, self.fatal = channel, run, no_progress, fatal
        self.resources = resources
        self._in_a_row = 0
        self._committed = -1

    def make_decision(self, training_failed_error: TrainingFailedError) -> FailureDecision:
        decision = super().make_decision(training_failed_error)
        if find_cause(training_failed_error, self.fatal) is not None:
            return FailureDecision.RAISE
        unfit = find_cause(training_failed_error, Unfit)
        if isinstance(unfit, Unfit):
            self.channel.leave_out(unfit.hosts)
            return decision if hosts(self.resources, self.channel) else FailureDecision.RAISE
        committed = self._checkpoints()
        self._in_a_row = 1 if committed != self._committed else self._in_a_row + 1
        self._committed = committed
        if self._in_a_row > self.no_progress:
            self.channel.give_up()
            return FailureDecision.RAISE
        return decision

    def _checkpoints(self) -> int:
        """The number of committed records, attempts not counted; the last known one while the log can't be read."""
        try:
            return sum(record.kind != "attempt" for record in LogReader(self.run).records())
        except (OSError, ConfigError):
            return self._committed


def find_cause(error: Exception, kind: type[Exception]) -> Exception | None:
    """The first exception of this kind that a rank of a failed worker group raised."""
    for _, failure in sorted(getattr(error, "worker_failures", {}).items()):
        base = getattr(failure, "_base_exc", failure)
        if isinstance(base, kind):
            return base
    return None
