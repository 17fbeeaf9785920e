"""Failures at a chosen moment of a commit, against a process that trains without a cluster."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from froude.checkpoint.tools import verify
from froude.checkpoint.writer import MANIFEST
from froude.config import Run
from froude.launch.chaos import faults, saves
from froude.launch.chaos.scene import Scene, wait_for
from froude.launch.chaos.small_disk import SmallDisk
from froude.runlog import LogReader, record_name
from froude.store import Location

pytestmark = pytest.mark.slow  # each starts a process that trains

RUN = Run(name="large", model={"width": 32}, slots=6, tokens=768 * 5000, checkpoint_every=2, eval_windows=64)
TRAIN = """
import sys
from froude.checkpoint.run_store import RunStore
from froude.config import Run
from froude.store import Location
from froude.train.api import Unsupervised
from froude.train.worker import run_worker

run = Run.from_toml(sys.stdin.read())
store = RunStore(Location.parse(sys.argv[1]), run.name)
run_worker(run, store, Unsupervised(attempt=store.open_attempt("recipe")), device="cpu")
"""


class Alone:
    """A driver whose only worker is one process."""

    def __init__(self, place: Location) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", TRAIN, place.url], stdin=subprocess.PIPE, text=True
        )
        assert self.process.stdin is not None
        self.process.stdin.write(RUN.to_toml())
        self.process.stdin.close()

    def workers(self) -> list[psutil.Process]:
        return [psutil.Process(self.process.pid)]


@contextmanager
def training(place: Location, disk: SmallDisk | None = None) -> Iterator[Scene]:
    """A run that has committed twice and goes on."""
    made = Scene(RUN, place, {}, {}, Path("unused"), disk=disk)
    made.lives.append(Alone(place))  # type: ignore[arg-type]
    try:
        wait_for(lambda: len(made.saved()) > 1, "two checkpoints")
        yield made
    finally:
        made.life.process.kill()
        made.life.process.wait()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with training(Location.parse(tmp_path) / "runs" / RUN.name) as made:
        yield made


def unnamed(place: Location) -> list[Location]:
    """Folders below data/ that no record names and that hold something."""
    found = []
    for path in (place / "data").walk():
        folder = path.parent
        number = int(folder.name.rpartition(".")[2])
        if not (place / "commits" / record_name(number)).exists() and folder not in found:
            found.append(folder)
    return found


def test_a_kill_before_the_record_leaves_data_and_manifest(scene: Scene) -> None:
    next(saves.kill_before_record(scene, 0.5))
    assert scene.struck is not None
    assert scene.life.process.wait() == -signal.SIGKILL
    (folder,) = unnamed(scene.place)
    assert (folder / MANIFEST).exists()
    assert scene.log.head() == LogReader(scene.place).head()  # and the log is one chain


def test_a_kill_in_a_save_leaves_no_manifest(scene: Scene) -> None:
    next(saves.kill_in_save(scene, 0.5))
    assert scene.life.process.wait() == -signal.SIGKILL
    assert not [folder for folder in unnamed(scene.place) if (folder / MANIFEST).exists()]


@pytest.mark.parametrize("target", [0.0, 0.999])
def test_a_flipped_byte_is_found_and_is_the_newest(scene: Scene, target: float) -> None:
    next(saves.flipped_byte(scene, target))
    assert scene.life.process.wait() == -signal.SIGKILL
    records = LogReader(scene.place).records()
    damage = {record.seq for record, wrong in verify(scene.place, records) if wrong}
    assert damage == scene.damaged
    assert damage == {scene.saved()[-1].seq}


@pytest.mark.skipif(bool(faults.no_mount(Location("/"))), reason="mounting a file system needs root on Linux")
def test_a_full_disk_ends_a_worker_and_damages_nothing(tmp_path: Path) -> None:
    place = Location.parse(tmp_path) / "runs" / RUN.name
    with SmallDisk(place.path, 2**26) as disk, training(place, disk) as made:
        next(faults.disk_full(made, 0.5))
        assert made.life.process.wait() == 1
        assert not disk.full()
    records = LogReader(place).records()
    assert [wrong for _, wrong in verify(place, records) if wrong] == []
