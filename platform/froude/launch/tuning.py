"""An agenda's trials through one run of Ray Tune: stage after stage, in processes that are used again."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.search import Searcher

from froude.launch.commanded.nodes import places
from froude.launch.elastic import device_of, worker_resources
from froude.launch.ray_internals.worker_slots import Lanes
from froude.launch.trainable import Proxy, Task
from froude.space import Trial
from froude.store import Location
from froude.sweep import trial_store
from froude.sweep.agenda import Agenda, cost
from froude.sweep.changed_material import Materials
from froude.sweep.progress import SweepProgress

RETRIES = 2  # of a trial, after its first attempt
ERROR_CHARACTERS = 500


def run(
    agenda: Agenda,
    study: Location,
    concurrency: int,
    scratch: str,
    progress: Callable[[SweepProgress], None] | None = None,
) -> None:
    """Run what the agenda has, `concurrency` workers at a time; `scratch` is a folder for Tune's own notes."""
    queue = Queue(agenda, study, concurrency, ray.cluster_resources())
    tune.Tuner(
        Proxy,
        tune_config=tune.TuneConfig(
            search_alg=queue,
            scheduler=Lanes(),
            num_samples=-1,
            max_concurrent_trials=concurrency,
            reuse_actors=True,
            trial_name_creator=_name,
            trial_dirname_creator=_name,
        ),
        run_config=tune.RunConfig(
            name="sweep",
            storage_path=scratch,
            verbose=0,
            callbacks=[_Ear(queue, progress)],
            failure_config=tune.FailureConfig(max_failures=RETRIES),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    ).fit()


def _name(trial: TuneTrial) -> str:
    return str(trial.config["name"])


class _Unpickled:
    """Tune pickles what it is given, for its own way of resuming; this has nothing to say there."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class Queue(_Unpickled, Searcher):
    """Feeds an agenda's trials to Tune as workers come free; a trial takes one place per rank."""

    def __init__(
        self, agenda: Agenda, study: Location, concurrency: int, cluster: Mapping[str, float]
    ) -> None:
        super().__init__()
        self.agenda, self.study, self.concurrency, self.cluster = agenda, study, concurrency, cluster
        self.materials = Materials()
        self.shares: dict[str, float] = {}
        self._running: dict[str, tuple[Trial, int]] = {}
        self._ended: list[tuple[str, str | None, int]] = []  # trial, error, attempts
        self._next: Trial | None = None
        self._began = time.monotonic()
        self._seconds_done = self._cost_done = 0.0

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        return True

    def suggest(self, trial_id: str) -> Any:
        """The next trial's configuration, None to wait, FINISHED at the end."""
        self._take_in()
        if self.agenda.done:
            return Searcher.FINISHED
        self._next = self._next or self.agenda.next()
        if self._next is None or not self._fits(self._next):
            return None
        trial, self._next = self._next, None
        if changed := self.agenda.changed.pop(trial.name, None):
            trial_store.retire(self.study, [changed.trial], self.agenda.retired)
        taken = {lane for _, lane in self._running.values()}
        wide = trial.workers > 1 or trial.runs[0].trainer.nodes > 1
        lane = -1 if wide else min(set(range(self.concurrency)) - taken)
        self._running[trial.name] = (trial, lane)
        self.shares[trial.name] = 0.0
        # Only what was reserved: a process on a simulated cluster sees the GPUs of the machine all the same.
        device = "" if lane < 0 else device_of(worker_resources(trial.runs[0].device, self.cluster))
        material = self.materials.of(trial.runs[-1]).to_json()
        task = Task(trial.name, trial.to_json(), self.study.url, device, lane, 1, material, os.getcwd())
        return task.config()

    def _fits(self, trial: Trial) -> bool:
        """Whether its workers are free; one that wants more than there are runs alone."""
        used = sum(places(other, self.cluster) for other, _ in self._running.values())
        return used == 0 or used + places(trial, self.cluster) <= self.concurrency

    def end(self, name: str, error: str | None, attempts: int) -> None:
        self._ended.append((name, error, attempts))

    def _take_in(self) -> None:
        """Tell the agenda what has ended, here, where Tune lets an exception through."""
        while self._ended:
            name, error, attempts = self._ended.pop(0)
            trial, _ = self._running.pop(name)
            self.shares.pop(name)
            if error is not None:
                trial_store.write_failed(self.study, trial, error=error, attempts=attempts)
            stored = trial_store.read(self.study, name, trial)
            self._cost_done += cost(trial)
            self.agenda.finish(stored)

    def progress(self) -> SweepProgress:
        return SweepProgress.of(
            self.agenda, dict(self.shares), time.monotonic() - self._began, self._seconds_left()
        )

    def _seconds_left(self) -> float:
        begun = sum(cost(trial) * self.shares[name] for name, (trial, _) in self._running.items())
        done = self._cost_done + begun
        if done <= 0:
            return math.nan
        left = sum(cost(trial) for _, trial in self.agenda.left()) - begun
        return max(0.0, left) * (time.monotonic() - self._began) / done

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Nothing here: the callback below knows the trial, too."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the study is what a sweep resumes from."""

    def restore(self, checkpoint_path: str) -> None:
        raise NotImplementedError("a sweep resumes from its study, not from Tune's checkpoint")


def _last_error(trial: TuneTrial) -> str:
    """The last line of what the trial's last attempt raised."""
    text = Path(trial.error_file).read_text() if trial.error_file else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:ERROR_CHARACTERS] if lines else "no message"


class _Ear(_Unpickled, tune.Callback):
    """Passes what Tune reports about its trials to the queue."""

    def __init__(self, queue: Queue, progress: Callable[[SweepProgress], None] | None) -> None:
        self._queue, self._progress = queue, progress

    def on_trial_result(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, result: dict[str, Any], **info: Any
    ) -> None:
        name = _name(trial)
        if name in self._queue.shares:
            self._queue.shares[name] = float(result.get("progress", 0.0))

    def on_trial_recover(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any
    ) -> None:
        trial.set_config({**trial.config, "attempt": trial.config["attempt"] + 1})

    def on_trial_complete(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any
    ) -> None:
        last = trial.last_result or {}
        refused, attempts = last.get("refused"), last.get("attempts", trial.config["attempt"])
        error = None if refused is None else str(refused)[:ERROR_CHARACTERS]
        self._queue.end(_name(trial), error, attempts)

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        self._queue.end(_name(trial), _last_error(trial), trial.config["attempt"])

    def on_step_end(self, iteration: int, trials: list[TuneTrial], **info: Any) -> None:
        if self._progress:
            self._progress(self._queue.progress())
