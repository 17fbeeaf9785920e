"""What this machine has before anything starts, its free memory, and how many CPUs a worker takes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import psutil

from froude.config import ConfigError, Run

GIB = 2**30
CGROUP = Path("/sys/fs/cgroup")


def cpus(runs: Iterable[Run]) -> int:
    """CPUs of the largest worker of these runs, or what a command reserves of each node."""
    each = (run.trainer.cpus if run.trainer.command else run.compute.threads for run in runs)
    return max(each, default=0) or 1


def free_memory() -> int:
    """Bytes that processes may still take: the machine's available memory, or less where a cgroup (v2) says so."""
    free = int(psutil.virtual_memory().available)
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
        # The page cache counts as used but gives way.
        cached = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return free
    if limit == "max":
        return free
    return min(free, int(limit) - used + int(cached.get("inactive_file", 0)))


def check_memory(needed: int, *, what: str) -> None:
    """ConfigError if less than `needed` bytes of memory are free."""
    free = free_memory()
    if free < needed:
        raise ConfigError(
            f"{what} needs {needed / GIB:.1f} GiB of free memory, but {free / GIB:.1f} GiB are free; close other "
            "programs, set `micro_batch` or `compute.checkpointing`, or use a larger machine"
        )
