"""When a run is restarted after a failure, and when it is given up: a hook into the failure policy of Ray Train."""

from __future__ import annotations

from collections.abc import Mapping, Set

from ray.train.v2._internal.execution.failure_handling import FailureDecision
from ray.train.v2._internal.execution.failure_handling.default import DefaultFailurePolicy
from ray.train.v2.api.config import FailureConfig
from ray.train.v2.api.exceptions import TrainingFailedError

from froude.config import ConfigError
from froude.launch.control_channel import ControlChannel
from froude.launch.hosts.admission import Unfit
from froude.launch.ray_internals import live_nodes
from froude.launch.ray_internals.resizing import hosts
from froude.runlog import LogReader
from froude.store import Location

#: Restarts after them that commit nothing: more than chance takes away, and not without an end.
LOST_NODES = 30


class BoundedFailures(DefaultFailurePolicy):
    """Retries while restarts commit checkpoints; gives up at once on errors that no restart gets past.

    No number of failures in all is too many: a long run on nodes that may be taken away has one after another. Those in
    which a node was lost count apart, up to LOST_NODES in a row without a commit. Hosts that may not take part are left
    out, and the run goes on while at least one other host is left.
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
        self._in_a_row = self._lost_in_a_row = 0
        self._committed = -1
        self._live: Set[str] = frozenset()

    def make_decision(self, training_failed_error: TrainingFailedError) -> FailureDecision:
        decision = super().make_decision(training_failed_error)
        if find_cause(training_failed_error, self.fatal) is not None:
            return FailureDecision.RAISE
        unfit = find_cause(training_failed_error, Unfit)
        if isinstance(unfit, Unfit):
            self.channel.leave_out(unfit.hosts)
            return decision if hosts(self.resources, self.channel) else FailureDecision.RAISE
        committed, live = self._checkpoints(), live_nodes(ask=True)
        if committed != self._committed:
            self._in_a_row = self._lost_in_a_row = 0
        if self._live - live:
            self._lost_in_a_row += 1
        else:
            self._in_a_row += 1
        self._committed, self._live = committed, live
        if self._in_a_row > self.no_progress or self._lost_in_a_row > LOST_NODES:
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
