"""Shared by every test: an environment without surprises, and the reference data."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples on every run, and no judgement by the clock: this may be a busy machine.
settings.register_profile("froude", deadline=None, derandomize=True)
settings.load_profile("froude")

ROOT = Path(__file__).resolve().parents[1]
OWN_PROCESS = "FROUDE_TEST_IN_ITS_OWN_PROCESS"

# Read when Ray is imported or a cluster starts, so set before any test module is imported. A token file left
# by one cluster makes the next one refuse `ray job submit`; usage reports would leave the machine.
RAY_ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}
# Settings of somebody's own cluster or bucket must not reach a test; nor one that has every process compile anew.
FOREIGN = (
    "PYTHONDONTWRITEBYTECODE",
    "RAY_ADDRESS",
    "RAY_JOB_ID",
    "RAY_AUTH_TOKEN",
    "RAY_AUTH_TOKEN_PATH",
    "AWS_PROFILE",
    "AWS_ENDPOINT_URL",
    "FROUDE_REGISTER",
)


def pytest_configure() -> None:
    for name in FOREIGN:
        os.environ.pop(name, None)
    os.environ.update(RAY_ENVIRONMENT)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run what is marked so in a process of its own, where neither other tests nor their threads are."""
    if pyfuncitem.get_closest_marker("own_process") is None or OWN_PROCESS in os.environ:
        return None
    node = f"{pyfuncitem.path}::{pyfuncitem.name}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", node]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {OWN_PROCESS: "1"}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.fail(f"in a process of its own:\n{done.stdout[-6000:]}{done.stderr[-2000:]}", pytrace=False)
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = Path(item.path).relative_to(ROOT / "tests").parts[0]
        if folder in ("ray", "cluster", "gpu"):
            item.add_marker(folder)
        if item.get_closest_marker("campaign"):
            item.add_marker("long")


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def reference_data() -> Path:
    """The folder of other people's runs with published fits, named by FROUDE_REFERENCE_DATA."""
    folder = os.environ.get("FROUDE_REFERENCE_DATA")
    if not folder:
        pytest.skip(
            "FROUDE_REFERENCE_DATA names no folder: the reference runs are not part of this repository"
        )
    path = Path(folder)
    assert path.is_dir(), f"FROUDE_REFERENCE_DATA must name a folder, but is {folder!r}"
    return path


@pytest.fixture(scope="session")
def study_factory() -> Callable[..., Path]:
    """`write_study` of tests/data/small_study.py: an empty folder in, a study with known laws out."""
    from small_study import write_study

    return write_study


@pytest.fixture(scope="session")
def small_study(tmp_path_factory: pytest.TempPathFactory, study_factory: Callable[..., Path]) -> Path:
    """A study with known laws; read only."""
    return study_factory(tmp_path_factory.mktemp("small") / "study")
