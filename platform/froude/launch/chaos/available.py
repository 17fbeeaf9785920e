"""Which kinds of failure can be brought about here, and what the others lack."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from froude.config import ConfigError
from froude.launch.chaos.schedule import KINDS
from froude.s3 import Settings
from froude.store import Location

CAP_SYS_ADMIN = 1 << 21


def chosen(asked: Sequence[str], place: Location) -> tuple[list[str], dict[str, str]]:
    """The kinds to use for a study at `place`, and those left out, each with the reason.

    Without `asked` all possible kinds; ConfigError for a kind that is unknown, or asked for but not possible.
    """
    if unknown := [kind for kind in asked if kind not in KINDS]:
        raise ConfigError(f"--kinds must be among {', '.join(KINDS)}, but got {', '.join(unknown)}")
    lacking = {kind: why for kind in KINDS if (why := missing(kind, place))}
    if impossible := [kind for kind in asked if kind in lacking]:
        raise ConfigError("; ".join(f"{kind} {lacking[kind]}" for kind in impossible))
    if asked:
        return list(dict.fromkeys(asked)), {}
    return [kind for kind in KINDS if kind not in lacking], lacking


def missing(kind: str, place: Location) -> str:
    """What this kind lacks for a study at `place`, with the remedy; "" where nothing."""
    check = _CHECKS.get(KINDS[kind].needs)
    return check(place) if check else ""


def _s3(place: Location) -> str:
    if place.is_local:
        return f"needs a study on S3, but this one is local ({place}); pass --out s3://bucket/prefix"
    endpoint = Settings.from_environment().endpoint or ""
    if not endpoint.startswith("http://"):
        return (
            f"puts a proxy in front of the S3 server, which needs AWS_ENDPOINT_URL=http://host:port, but it is "
            f"{endpoint or 'not set'}; set it, or leave the kind out"
        )
    return ""


def _mount(place: Location) -> str:
    if not place.is_local:
        return "needs a study on a local disk; pass --out with a path"
    if not sys.platform.startswith("linux") or not shutil.which("mount") or not _may_mount():
        return (
            "mounts a small file system for the study, which needs root on Linux; run as root or leave it out"
        )
    return ""


def _may_mount() -> bool:
    status = Path("/proc/self/status").read_text()
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return os.geteuid() == 0 and bool(int(effective, 16) & CAP_SYS_ADMIN)


def _clock(place: Location) -> str:
    if not place.is_local:
        return (
            "needs a study on a local disk, as an S3 server refuses requests signed hours off its clock; pass --out "
            "with a path"
        )
    if not sys.platform.startswith("linux") or not shutil.which("cc"):
        return "needs a C compiler on Linux; install one (Debian, Ubuntu: apt install gcc libc6-dev) or leave it out"
    return ""


_CHECKS: dict[str, Callable[[Location], str]] = {"s3": _s3, "mount": _mount, "compiler": _clock}
