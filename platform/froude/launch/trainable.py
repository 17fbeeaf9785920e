"""One trial as Ray Tune runs it: a plain trainable, used again for trial after trial, that trains in its own process.

A trial of several workers runs on the head, trains nothing itself, and drives Ray Train from there.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import tune

from froude.config import ConfigError
from froude.external.trial import Failed
from froude.launch.commanded.nodes import resources, starts
from froude.launch.threads import reserved
from froude.material import commands
from froude.space import Trial
from froude.store import Location
from froude.sweep import trial_store
from froude.sweep.outage import outage_in, through_outage
from froude.sweep.preflight import cpus

if TYPE_CHECKING:
    from froude.external.rows import Rows
    from froude.material import Material
    from froude.train.trial import Outcome

REPORT_SECONDS = 0.5


class Stopped(RuntimeError):
    """The trial was told to end early."""


class Unseen(RuntimeError):
    """This host does not see the study, so whatever it trained would be lost."""


class TakenOver(RuntimeError):
    """Another sweep's driver has the trial's run now; to try again would take it back."""


@dataclass(frozen=True)
class Task:
    """What Tune hands to a worker: a trial by name and as JSON, where its rows go, its device, which attempt this is.

    `material` is what the driver has, as JSON ("": nothing said): a worker with another corpus or code trains nothing.
    `device` is that of a trial of one worker, empty for one of several, which asks its cluster. `lane` numbers the
    workers of a sweep: a trial reuses the process of the last one in its lane, and no other. `base` is the driver's
    working directory, where a command's files are looked up unless this process's own has them.
    """

    name: str
    trial: str
    study: str
    device: str
    lane: int = 0
    attempt: int = 1
    material: str = ""
    base: str = ""

    def config(self) -> dict[str, Any]:
        return asdict(self)


class Proxy(tune.Trainable):
    """Trains one trial per configuration; its parts are in the study before Tune hears of the end."""

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        """What the trial of a task reserves: a GPU or a CPU, as its device says, and a CPU for each thread.

        A trial of several workers reserves a place on the head only, which outlives the nodes; Ray Train reserves the
        rest.
        """
        task = Task(**config)
        run = Trial.from_json(task.trial).runs[0]
        if run.trainer.command:
            return tune.PlacementGroupFactory(*resources(run.trainer, task.lane))
        if not task.device:
            return tune.PlacementGroupFactory([{"node:__internal_head__": 0.01}])
        # Tune hands a waiting trial any free process of equal resources and drops the one that is starting for it, so
        # with trials shorter than a process's start all would queue for the first one. A byte tells the lanes apart.
        wanted = reserved(task.device, run.compute.threads)
        return tune.PlacementGroupFactory([{**wanted, "memory": task.lane + 1}])

    def setup(self, config: dict[str, Any]) -> None:
        self._pool = ThreadPoolExecutor(1, initializer=_one_thread)
        self._pool.submit(_import_torch).result()
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._task = Task(**new_config)
        self._trial = Trial.from_json(self._task.trial)
        self._future: Future[list[str]] | None = None
        self._progress = 0.0
        self._stop = False
        return True

    def step(self) -> dict[str, Any]:
        """Wait a moment for the training, which goes on between calls; its share done, and at last its end.

        What no other attempt would get past is an end, too: Tune tries again what raises.
        """
        if self._future is None:
            self._future = self._pool.submit(self._work)
        wait([self._future], REPORT_SECONDS)
        if not self._future.done():
            node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""
            return {"done": False, "progress": self._progress, "node": node}
        try:
            return {"done": True, "progress": 1.0, "statuses": ",".join(self._future.result())}
        except Unseen as error:
            return {"done": True, "unseen": str(error)}
        except TakenOver as error:
            return {"done": True, "taken_over": str(error)}
        except ConfigError as error:
            if outage_in(error):  # Tune tries again
                raise
            return {"done": True, "refused": f"ConfigError: {error}"}
        except Failed as error:
            return {"done": True, "refused": str(error), "attempts": self._task.attempt - 1 + error.attempts}

    def cleanup(self) -> None:
        self._stop = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _note(self, done: int, total: int) -> None:
        self._progress = done / total
        self._heed_stop()

    def _heed_stop(self) -> None:
        if self._stop:
            raise Stopped(self._trial.name)

    def _work(self) -> list[str]:
        study = Location.parse(self._task.study)
        _check_seen(study)
        material = self._material()
        outcome: Outcome | Rows
        if self._trial.runs[0].trainer.command:
            outcome = self._commanded(study, material)
        else:
            outcome = self._distributed(study) if self._trial.workers > 1 else self._alone()
        for row in (*outcome.trials, *outcome.steps, *outcome.evals):
            row["attempts" if "attempts" in row else "attempt"] += self._task.attempt - 1
        write = partial(
            trial_store.write,
            study,
            self._trial,
            trials=outcome.trials,
            steps=outcome.steps,
            evals=outcome.evals,
            material=material,
        )
        through_outage(write, self._heed_stop)
        return [row["status"] for row in outcome.trials]

    def _material(self) -> Material:
        """What this process trains on, which must be what the driver has."""
        from froude.train.api import material_of

        run = self._trial.runs[-1]
        here = commands.material(run, self._roots()) if run.trainer.command else material_of(run)
        return here.required(json.loads(self._task.material)) if self._task.material else here

    def _roots(self) -> list[str]:
        """Where files of a command may be: Tune has moved this process to a folder of its own."""
        return [os.environ.get("TUNE_ORIG_WORKING_DIR") or os.getcwd(), self._task.base]

    def _commanded(self, study: Location, material: Material) -> Rows:
        """Let the trial's command train, in a folder of the study, or of this host where that is not local."""
        from froude.external.trial import run_trial

        place = (
            study.path / "external" if study.is_local else Path(tempfile.mkdtemp(prefix="froude-external-"))
        )
        try:
            return run_trial(
                self._trial,
                place,
                material=material,
                roots=self._roots(),
                progress=self._note,
                start=starts(material),
            )
        finally:
            if not study.is_local:
                for file in (path for path in place.rglob("*") if path.suffix in (".txt", ".jsonl", ".toml")):
                    kept = study / "external" / file.relative_to(place).as_posix()
                    through_outage(partial(kept.replace, file.read_bytes()), self._heed_stop)
                shutil.rmtree(place, ignore_errors=True)

    def _alone(self) -> Outcome:
        import torch

        from froude.train.trial import run_trial

        trial = self._trial
        torch.set_num_threads(cpus(trial.runs))  # a trial before it may have had others
        return run_trial(
            trial.runs,
            trial=trial.name,
            stop_loss=trial.stop_loss,
            device=self._task.device,
            progress=self._note,
        )

    def _distributed(self, study: Location) -> Outcome:
        """Train the trial's only run on several workers; its metrics are below `runs/`, in its commit log."""
        from froude.launch.cluster import ConnectedCluster
        from froude.launch.elastic import RunFailed, train
        from froude.train.api import build_model, build_source, bytes_per_token, count_parameters
        from froude.train.rows import trial_row
        from froude.train.trial import Outcome

        (run,) = self._trial.runs
        cluster = ConnectedCluster(str(ray.get_runtime_context().gcs_address))
        began, stopped = time.perf_counter(), ""
        try:
            # Trust was asked for before the sweep began.
            train(run, study, cluster=cluster, trust=True, progress=lambda at: self._note(at.step, run.steps))
        except RunFailed as error:
            if error.kind == "Fenced":
                raise TakenOver(str(error)) from error
            if error.kind != "Diverged":
                raise
            stopped = str(error)
        losses, validation = losses_of(study, run.name)
        model = build_model(run, "meta")
        row = trial_row(
            run,
            count_parameters(model),
            float(model.flops_per_token()),  # type: ignore[operator]
            losses=losses,
            loss=math.nan if stopped else validation.pop(),
            seconds=time.perf_counter() - began,
            trial=self._trial.name,
            workers=run.max_workers,
            validation=validation,
            stopped=stopped,
            bytes_per_token=bytes_per_token(run, build_source(run, "validation")),
        )
        return Outcome(trials=[row])


def _check_seen(study: Location) -> None:
    """Unseen unless a local study has its study.json here, which the driver wrote before the first trial."""
    if study.is_local and not (study / "study.json").exists():
        host = f"host {ray.util.get_node_ip_address()}" if ray.is_initialized() else "this host"
        raise Unseen(
            f"all hosts of a sweep must see its study, but {host} does not see {study}; mount it there"
        )


def losses_of(study: Location, run: str) -> tuple[list[float], list[float]]:
    """Training losses, one a step, and validation losses of a run that Ray Train has trained (nats per token)."""
    import polars as pl

    from froude.study import Study

    read = Study(study)
    frames = (read.steps(trials=False), read.evals().filter(pl.col("split") == "validation"))
    steps, evals = (frame.filter(pl.col("run") == run).sort("step").collect()["loss"] for frame in frames)
    return steps.to_list(), evals.to_list()


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)  # OpenMP's count is a thread's own, so it must be set in the one that trains


def _import_torch() -> None:
    import froude.train.worker  # noqa: F401
