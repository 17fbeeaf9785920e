"""A sweep by jobs: written, run by a shell in Slurm's place, taken in; the same study as trained here."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import polars as pl
import psutil
import pytest
from waiting import wait_until

from froude import Study
from froude.cli import main
from froude.external import jobs
from froude.external.trial import run_trial
from froude.launch.sweep import open_study
from froude.space import Grid, Search, Space, Trial, Uniform
from froude.store import Location
from froude.sweep import trial_store

pytestmark = pytest.mark.slow

FLAKY = """
tell(step=1, loss=4.0)
if attempt == 1:
    os.kill(os.getpid(), 9)
tell(step=10, validation_loss=2.0)
"""
DIVERGED = "tell(step=1, loss=4.0); tell(step=2, loss=float('nan'))"
#: Of rows, what differs from one time to the next.
TIMES = ["time", "seconds"]


@pytest.fixture
def space(commanded) -> Space:
    """A search of three, and after it a diverged run, one that is killed once, and branches, of a seed it found."""
    base = commanded()
    search = Search(
        "search", base, {"optimizer.beta2": Uniform(0.9, 0.99)}, 3, 1, {"optimizer.beta2": 0.95}, parallel=1
    )

    def layout(rows: pl.DataFrame) -> list[Trial]:
        seed = 2 if rows.height == 3 else 1
        code = "tell(step=json.load(open(os.environ['FROUDE_RUN']))['tokens'] // 768, validation_loss=2.5)"
        branches = tuple(commanded(code, name=f"n{n}", steps=n, seed=seed) for n in (5, 10))
        return [
            Trial("diverged", (commanded(DIVERGED, name="diverged", seed=seed),)),
            Trial("flaky", (commanded(FLAKY, name="flaky", seed=seed, trainer__retries=1),)),
            Trial("trunk", branches),
        ]

    return Space("tiny", 0, (search, Grid("loss_law", layout, "loss_law")), base)


def write(space: Space, study: Location, place: Path) -> jobs.State:
    if (place / jobs.ABOUT).exists():
        jobs.ingest(place)
    return jobs.write_jobs(open_study(space, study, trust=True, fresh=False), space, study, place)


def shell(place: Path) -> None:
    """Run the list as a user would."""
    subprocess.run(["sh", "jobs.txt"], cwd=place, check=False)


def rows(study: Location, frame: str) -> pl.DataFrame:
    found = getattr(Study(study), frame)().collect()
    return found.drop(TIMES, strict=False).sort(*(c for c in ("run", "step", "split") if c in found.columns))


def test_jobs_by_a_shell_give_the_frames_of_trials_that_are_run_here(space, tmp_path):
    study, place, told = Location.parse(tmp_path / "study"), tmp_path / "jobs", []
    for _ in range(4):
        state = write(space, study, place)
        assert write(space, study, place) == state  # again changes nothing
        told.append(state.waiting)
        shell(place)
        jobs.ingest(place)
    assert told == [["search-00", "search-01"], ["search-02"], ["diverged", "flaky", "trunk"], ["flaky"]]
    state = write(space, study, place)
    assert (state.waiting, state.failed, state.diverged, len(state.done)) == ([], {}, ["diverged"], 6)

    other = Location.parse(tmp_path / "other")
    agenda = open_study(space, other, trust=True, fresh=False)
    while (trial := agenda.next()) is not None:
        material = jobs.commands.material(trial.runs[-1])
        made = run_trial(trial, tmp_path / "here", material=material, roots=[os.getcwd()])
        trial_store.write(
            other, trial, trials=made.trials, steps=made.steps, evals=made.evals, material=material
        )
        agenda.finish(trial_store.read(other, trial.name))
    assert agenda.done
    for frame in ("trials", "steps", "evals"):
        assert rows(study, frame).equals(rows(other, frame)), frame
    attempts = dict(rows(study, "trials").select("run", "attempts").iter_rows())
    assert attempts == {**dict.fromkeys(attempts, 1), "flaky": 2}


def test_taking_in_again_changes_nothing_and_a_failed_trial_is_told(commanded, tmp_path):
    trial = Trial("bad", (commanded("sys.exit('no shard 7')", name="bad", trainer__retries=1),))
    space = Space("tiny", 0, (Grid("loss_law", lambda rows: [trial], "loss_law"),), commanded())
    study, place = Location.parse(tmp_path / "study"), tmp_path / "jobs"
    write(space, study, place)
    shell(place)
    assert (jobs.ingest(place).again, jobs.ingest(place).waiting) == (["bad"], ["bad"])
    shell(place)
    state = jobs.ingest(place)
    assert 'exited with 1, and wrote at last "no shard 7"' in state.failed["bad"]
    part = tmp_path / "study" / "trials" / "bad.parquet"
    before = part.stat().st_mtime_ns
    time.sleep(0.01)
    assert write(space, study, place).failed == jobs.ingest(place).failed == state.failed
    assert part.stat().st_mtime_ns == before
    assert rows(study, "trials").select("status", "attempts").row(0) == ("failed", 2)
    # Its user corrects what was wrong, and lets the job run once more.
    (place / "bad" / "exit_code").unlink()
    assert jobs.ingest(place).waiting == ["bad"]
    assert "bad/job.sh" in (place / "jobs.txt").read_text()


def test_an_exit_without_metrics_breaks_the_rule_at_once(commanded, tmp_path):
    trial = Trial("mute", (commanded("pass", name="mute", trainer__retries=3),))
    space = Space("tiny", 0, (Grid("loss_law", lambda rows: [trial], "loss_law"),), commanded())
    write(space, Location.parse(tmp_path / "study"), tmp_path / "jobs")
    shell(tmp_path / "jobs")
    assert "must have written the validation_loss" in jobs.ingest(tmp_path / "jobs").failed["mute"]


def test_a_job_that_is_running_is_not_started_again(commanded, tmp_path):
    """`jobs.txt` once more while its first call still trains: the same folder must not be trained in twice."""
    code = "import time\ntell(step=1, loss=4.0)\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    trial = Trial("slow", (commanded(code + "tell(step=10, validation_loss=2.0)", name="slow"),))
    space = Space("tiny", 0, (Grid("loss_law", lambda rows: [trial], "loss_law"),), commanded())
    place = tmp_path / "jobs"
    write(space, Location.parse(tmp_path / "study"), place)
    folder = next(place.rglob("job.sh")).parent
    first = subprocess.Popen(["sh", "jobs.txt"], cwd=place)
    assert wait_until((folder / "metrics.jsonl").exists)
    shell(place)
    assert not list(folder.glob("metrics-*"))
    (folder / "go").touch()
    assert first.wait(60) == 0
    assert jobs.ingest(place).done


@pytest.mark.parametrize("killed", [True, False])
def test_what_a_command_has_started_ends_with_it_and_with_its_killed_job(killed, commanded, tmp_path):
    code = "import subprocess\nfor own in (False, True):\n"
    code += "    print(subprocess.Popen(['sleep', '600'], start_new_session=own).pid, flush=True)\n"
    trial = Trial(
        "busy", (commanded(code + "time.sleep(600)" * killed, name="busy", trainer__time_limit=300.0),)
    )
    space = Space("tiny", 0, (Grid("loss_law", lambda rows: [trial], "loss_law"),), commanded())
    write(space, Location.parse(tmp_path / "study"), tmp_path / "jobs")
    said = tmp_path / "jobs/busy/stdout.txt"
    with subprocess.Popen(["sh", str(tmp_path / "jobs/busy/job.sh")]) as job:
        until = time.monotonic() + 60
        while not (said.exists() and said.read_text().count("\n") == 2):
            assert time.monotonic() < until
            time.sleep(0.02)
        processes = [
            psutil.Process(int(pid)) for pid in said.read_text().split() if psutil.pid_exists(int(pid))
        ]
        assert len(processes) == 2 or not killed
        if killed:
            job.kill()
    assert psutil.wait_procs(processes, timeout=30)[1] == []


def test_an_array_has_a_task_for_each_run_and_several_nodes_meet(commanded, tmp_path, monkeypatch):
    """A stand-in for srun starts one process for each node, as Slurm does."""
    meet = "print(*(os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'PET_NNODES')))\n"
    meet += "if os.environ['RANK'] == '0': tell(step=10, validation_loss=2.0)"
    wide = Trial(
        "wide", (commanded(meet, name="wide", trainer__nodes=2, trainer__gpus=4, trainer__time_limit=90.0),)
    )
    space = Space("tiny", 0, (Grid("loss_law", lambda rows: [wide], "loss_law"),), commanded())
    place, bin = tmp_path / "jobs", tmp_path / "bin"
    write(space, Location.parse(tmp_path / "study"), place)
    array = (place / "jobs.sbatch").read_text()
    asked = [line for line in array.splitlines() if line.startswith("#SBATCH")]
    assert [
        f"#SBATCH {word}" in asked for word in ("--array=1-1", "--nodes=2", "--gpus-per-node=4", "--time=3")
    ]
    bin.mkdir()
    (bin / "srun").write_text(
        '#!/bin/sh\nshift 3\nfor i in 0 1; do SLURM_PROCID=$i SLURM_NTASKS=2 "$@"; done\n'
    )
    (bin / "scontrol").write_text("#!/bin/sh\nprintf 'node7\\nnode8\\n'\n")
    for file in bin.iterdir():
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
    slurm = {"SLURM_ARRAY_TASK_ID": "1", "SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "node[7-8]"}
    subprocess.run(["sh", str(place / "jobs.sbatch")], check=True, env={**os.environ, **slurm})
    assert (place / "wide" / "stdout.txt").read_text() == "0 2 node7 2\n1 2 node7 2\n"
    assert jobs.ingest(place).done == ["wide"]


def test_the_verbs_tell_what_to_do_next(commanded, tmp_path, capsys, monkeypatch):
    file, place, study = tmp_path / "space.py", tmp_path / "jobs", tmp_path / "study"
    (tmp_path / "runs.json").write_text(json.dumps(commanded().to_dict()))
    file.write_text(
        "import json\nfrom froude.config import Run\nfrom froude.space import Grid, Space, Trial\n"
        f"RUN = Run.from_dict(json.load(open({str(tmp_path / 'runs.json')!r})))\n"
        "def space():\n    trials = [Trial('r', (RUN,))]\n"
        "    return Space('tiny', 0, (Grid('law', lambda rows: trials, 'loss_law'),), RUN.replace(name='large'))\n"
    )
    words = ["sweep", str(file), "--out", str(study), "--write-jobs", str(place)]
    assert main(words) == 2
    assert "pass --trust" in capsys.readouterr().err
    assert main([*words, "--trust"]) == 0
    assert "0 done (0 diverged), 1 waiting, 0 failed" in capsys.readouterr().out
    shell(place)
    assert main(["ingest", str(place), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["done"] == ["r"]
    assert main([*words, "--trust"]) == 0
    assert "the sweep is complete" in capsys.readouterr().out
    assert main(["ingest", str(tmp_path / "absent")]) == 2
    assert "jobs must have been written by" in capsys.readouterr().err
    own = [*words[:-1], str(study)]
    assert main([*own, "--trust"]) == 2
    assert "folder of their own" in capsys.readouterr().err
