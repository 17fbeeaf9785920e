"""The Makefile's own decisions: which Python, what is told, what reaches froude."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")

FROUDE = f"""#!{sys.executable}
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
print(" ".join(sys.argv[1:]), "installed in", os.environ["FROUDE_INSTALL_SECONDS"], "s", flush=True)
if "--wait" in sys.argv:
    signal.pause()
"""


@pytest.fixture
def checkout(root: Path, tmp_path: Path) -> Path:
    """A checkout whose environment is complete, with a stand-in for froude."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(root / name, tmp_path)
    bin_ = tmp_path / ".venv" / "bin"
    bin_.mkdir(parents=True)
    (bin_ / "froude").write_text(FROUDE)
    (bin_ / "froude").chmod(0o755)
    for stamp in (".made", ".core", ".dev"):
        (tmp_path / ".venv" / stamp).touch()
    return tmp_path


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *arguments], cwd=folder, capture_output=True, text=True, env=clean(), timeout=60
    )


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}


def test_help_lists_the_targets(checkout: Path) -> None:
    told = make(checkout).stdout
    for target in ("setup", "quickstart", "test", "check", "bench", "campaign"):
        assert f"make {target} " in told


def test_quickstart_passes_seed_place_and_the_time_of_installing(checkout: Path) -> None:
    done = make(checkout, "quickstart", "SEED=7", "RUN=runs/seed7")
    assert done.stdout.startswith("quickstart --seed 7 --out runs/seed7 installed in ")
    assert done.returncode == 0


def test_sigterm_of_make_reaches_froude(checkout: Path) -> None:
    with subprocess.Popen(
        ["make", "quickstart", "FLAGS=--wait"], cwd=checkout, stdout=subprocess.PIPE, text=True, env=clean()
    ) as process:
        assert process.stdout is not None
        assert "quickstart" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == ""  # ends when froude, which holds the pipe too, has ended
        assert process.wait(timeout=60) != 0


def test_without_a_usable_python_it_says_what_is_needed(checkout: Path) -> None:
    shutil.rmtree(checkout / ".venv")
    for python in ("", "/nonexistent/python"):
        done = make(checkout, "quickstart", f"PYTHON={python}")
        assert done.returncode != 0
        assert "froude needs Python >= 3.11" in done.stderr
        assert not (checkout / ".venv").exists()


def test_a_changed_dependency_is_installed_again(checkout: Path) -> None:
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copystat(checkout / ".venv" / ".core", checkout / name)
    assert "install" not in make(checkout, "--dry-run", "quickstart").stdout.replace("INSTALL", "")
    os.utime(checkout / "constraints.txt", (2**31, 2**31))
    planned = make(checkout, "--dry-run", "quickstart").stdout
    assert "pip install" in planned
    assert "--editable ." in planned
    assert "[dev]" not in planned
