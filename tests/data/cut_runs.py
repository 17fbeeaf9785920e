"""Runs whose attempts end after a step, as when a host is lost, and go on from what was kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from froude.checkpoint.run_store import RunStore
from froude.checkpoint.tensors import digest
from froude.config import Run
from froude.runlog import LogReader
from froude.store import Location
from froude.train.api import Unsupervised
from froude.train.worker import run_worker


class StopsAt(Unsupervised):
    """Ends an attempt after a step."""

    def __init__(self, attempt: int, step: int) -> None:
        super().__init__(attempt)
        self.step = step

    def poll(self, step: int) -> Any:
        return "stop" if step == self.step else "none"


def trained(folder: Path, run: Run, *attempts: int) -> str:
    """The digest of parameters and state after attempts that stop at these steps, each a new trainer."""
    place = Location.parse(folder) / "runs" / run.name
    for after in attempts:
        store = RunStore(place, run.name)
        run_worker(run, store, StopsAt(store.open_attempt("recipe"), after), device="cpu")
    return digest(place, LogReader(place).lineage()[-1])
