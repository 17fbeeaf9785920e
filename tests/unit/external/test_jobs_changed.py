"""Jobs whose script, settings or space are others than when they were written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import wait_until

from froude import Study
from froude.config import ConfigError
from froude.external import jobs
from froude.launch.sweep import open_study
from froude.space import Grid, Space, Trial
from froude.store import Location

pytestmark = pytest.mark.slow


class Sweep:
    """A sweep by jobs of a script, `train.py`, in a folder of its own."""

    def __init__(self, root: Path, commanded) -> None:
        self.script, self.place = root / "train.py", root / "jobs"
        self.study = Location.parse(root / "study")
        words = commanded().trainer.command
        self._tell, self._base = words[words.index("-c") + 1], commanded()
        self._command = [sys.executable, "-I", "-S", str(self.script)]

    def edit(self, code: str) -> None:
        """Give the script another end: what it tells besides that it began."""
        self.script.write_text(f"{self._tell}\n{code}\n")

    def run(self, name: str, **changes):
        return self._base.replace({"trainer.command": self._command, **changes}, name=name)

    def write(self, *trials: Trial, rerun_changed: bool = False, fresh: bool = False) -> jobs.State:
        if not fresh and (self.place / jobs.ABOUT).exists():
            jobs.ingest(self.place)
        space = Space("tiny", 0, (Grid("law", lambda rows: list(trials), "loss_law"),), self.run("large"))
        agenda = open_study(space, self.study, trust=True, fresh=fresh, rerun_changed=rerun_changed)
        return jobs.write_jobs(agenda, space, self.study, self.place)

    def train(self) -> subprocess.CompletedProcess[str]:
        """Run the list as a user would."""
        return subprocess.run(["sh", "jobs.txt"], cwd=self.place, check=False, capture_output=True, text=True)

    def losses(self) -> dict[str, float]:
        return dict(Study(self.study).trials().select("run", "loss").collect().iter_rows())


@pytest.fixture
def sweep(tmp_path, commanded) -> Sweep:
    made = Sweep(tmp_path, commanded)
    made.edit("")
    return made


def one(run) -> Trial:
    return Trial(run.name, (run,))


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The job of a folder, which has begun to train."""
    with subprocess.Popen(["sh", folder / "job.sh"]) as job:
        try:
            assert wait_until((folder / "metrics.jsonl").exists)
            yield job
        finally:
            job.kill()


def test_a_job_refuses_a_script_that_was_edited_since_it_was_written(sweep):
    a, b = one(sweep.run("a")), one(sweep.run("b"))
    before = sweep.script.read_text()
    sweep.write(a, b)
    subprocess.run(["sh", sweep.place / "a" / "job.sh"], check=True)
    sweep.edit("tell(step=10, validation_loss=1.0)")
    refused = sweep.train()
    assert f"must be those that it was written for, but {sweep.script}: FAILED" in refused.stderr
    assert jobs.ingest(sweep.place).waiting == ["b"]
    with pytest.raises(ConfigError, match=r"since 'a' module train\.py"):
        sweep.write(a, b)
    sweep.script.write_text(before)  # restored, the same job goes on
    sweep.train()
    assert jobs.ingest(sweep.place).done == ["a", "b"]
    assert sweep.losses() == {"a": 3.0, "b": 3.0}


def test_jobs_of_an_edited_script_are_written_anew(sweep):
    trial = one(sweep.run("a"))
    sweep.write(trial)
    sweep.train()
    sweep.edit("tell(step=10, validation_loss=1.0)")
    assert sweep.write(trial, rerun_changed=True).waiting == ["a"]
    assert sweep.train().stderr == ""
    assert jobs.ingest(sweep.place).done == ["a"]
    assert sweep.losses() == {"a": 1.0}


def test_a_job_that_runs_keeps_its_folder(sweep):
    sweep.edit("while not os.path.exists('go'): time.sleep(0.01)")
    trial, folder = one(sweep.run("a")), sweep.place / "a"
    sweep.write(trial)
    with running(folder) as job:
        sweep.edit("")
        with pytest.raises(ConfigError, match=rf"{folder} is to begin anew; wait until"):
            sweep.write(trial)
        (folder / "go").touch()
        assert job.wait(60) == 0
    assert sweep.losses() == {}
    assert jobs.ingest(sweep.place).done == ["a"]
