"""Failures on purpose: a run is trained while they strike, and compared with what it would have been.

A new kind is an object in `processes`, `saves` or `faults`, or in a file beside them, and a line here.
"""

from __future__ import annotations

from froude.launch.chaos import faults, processes, saves
from froude.launch.chaos.kind import Kind, Need

__all__ = ["KINDS", "Kind", "Need"]

#: By name, in the order in which they are told; the failures of a seed depend on it.
KINDS: dict[str, Kind] = {
    each.name: each
    for each in (
        processes.WORKER_KILL,
        processes.WORKER_HANG,
        processes.NODE_KILL,
        processes.NODE_DRAIN,
        processes.NODE_ADD,
        processes.HEAD_KILL,
        saves.KILL_IN_SAVE,
        saves.KILL_BEFORE_RECORD,
        processes.ZOMBIE,
        saves.FLIPPED_BYTE,
        faults.CLOCK_JUMP,
        faults.S3_5XX,
        faults.S3_HANG,
        faults.DISK_FULL,
    )
}
