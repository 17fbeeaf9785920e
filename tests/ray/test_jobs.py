"""The jobs, submitted to a cluster whose Python has no froude: it comes with the working directory."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from waiting import wait_until

if TYPE_CHECKING:
    from froude import Study
    from froude.promote.recipe import Recipe

# The only froude on this cluster's machines is the one that starts it: on this process's path, not in the environment.
CLUSTER = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from froude.launch.cluster import simulated
with simulated(2, log_dir=Path(sys.argv[2])) as cluster:
    print(cluster.dashboard, flush=True)
    sys.stdin.read()
"""

PROBE = """
import json, os, platform, sys
import ray
import froude

def where():
    import platform, froude
    return platform.__file__, froude.__file__, platform.python_version()

ray.init(logging_level="ERROR")
print("PROBE", json.dumps([where(), ray.get(ray.remote(num_cpus=1)(where).remote())]), flush=True)
os.getcwd()  # raises where another node's agent has unpacked the working directory anew, in this one's place
"""


@dataclass(frozen=True)
class Done:
    """What came of a submitted job: of the submitting command, and of the job itself."""

    returncode: int
    output: str
    info: Any

    @property
    def last_line(self) -> str:
        return [line for line in self.info.log.splitlines() if line.strip()][-1]


@dataclass(frozen=True)
class Info:
    status: str
    message: str
    exit_code: int | None
    log: str


Submit = Callable[..., Done]


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with all packages of this one except froude."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
    python = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    # A path in a .pth file is appended; .pth files in it, such as those of editable installs, are not read.
    (site / "packages.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


@pytest.fixture(scope="module")
def environment(bare_python: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    # Ray's own 3 seconds, after which a job that was asked to stop is killed, are few where other tests run.
    return kept | {"PATH": f"{bare_python.parent}:{os.environ['PATH']}", "RAY_JOB_STOP_WAIT_TIME_S": "60"}


@pytest.fixture(scope="module")
def address(
    root: Path, bare_python: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Where a cluster takes jobs."""
    folder = tmp_path_factory.mktemp("cluster")
    process = subprocess.Popen(
        [bare_python, "-c", CLUSTER, root / "platform", folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    yield f"http://{process.stdout.readline().strip()}"
    process.stdin.close()
    process.stdout.close()
    assert process.wait(timeout=60) == 0


@pytest.fixture(scope="module")
def submit(address: str, root: Path, bare_python: Path, environment: dict[str, str]) -> Submit:
    """A function that runs `ray job submit … -- python ARGUMENTS` against a cluster and tells what came of it."""

    def run(name: str, *arguments: str | Path, options: Sequence[str] = ()) -> Done:
        from ray.job_submission import JobSubmissionClient

        command = [bare_python, "-m", "ray.scripts.scripts", "job", "submit", "--address", address]
        command += ["--submission-id", name, "--runtime-env", "jobs/runtime_env.yaml", "--working-dir", "."]
        done = subprocess.run(
            [*command, *options, "--", "python", *arguments],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        client = JobSubmissionClient(address)
        info = client.get_job_info(name)
        told = Info(
            str(info.status.value), str(info.message), info.driver_exit_code, client.get_job_logs(name)
        )
        return Done(done.returncode, done.stdout + done.stderr, told)

    return run


def test_froude_is_not_installed_there(
    bare_python: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [bare_python, "-c", "import ray, torch, polars\nimport froude"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "No module named 'froude'" in done.stderr


def test_froude_comes_with_the_job_and_platform_is_the_standard_librarys(
    submit: Submit, root: Path, tmp_path: Path
) -> None:
    import json
    import platform

    script = tmp_path / "probe.py"
    script.write_text(PROBE)
    done = submit("probe", script)
    assert done.returncode == 0, done.output
    (line,) = [line for line in done.info.log.splitlines() if line.startswith("PROBE")]
    for standard, package, version in json.loads(line.removeprefix("PROBE")):
        assert Path(standard) == Path(platform.__file__)
        assert version == platform.python_version()
        assert "working_dir_files" in package
        assert package.endswith("platform/froude/__init__.py")
        assert not Path(package).is_relative_to(root)


def parquet(study: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(study.rglob("*.parquet"))
    }


def test_a_sweep_submitted_twice_resumes(submit: Submit, root: Path, tmp_path: Path) -> None:
    arguments = ["jobs/sweep.py", "tests/data/tiny_space.py", "--out", tmp_path / "study"]
    first = submit("sweep-1", *arguments)
    assert first.returncode == 0, first.output
    assert (first.info.status, first.info.exit_code) == ("SUCCEEDED", 0)
    assert first.last_line == "froude sweep: exit code 0"
    assert "2 finished" in first.output  # the log streamed to who submitted it
    before = parquet(tmp_path / "study")
    assert any("trials/w16" in name for name in before)
    second = submit("sweep-2", *arguments)
    assert (second.returncode, second.last_line) == (0, "froude sweep: exit code 0")
    assert parquet(tmp_path / "study") == before


def test_failure_comes_through_with_its_code(submit: Submit, small_study: Path, tmp_path: Path) -> None:
    refused = submit("promote", "jobs/promote.py", small_study)
    assert refused.returncode == 1
    assert (refused.info.status, refused.info.exit_code) == ("FAILED", 3)
    assert "3" in refused.info.message
    assert refused.last_line == "froude promote: exit code 3"
    assert "forecast_certified: must be" in refused.output
    assert "Traceback" not in refused.output
    missing = submit("fit", "jobs/fit.py", tmp_path / "nothing")
    assert (missing.returncode, missing.info.exit_code) == (1, 2)
    assert missing.last_line == "froude fit: exit code 2"


def sealed(root: Path, study: Study, **changes: Any) -> Recipe:
    """The recipe of the tiny space's target, with some of it changed, written into the study."""
    from froude.promote.forecast import Forecast
    from froude.promote.recipe import seal
    from froude.space import load_space

    recipe = seal(
        run=load_space(root / "tests" / "data" / "tiny_space.py").target.replace(changes),
        profile="production",
        fits={},
        fingerprints={},
        extrapolation={},
        checks=(),
        forecast=Forecast(5.0, 4.0, 6.0, 0.9, False, "prior_driven", (), 5.4),
    )
    recipe.write(study.location / "recipe.toml")
    return recipe


@pytest.mark.long
def test_a_promoted_run_is_trained(submit: Submit, root: Path, tmp_path: Path) -> None:
    import polars as pl

    from froude import Study
    from froude.promote.token_audit import token_account
    from froude.runlog import LogReader

    study = Study(tmp_path / "study")
    recipe = sealed(root, study)
    target = recipe.run
    done = submit("train", "jobs/train.py", tmp_path / "study" / "recipe.toml")
    assert done.returncode == 0, done.output
    assert done.last_line == "froude train: exit code 0"
    commits = study.commits().collect()
    assert commits["kind"][-1] == "finished"
    records = LogReader(study.location / "runs" / target.name).records()
    assert {record.recipe for record in records} == {recipe.sha256}
    assert token_account(study, target.name, target).whole
    losses = study.evals().filter(pl.col("step") == target.steps).collect()["loss"]
    assert len(losses) == 1
    before = parquet(tmp_path / "study")
    again = submit("train-again", "jobs/train.py", tmp_path / "study" / "recipe.toml")
    assert (again.returncode, again.last_line) == (0, "froude train: exit code 0")
    assert parquet(tmp_path / "study") == before


def test_a_job_that_is_stopped_ends_as_by_ctrl_c(
    submit: Submit, address: str, root: Path, tmp_path: Path
) -> None:
    from ray.job_submission import JobSubmissionClient

    from froude import Study
    from froude.runlog import LogReader

    study, client = Study(tmp_path / "study"), JobSubmissionClient(address)
    recipe = sealed(root, study, tokens=192 * 1_000_000, checkpoint_every=100)
    begun = submit("stopped", "jobs/train.py", tmp_path / "study" / "recipe.toml", options=["--no-wait"])
    assert begun.returncode == 0, begun.output
    log = LogReader(study.location / "runs" / recipe.run.name)
    assert wait_until(lambda: bool(log.lineage()) or client.get_job_status("stopped").is_terminal())
    assert client.stop_job("stopped")
    assert wait_until(lambda: client.get_job_status("stopped").is_terminal())
    said = client.get_job_logs("stopped")
    assert client.get_job_status("stopped") == "STOPPED", said
    assert said.splitlines()[-2:] == [
        "froude: interrupted; the same command resumes",
        "froude train: exit code 130",
    ]
    assert "SIGTERM received" not in said
    assert "Traceback" not in said
    assert log.lineage()
