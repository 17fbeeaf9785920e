"""An agenda's trials through one run of Ray Tune: stage after stage, in processes that are used again."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from itertools import count
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.search import Searcher

from froude.config import ConfigError
from froude.launch import ray_internals
from froude.launch.elastic import RunFailed, device_of
from froude.launch.ray_internals.worker_slots import Lanes
from froude.launch.threads import worker_resources
from froude.launch.trainable import Proxy, Task
from froude.space import Trial
from froude.store import Location
from froude.sweep import trial_store
from froude.sweep.agenda import Agenda, cost
from froude.sweep.changed_material import Materials
from froude.sweep.layouts import note
from froude.sweep.outage import through_outage
from froude.sweep.progress import SweepProgress
from froude.train.speed.timing import cores

LOOK_SECONDS = 10.0  # between looks for new nodes, as in training
TOLD_SECONDS = 0.5  # between two tellings of how far a sweep is
RETRIES = 2  # of a trial, after its first attempt
LOST_NODES = 30  # that a trial may lose besides: it did nothing wrong, but might be what ends them
ERROR_CHARACTERS = 500


@dataclass(frozen=True)
class Room:
    """CPUs and GPUs of a cluster, and whether all its nodes are on this host, where they may claim the same CPUs."""

    resources: Mapping[str, float]
    one_machine: bool

    @classmethod
    def now(cls) -> Room:
        """That of the connected cluster."""
        hosts = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        here = all(ip_address(host).is_loopback for host in hosts) or hosts == {
            ray.util.get_node_ip_address()
        }
        return cls(ray.cluster_resources(), here)

    def grown(self, now: Room) -> Room:
        """With what has come since. What was lost still counts: trials wait for it, or for what takes its place.

        GPUs count only where there were some at the start: all trials of a sweep go by what was decided then.
        """
        kinds = ("CPU", "GPU") if self.resources.get("GPU") else ("CPU",)
        most = {kind: max(room.resources.get(kind, 0) for room in (self, now)) for kind in kinds}
        return Room(most, self.one_machine and now.one_machine)

    def have(self, *, crowded: bool) -> dict[str, float]:
        """What is there: CPUs as far as they exist, unless the nodes of one machine may be `crowded`."""
        real = {"CPU": min(self.resources.get("CPU", 0), cores())} if self.one_machine and not crowded else {}
        return {**self.resources, **real}

    def at_once(self, trial: Trial, *, crowded: bool) -> int:
        """How many such trials run at once; one, if there is no room for any."""
        have = self.have(crowded=crowded)
        return max(1, min(int(have.get(kind, 0) / n) for kind, n in needs(trial, self.resources).items()))


def needs(trial: Trial, cluster: Mapping[str, float]) -> dict[str, float]:
    """CPUs and GPUs that all workers of a trial reserve together."""
    run, trainer = trial.runs[0], trial.runs[0].trainer
    if trainer.command:
        each = {"CPU": float(trainer.cpus), **({"GPU": trainer.gpus} if trainer.gpus else {})}
        return {kind: n * trainer.nodes for kind, n in each.items()}
    each = worker_resources(run.device, cluster, run.compute.threads)
    return {kind: n * trial.workers for kind, n in each.items()}


def run(
    agenda: Agenda,
    study: Location,
    concurrency: int | None,
    scratch: str,
    progress: Callable[[SweepProgress], None] | None = None,
) -> None:
    """Run what the agenda has, at most `concurrency` trials at a time; `scratch` is a folder for Tune's own notes."""
    queue = Queue(agenda, study, concurrency, Room.now)
    tune.Tuner(
        Proxy,
        tune_config=tune.TuneConfig(
            search_alg=queue,
            scheduler=Lanes(),
            num_samples=-1,
            max_concurrent_trials=10**6,  # the queue bounds them; without a number Tune starts one at a time
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
    if progress:  # the last trials may have ended since it was told
        progress(queue.progress())


def _name(trial: TuneTrial) -> str:
    return str(trial.config["name"])


class _Unpickled:
    """Tune pickles what it is given, for its own way of resuming; this has nothing to say there."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class Queue(_Unpickled, Searcher):
    """Feeds an agenda's trials to Tune as the cluster has room for them, which `look` tells again as nodes come."""

    def __init__(
        self, agenda: Agenda, study: Location, concurrency: int | None, look: Callable[[], Room]
    ) -> None:
        super().__init__()
        self.agenda, self.study, self.concurrency, self._look = agenda, study, concurrency, look
        self.room, self._looked = look(), time.monotonic()
        self.materials = Materials()
        self.shares: dict[str, float] = {}
        self._running: dict[str, tuple[Trial, int]] = {}
        self._ended: list[tuple[str, str | None, int]] = []  # trial, error, attempts
        self.over: Exception | None = None  # what ends the sweep, whatever trials are left
        self._layouts: dict[str, dict[str, list[str]]] = {}
        self._next: Trial | None = None
        self._began = time.monotonic()
        self._cost_done = 0.0
        self._costs: dict[str, float] = {}

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
        material = self.materials.of(trial.runs[-1])
        changed = self.agenda.changed.pop(trial.name, None)
        make_room = partial(trial_store.make_room, self.study, trial, material, changed, self.agenda.retired)
        through_outage(make_room)
        taken = {lane for _, lane in self._running.values()}
        wide = trial.workers > 1 or trial.runs[0].trainer.nodes > 1
        lane = -1 if wide else next(lane for lane in count() if lane not in taken)
        self._running[trial.name] = (trial, lane)
        self.shares[trial.name] = 0.0
        # Only what was reserved: a process on a simulated cluster sees the GPUs of the machine all the same.
        device = "" if lane < 0 else device_of(worker_resources(trial.runs[0].device, self.room.resources))
        words = material.to_json()
        task = Task(trial.name, trial.to_json(), self.study.url, device, lane, 1, words, os.getcwd())
        return task.config()

    def _fits(self, trial: Trial) -> bool:
        """Whether its workers are free; one that wants more than there are runs alone."""
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self.room, self._looked = self.room.grown(self._look()), time.monotonic()
        if not self._running:
            return True
        if self.concurrency is not None and len(self._running) >= self.concurrency:
            return False
        others = [needs(other, self.room.resources) for other, _ in self._running.values()]
        have = self.room.have(crowded=self.concurrency is not None)
        return all(
            sum(other.get(kind, 0) for other in others) + n <= have.get(kind, 0)
            for kind, n in needs(trial, self.room.resources).items()
        )

    def end(self, name: str, error: str | None, attempts: int) -> None:
        self._ended.append((name, error, attempts))

    def _take_in(self) -> None:
        """Tell the agenda what has ended, here, where Tune lets an exception through."""
        while self._ended:
            name, error, attempts = self._ended.pop(0)
            trial, _ = self._running.pop(name)
            self.shares.pop(name)
            stored = through_outage(partial(self._stored, trial, error, attempts))
            self._cost_done += self._cost(trial)
            self.agenda.finish(stored)
            self._note()
        if self.over is not None:
            raise self.over

    def _stored(self, trial: Trial, error: str | None, attempts: int) -> trial_store.Stored:
        """What the study has of a trial that has ended, which this writes where it failed."""
        if error is not None:
            trial_store.write_failed(self.study, trial, error=error, attempts=attempts)
        return trial_store.read(self.study, trial.name, trial)

    def _note(self) -> None:
        """Keep in the study how stages were laid out, where it is new."""
        if (layouts := self.agenda.layouts()) != self._layouts:
            through_outage(lambda: note(self.study, layouts))
            self._layouts = layouts

    def progress(self) -> SweepProgress:
        return SweepProgress.of(
            self.agenda, dict(self.shares), time.monotonic() - self._began, self._seconds_left()
        )

    def _seconds_left(self) -> float:
        begun = sum(self._cost(trial) * self.shares[name] for name, (trial, _) in self._running.items())
        done = self._cost_done + begun
        if done <= 0:
            return math.nan
        left = sum(self._cost(trial) for _, trial in self.agenda.left()) - begun
        return max(0.0, left) * (time.monotonic() - self._began) / done

    def _cost(self, trial: Trial) -> float:
        """Computed once: a trial of many branches takes a millisecond, and each event of Tune asks for all trials."""
        if trial.name not in self._costs:
            self._costs[trial.name] = cost(trial)
        return self._costs[trial.name]

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Nothing here: the callback below knows the trial, too."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the study is what a sweep resumes from."""

    def restore(self, checkpoint_path: str) -> None:
        raise NotImplementedError("a sweep resumes from its study, not from Tune's checkpoint")


def _error(trial: TuneTrial) -> str:
    """What the trial's last attempt raised, as Tune wrote it; what it pickled beside that is left alone."""
    text = Path(trial.error_file).read_text() if trial.error_file else ""
    return text.rpartition("Failure # ")[2]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:ERROR_CHARACTERS] if lines else "no message"


class _Ear(_Unpickled, tune.Callback):
    """Passes what Tune reports about its trials to the queue."""

    def __init__(self, queue: Queue, progress: Callable[[SweepProgress], None] | None) -> None:
        self._queue, self._progress = queue, progress
        self._told = -TOLD_SECONDS
        self._nodes: dict[str, str] = {}  # on which each trial's present attempt runs
        self._lost: Counter[str] = Counter()  # attempts of each trial that ended with a node
        self._counted: Counter[str] = Counter()  # failures of each trial as Tune has them

    def on_trial_result(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, result: dict[str, Any], **info: Any
    ) -> None:
        name = _name(trial)
        if name in self._queue.shares:
            self._queue.shares[name] = float(result.get("progress", 0.0))
            self._nodes[name] = result.get("node", "")

    def on_trial_recover(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any
    ) -> None:
        """Count the attempt, and no failure of the trial where its node was lost: Tune excepts only nodes on notice."""
        name, told = _name(trial), trial.run_metadata
        node = self._nodes.pop(name, "")
        if told.num_failures > self._counted[name] and ray_internals.node_lost(_error(trial), node):
            self._lost[name] += 1
            if self._lost[name] <= LOST_NODES:
                told.num_failures -= 1
        self._counted[name] = told.num_failures
        trial.set_config({**trial.config, "attempt": trial.config["attempt"] + 1})

    def on_trial_complete(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any
    ) -> None:
        last = trial.last_result or {}
        if unseen := last.get("unseen"):
            self._queue.over = ConfigError(
                str(unseen)
            )  # its host would fail trial after trial: it is the first free
            return
        if said := last.get("taken_over"):
            words = (
                f"another sweep of {self._queue.study} has taken over: {said}; what this one finished is kept"
            )
            self._queue.over = RunFailed(words, "Fenced")
            return  # no row: the trial is the other sweep's
        refused, attempts = last.get("refused"), last.get("attempts", trial.config["attempt"])
        error = None if refused is None else str(refused)[:ERROR_CHARACTERS]
        self._queue.end(_name(trial), error, attempts)

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        name, attempts, error = _name(trial), trial.config["attempt"], _last_line(_error(trial))
        if lost := self._lost[name]:
            error = f"{error} (its node was lost in {lost} of {attempts - 1} attempts before)"
        self._queue.end(name, error, attempts)

    def on_step_end(self, iteration: int, trials: list[TuneTrial], **info: Any) -> None:
        if self._progress and time.monotonic() - self._told >= TOLD_SECONDS:
            self._progress(self._queue.progress())
            self._told = time.monotonic()
