"""MLflow: a run is found by its key among the tags, and a metric that is sent twice is stored once."""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mlflow.entities import Metric, Param, Run
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from froude.promote.imported_runs.wandb_files import flat
from froude.tracking.tracker import Point, Subject

logging.getLogger("mlflow.store.db.utils").setLevel(logging.ERROR)  # makes tables, and tries again

KEY, STATUS = "froude.key", "froude.status"
#: The newest step that was sent whole, as a metric: it comes last.
STEP = "froude_step"
MOST = 1000  # metrics of a request, the API's own limit
LONGEST = 250  # characters of a name
PARAMS, CHARACTERS = 100, 500  # params of a request, and characters of one in any store
ENDS = {"finished": "FINISHED", "diverged": "FINISHED", "failed": "FAILED", "superseded": "KILLED"}


def accepted(name: str) -> str:
    """The name as MLflow takes it, with _ for what it does not: lm-evaluation-harness has `acc,none`."""
    plain = re.sub(r"[^\w\-./: ]|\.\.+", "_", name)
    return posixpath.normpath(plain).strip("/")[:LONGEST] or "_"


class MLflow:
    """Runs of an experiment that is called like the study, in the store at a tracking URI."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.id = ""

    def ended(self, study: str) -> set[str]:
        found, token = set[str](), None
        while True:
            page = self._client.search_runs([self._experiment(study)], page_token=token)
            found |= {run.data.tags.get(KEY, "") for run in page if STATUS in run.data.tags}
            token = page.token
            if not token:
                return found

    def open(self, subject: Subject) -> int:
        client, experiment = self._client, self._experiment(subject.study)
        known: list[Run] = list(client.search_runs([experiment], f"tags.`{KEY}` = '{subject.key}'"))
        if known:
            self.id = known[0].info.run_id
            client.update_run(self.id, status="RUNNING")
            return int(known[0].data.metrics.get(STEP, 0))
        tags = {KEY: subject.key, "froude.stage": subject.stage, **subject.tags}
        self.id = client.create_run(experiment, run_name=subject.name, tags=tags).info.run_id
        params = [
            Param(accepted(name), str(value)[:CHARACTERS])
            for name, value in flat({"run": subject.config}).items()
        ]
        for i in range(0, len(params), PARAMS):
            client.log_batch(self.id, params=params[i : i + PARAMS])
        return 0

    def send(self, points: Sequence[Point]) -> None:
        waiting: list[Metric] = []
        for point in points:
            at = int(1000 * point.time.timestamp())
            own = [Metric(accepted(name), value, at, point.step) for name, value in point.values.items()]
            own.append(Metric(STEP, point.step, at, point.step))
            if len(waiting) + len(own) > MOST:
                self._client.log_batch(self.id, metrics=waiting)
                waiting = []
            waiting += own
            if point.events:
                self._client.set_tag(self.id, f"froude.events.{point.step:09d}", point.events[:5000])
        if waiting:
            self._client.log_batch(self.id, metrics=waiting)

    def close(self, status: str, summary: Mapping[str, Any]) -> None:
        """Numbers of the summary are metrics without a step, words are params."""
        numbers = {name: value for name, value in summary.items() if isinstance(value, int | float)}
        words = {name: str(value) for name, value in summary.items() if name not in numbers}
        self._client.log_batch(
            self.id,
            metrics=[Metric(accepted(name), float(value), 0, 0) for name, value in numbers.items()],
            params=[Param(accepted(name), value[:CHARACTERS]) for name, value in words.items()],
        )
        if status:
            self._client.set_tag(self.id, STATUS, status)
            self._client.set_terminated(self.id, ENDS[status])

    @property
    def _client(self) -> MlflowClient:
        return MlflowClient(tracking_uri=self.place)

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        try:
            return str(self._client.create_experiment(name))
        except MlflowException:  # another session was first
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return str(found.experiment_id)
