"""One run with a resize, a restart and a rollback, sent to trackers while it is trained."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tracked_run
import wandb
from tracked_run import RESIZED, RUN

from froude.store import Location
from froude.tracking import load
from froude.tracking.session import RunSession
from froude.train.observers import Observer
from froude.train.rows import Row

#: Where each tracker keeps what it was told, below the folder of the test.
TARGETS = {
    "wandb": "wandb:large-runs",
    "mlflow": "mlflow:sqlite:///{}/mlflow.db",
    "tensorboard": "tensorboard:{}/boards",
}


class Sends(Observer):
    """Has sessions look at the log every few steps, as their processes do every few seconds."""

    def __init__(self, sessions: list[RunSession]) -> None:
        self.sessions = sessions

    def wrote(self, row: Row) -> None:
        if row["step"] % 7 == 0:
            for session in self.sessions:
                session.send()


@pytest.fixture(scope="session")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the study and what each tracker has of it."""
    folder = tmp_path_factory.mktemp("told")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_DIR", str(folder))
        study = folder / "study"
        program = [sys.executable, tracked_run.__file__]
        path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        ranks = [subprocess.Popen([*program, rank, str(study)], env=path) for rank in "01"]

        def sessions() -> list[RunSession]:
            """Those of a driver's processes."""
            places = [target.format(folder) for target in TARGETS.values()]
            return [RunSession(Location.parse(study), RUN, load(place)) for place in places]

        first = sessions()  # imports, while the ranks have theirs
        assert [rank.wait() for rank in ranks] == [0, 0]
        tracked_run.train(study, 2 * RESIZED + 250, (Sends(first),))  # interrupted, and closed in good order
        for session in first:
            session.send(final=True)
        lost = sessions()
        tracked_run.train(study, 425, (Sends(lost),))
        for session in lost:  # killed: nothing is closed
            session.send()
        last = sessions()
        tracked_run.train(study, 0, (Sends(last),))
        for session in last:
            session.send(final=True)
        wandb.teardown()  # writes what it holds
    return folder
