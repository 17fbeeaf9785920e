"""Clocks of single nodes: a small library, preloaded into a node's processes, makes their wall clock wrong."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil

VARIABLE = "FROUDE_CLOCK"
SOURCE = Path(__file__).with_name("clock.c")


def preload(folder: Path) -> dict[str, str]:
    """Environment variables under which a driver's cluster has the library, which is compiled into `folder`.

    CalledProcessError if that fails.
    """
    library = folder / "clock.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl", "-lpthread"]
    subprocess.run(command, check=True, capture_output=True)
    # Ray takes it away from workers unless it is told not to.
    return {"LD_PRELOAD": str(library), "RAY_LD_PRELOAD_ON_WORKERS": "1"}


def node_clock(folder: Path) -> dict[str, str]:
    """What gives each node, by its number, a clock of its own: a file in `folder`."""
    return {VARIABLE: f"{folder}/clock-{{node}}"}


def set_clock(process: int, seconds: int) -> None:
    """Let the wall clock of this process, and of those it started, differ by this many seconds from the machine's."""
    file = Path(psutil.Process(process).environ()[VARIABLE])
    with file.open("r+b", buffering=0) as clock:  # in place: it is mapped
        clock.write(seconds.to_bytes(8, "little", signed=True))
