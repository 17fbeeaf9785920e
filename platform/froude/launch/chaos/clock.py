"""Clocks of single nodes: a small library, preloaded into a node's processes, makes their wall clock wrong."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil

VARIABLE = "FROUDE_CLOCK"
SOURCE = Path(__file__).with_name("clock.c")


def node_clocks(folder: Path) -> dict[str, str]:
    """Environment variables under which each node has a clock of its own; the library and the clocks lie in `folder`.

    CalledProcessError if the library can't be compiled.
    """
    library = folder / "clock.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl", "-lpthread"]
    subprocess.run(command, check=True, capture_output=True)
    return {
        "LD_PRELOAD": str(library),
        "RAY_LD_PRELOAD_ON_WORKERS": "1",  # Ray otherwise takes it away from them
        VARIABLE: f"{folder}/clock-{{node}}",
    }


def set_clock(process: int, seconds: int) -> None:
    """Let the wall clock of this process, and of those it started, differ by so many seconds from the machine's."""
    file = Path(psutil.Process(process).environ()[VARIABLE])
    with file.open("r+b", buffering=0) as clock:  # in place: it is mapped
        clock.write(seconds.to_bytes(8, "little", signed=True))
