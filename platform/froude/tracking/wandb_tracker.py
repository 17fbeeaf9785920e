"""Weights & Biases, online or offline as WANDB_MODE says, with W&B's own step for the run's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb

from froude.promote.imported_runs import wandb_files
from froude.store import Location
from froude.tracking.places import mode
from froude.tracking.tracker import Point, Subject

STATUS = "status"  # in a run's summary, once it has ended


class WandB:
    """Runs of a project (`PROJECT` or `ENTITY/PROJECT`): a study is a group, a stage a job type.

    Online the service says what it has, offline the files do. A command that goes on with a run adds a folder with the
    rest under the same id.
    """

    def __init__(self, place: str) -> None:
        self.entity, _, self.project = place.rpartition("/")
        if wandb.run is not None:  # of a session that failed
            wandb.run.finish(exit_code=1)
        wandb.teardown()  # `finish` returns before the file is written (0.31), and it is read below
        self.mode = mode()
        self.offline = self.mode != "online"
        self.folder = Path(os.environ.get("WANDB_DIR") or ".")
        self.run: Any = None

    def ended(self, study: str) -> set[str]:
        if self.offline:
            return {run.id for run in self._files() if STATUS in run.summary}
        api = wandb.Api()
        path = f"{self.entity or api.default_entity}/{self.project}"
        try:
            return {run.id for run in api.runs(path, filters={"group": study}) if STATUS in run.summary}
        except ValueError:  # no such project yet
            return set()

    def open(self, subject: Subject) -> int:
        last = max((row["_step"] for run in self._files(subject.key) for row in run.history), default=0)
        self.run = wandb.init(
            entity=self.entity or None,
            project=self.project,
            id=subject.key,
            name=subject.name,
            group=subject.study,
            job_type=subject.stage,
            dir=str(self.folder),
            mode=self.mode,
            config={"run": dict(subject.config), **subject.tags},
            resume="allow",
            # Of this process they would tell nothing: what trains is elsewhere.
            settings=wandb.Settings(
                console="off", silent=True, x_disable_stats=True, disable_git=True, disable_code=True
            ),
        )
        return max(last, int(self.run.step) - 1)

    def send(self, points: Sequence[Point]) -> None:
        for point in points:
            told = {"events": point.events} if point.events else {}
            self.run.log({**point.values, **told, "_timestamp": point.time.timestamp()}, step=point.step)

    def close(self, status: str, summary: Mapping[str, Any]) -> None:
        self.run.summary.update({**summary, STATUS: status} if status else dict(summary))
        self.run.finish(exit_code=0 if status in ("finished", "diverged", "superseded") else 1)
        self.run = None

    def _files(self, key: str = "") -> list[wandb_files.OfflineRun]:
        """What lies where W&B writes offline runs: below WANDB_DIR, else here."""
        if not self.offline:
            return []
        files = (self.folder / "wandb").glob(f"offline-run-*/run-{key or '*'}.wandb")
        runs = {}
        for file in sorted(files):
            for run in wandb_files.read(Location.parse(file)):
                runs[file] = run
        return list(runs.values())
