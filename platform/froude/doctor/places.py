"""Whether a store does what checkpoints need: it refuses to overwrite, answers soon, and its clock is about right."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from froude.doctor.finding import Finding
from froude.store import Location

REPEATS = 5
BULK = 2**24  # bytes
#: Seconds: S3's clocks tell whole ones, and a request at another time than 15 minutes is refused by S3 servers.
SKEW = 5.0
SLOW = 1.0


def check(url: str) -> Finding:
    """Write, read and delete a few files in a folder of their own; an empty URL is this machine's temporary folder."""
    if url:
        place = Location.parse(url) / f"froude-doctor-{os.urandom(8).hex()}"
        try:
            return _check(place, "")
        finally:
            if place.is_local:  # a folder that is left would make a study's directory none
                with suppress(OSError):
                    place.path.rmdir()
    with tempfile.TemporaryDirectory(prefix="froude-doctor-") as folder:
        return _check(Location.parse(folder), " (a temporary folder: name yours by --store)")


def _check(place: Location, note: str) -> Finding:
    kind = "local" if place.is_local else "s3"
    written: list[Location] = []

    def new(name: str) -> Location:
        written.append(place / name)
        return written[-1]

    try:
        place.knock()
        small = [new(f"small-{number}") for number in range(REPEATS)]
        figures: dict[str, Any] = {"kind": kind}
        figures["create_seconds"] = statistics.median(
            [_took(partial(each.create, each.name.encode())) for each in small]
        )
        figures["read_seconds"] = statistics.median([_took(each.read) for each in small])
        before = datetime.now(UTC)
        once = new("once")
        refused = once.create(b"first") and not once.create(b"second") and once.read() == b"first"
        stamp = once.modified()
        figures["conditional_put"] = refused
        figures["clock_skew_seconds"] = (stamp - before).total_seconds() if stamp else None
        bulk, content = new("bulk"), os.urandom(BULK)
        figures["write_gb_per_second"] = BULK / 1e9 / _took(lambda: bulk.replace(content))
        figures["read_gb_per_second"] = BULK / 1e9 / _took(bulk.read)
    finally:
        for each in written:
            try:
                each.delete()
            except OSError:  # what failed before says more
                break
    return _verdict(kind, note, figures)


def _verdict(kind: str, note: str, figures: dict[str, Any]) -> Finding:
    latency, skew = figures["create_seconds"], figures["clock_skew_seconds"]
    line = f"{kind}{note}: {1e3 * latency:.0f} ms to create, {1e3 * figures['read_seconds']:.0f} ms to read, "
    line += f"{1e3 * figures['write_gb_per_second']:.0f} MB/s to write"
    if not figures["conditional_put"]:
        remedy = "two attempts could commit at once: use a store with conditional PUT (If-None-Match), or hard links"
        return Finding("store", "fail", f"{line}; it overwrites what it must not", remedy, figures)
    if skew is not None and abs(skew) > SKEW:
        return Finding(
            "store", "warn", f"{line}; its clock is {skew:+.0f} s from this one", "set the clock", figures
        )
    if latency > SLOW:
        return Finding(
            "store", "warn", f"{line}: slow", "use a store near the machines, checkpoint less often", figures
        )
    return Finding("store", "ok", line, "", figures)


def _took(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began
