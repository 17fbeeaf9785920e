"""What a result says of where it comes from: the machine and the commit."""

from __future__ import annotations

import os
import platform
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent


def cpu() -> str:
    """The cores that this process may use, and of what model they are."""
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), model)
    return f"{len(os.sched_getaffinity(0))} cores of {model}"


def generation() -> str:
    """Which processor it is where a cloud's model name does not say; nothing where Linux does not either."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    values = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    known = [f"{name.split()[-1]} {values[name]}" for name in ("cpu family", "model") if name in values]
    return f" ({', '.join(known)})" if known else ""


def hardware() -> str:
    """The machine, and how busy it was before."""
    memory = psutil.virtual_memory().total / 2**30
    return f"{cpu()}{generation()}, {memory:.0f} GiB, load {os.getloadavg()[0]:.1f} at the start"


def commit(*files: str) -> str:
    """The commit, and whether the package or these files beside this one have changed since."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "../platform", *files)
    return git("rev-parse", "--short", "HEAD") + (" with changes" if changed else "")


@contextmanager
def checkout_of(revision: str) -> Iterator[Path]:
    """Another version of the project, in a temporary folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "before"
        add = ["git", "worktree", "add", "--detach", "--quiet", str(other), revision]
        subprocess.run(add, cwd=HERE, check=True)
        try:
            yield other
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(other)], cwd=HERE, check=True)
