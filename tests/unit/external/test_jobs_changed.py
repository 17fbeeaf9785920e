"""Jobs whose script, settings or space are others than when they were written."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import wait_until

from froude import Study
from froude.cli import main
from froude.config import ConfigError, Run
from froude.external import jobs
from froude.launch.sweep import open_study
from froude.space import Grid, Space, Trial
from froude.store import Location

pytestmark = pytest.mark.slow

BEGIN = """
run = json.load(open(os.environ["FROUDE_RUN"]))
steps = run["tokens"] // 768
tell(step=1, loss=4.0)
"""
END = "tell(step=steps, validation_loss=3.0)"


class Sweep:
    """A sweep by jobs of a script, `train.py`, in a folder of its own."""

    def __init__(self, root: Path, commanded) -> None:
        self.script, self.place = root / "train.py", root / "jobs"
        self.study = Location.parse(root / "study")
        base = commanded(BEGIN)
        *words, _, self._begin = base.trainer.command
        self._base = base.replace({"trainer.command": [*words, str(self.script)]})

    def edit(self, code: str) -> None:
        """Give the script another end."""
        self.script.write_text(self._begin + code)

    def run(self, name: str, **changes) -> Run:
        return self._base.replace(changes, name=name)

    def space(self, *trials: Trial) -> Space:
        return Space("tiny", 0, (Grid("law", lambda rows: list(trials), "loss_law"),), self.run("large"))

    def write(self, *trials: Trial, rerun_changed: bool = False) -> jobs.State:
        if (self.place / jobs.ABOUT).exists():
            jobs.ingest(self.place)
        space = self.space(*trials)
        agenda = open_study(space, self.study, trust=True, fresh=False, rerun_changed=rerun_changed)
        return jobs.write_jobs(agenda, space, self.study, self.place)

    def train(self) -> subprocess.CompletedProcess[str]:
        """Run the list as a user would."""
        return subprocess.run(["sh", "jobs.txt"], cwd=self.place, check=False, capture_output=True, text=True)

    def losses(self) -> dict[str, float]:
        return dict(Study(self.study).trials().select("run", "loss").collect().iter_rows())


@pytest.fixture
def sweep(tmp_path, commanded) -> Sweep:
    made = Sweep(tmp_path, commanded)
    made.edit(END)
    return made


def one(run: Run) -> Trial:
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
    sweep.edit("while not os.path.exists('go'): time.sleep(0.01)\n" + END)
    trial, folder = one(sweep.run("a")), sweep.place / "a"
    sweep.write(trial)
    with running(folder) as job:
        sweep.edit(END)
        with pytest.raises(ConfigError, match=rf"{folder} is to begin anew; wait until"):
            sweep.write(trial)
        (folder / "go").touch()
        assert job.wait(60) == 0
    assert sweep.losses() == {}
    assert jobs.ingest(sweep.place).done == ["a"]


def test_rows_of_other_settings_are_retired_when_their_jobs_are_written(sweep):
    """They are in nothing that is fitted meanwhile, and no results of the new jobs replace them unseen."""
    old, new = one(sweep.run("a")), one(sweep.run("a", **{"optimizer.lr": 0.5}))
    sweep.write(old)
    sweep.train()
    jobs.ingest(sweep.place)
    assert sweep.write(new, rerun_changed=True).waiting == ["a"]
    assert sweep.losses() == {}
    (retired,) = (sweep.study / "retired").children()
    assert (sweep.study / "retired" / retired / "trials" / "a.parquet").exists()
    assert sweep.write(new).waiting == ["a"]
    sweep.train()
    assert jobs.ingest(sweep.place).done == ["a"]


def test_a_trial_with_a_branch_more_trains_that_branch(sweep):
    """What was taken in were the branches that it had: they are kept, and are not all of it."""
    short, long = (sweep.run(f"n{n}", tokens=768 * n, seed=1) for n in (5, 10))
    more = sweep.run("n20", tokens=768 * 20, seed=1)
    sweep.write(Trial("a", (short, long)))
    sweep.train()
    jobs.ingest(sweep.place)
    assert sweep.write(Trial("a", (short, long, more)), rerun_changed=True).waiting == ["a"]
    assert "a/n10" not in (sweep.place / "jobs.txt").read_text()
    sweep.train()
    assert jobs.ingest(sweep.place).done == ["a"]
    assert sweep.losses() == dict.fromkeys(("n5", "n10", "n20"), 3.0)


def test_a_fresh_sweep_trains_its_jobs_again(sweep, monkeypatch, capsys):
    trial = one(sweep.run("a"))
    words = ["sweep", "space.py", "--out", str(sweep.study), "--write-jobs", str(sweep.place), "--trust"]
    monkeypatch.setattr("froude.space.load_space", lambda file, seed: sweep.space(trial))
    assert main(words) == 0
    sweep.train()
    assert jobs.ingest(sweep.place).done == ["a"]
    assert main([*words, "--fresh"]) == 0
    assert "0 done (0 diverged), 1 waiting" in capsys.readouterr().out
    sweep.edit("while not os.path.exists('go'): time.sleep(0.01)\n" + END)
    assert main([*words, "--fresh"]) == 0
    with running(sweep.place / "a"):
        (sweep.study / "steps" / "kept.parquet").replace(b"")
        assert main([*words, "--fresh"]) == 2  # before anything is deleted
        assert "wait until it has ended" in capsys.readouterr().err
        assert (sweep.study / "steps" / "kept.parquet").exists()


def test_jobs_whose_study_was_deleted_are_taken_in_again(sweep):
    trial = one(sweep.run("a"))
    sweep.write(trial)
    sweep.train()
    jobs.ingest(sweep.place)
    shutil.rmtree(sweep.study.path)
    agenda = open_study(sweep.space(trial), sweep.study, trust=True, fresh=False)
    assert jobs.write_jobs(agenda, sweep.space(trial), sweep.study, sweep.place).done == ["a"]


def test_jobs_of_another_study_are_not_taken_into_this_one(sweep, tmp_path, monkeypatch, capsys):
    trial, other = one(sweep.run("a")), tmp_path / "other"
    sweep.write(trial)
    sweep.train()
    monkeypatch.setattr("froude.space.load_space", lambda file, seed: sweep.space(trial))
    open_study(sweep.space(trial), Location.parse(other), trust=True, fresh=False)
    words = ["sweep", "space.py", "--out", str(other), "--write-jobs", str(sweep.place), "--trust"]
    assert main(words) == 2
    assert "a folder has the jobs of one study" in capsys.readouterr().err
    assert not (other / "trials" / "a.parquet").exists()


def test_trials_that_left_the_space_are_neither_listed_nor_counted(sweep):
    """As for trials that Ray runs: what of them is in the study stays there."""
    a, b, bad, done = (one(sweep.run(name)) for name in ("a", "b", "bad", "done"))
    sweep.write(a, b, bad, done)
    subprocess.run(["sh", sweep.place / "done" / "job.sh"], check=True)
    (sweep.place / "bad" / "exit_code").write_text("1\n")
    assert jobs.ingest(sweep.place).failed.keys() == {"bad"}
    state = sweep.write(a)
    assert (state.waiting, state.failed, state.done, state.earlier) == (["a"], {}, ["done"], ["b", "bad"])
    assert "b, bad: of an earlier version of the space" in state.lines()[-1]
    assert (sweep.place / "jobs.txt").read_text().count("\n") == 1
    sweep.train()
    assert jobs.ingest(sweep.place).done == ["a", "done"]
    assert sweep.losses() == {"a": 3.0, "bad": None, "done": 3.0}
    assert sweep.write(a, b).waiting == ["b"]  # and back again


def test_branches_after_the_one_that_reaches_the_loss_to_stop_at_are_not_listed(sweep):
    runs = [sweep.run(f"n{n}", tokens=768 * n, seed=1) for n in (5, 10, 20)]
    sweep.edit("tell(step=steps, validation_loss=3.0 if steps < 10 else 2.0)")
    trial, told = Trial("a", tuple(runs), stop_loss=2.5), []
    for _ in range(2):
        assert sweep.write(trial).waiting == ["a"]
        told.append((sweep.place / "jobs.txt").read_text())
        sweep.train()
    assert told == [f"sh {sweep.place}/a/{name}/job.sh\n" for name in ("n5", "n10")]
    assert sweep.write(trial).done == ["a"]
    assert sweep.losses() == {"n5": 3.0, "n10": 2.0}
