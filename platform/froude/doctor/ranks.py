"""Work in processes of its own: what hangs is ended, what crashes takes nothing with it, memory is its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.1
#: Seconds after which one piece of work hangs, rather than that the time for all was short: on a CPU all take a minute.
HANGS = 180.0
#: Of a rank's standard error: what is told of one that ended by itself.
TOLD = 300


@dataclass(frozen=True)
class Work:
    """What the first rank found, by work; `ended` says in words what went wrong; `late`: time was up before the end."""

    found: dict[str, Any]
    ended: str = ""
    late: bool = False


def work(
    names: Sequence[str],
    *,
    world: int,
    device: str,
    seconds: float,
    begun: Callable[[int], None] = lambda _: None,
) -> Work:
    """Have `world` ranks do the works of these names (froude.doctor.works), one after another, in so many seconds.

    `begun` is told, now and then, how many of them are done.
    """
    with tempfile.TemporaryDirectory(prefix="froude-doctor-") as folder:
        order = {"works": list(names), "world": world, "device": device, "folder": folder, "seconds": seconds}
        own = (
            os.environ
            | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
            | ({} if device == "cuda" else {"OMP_NUM_THREADS": "1"})
        )
        errors = [Path(folder) / f"errors-{rank}" for rank in range(world)]
        result, ranks = Path(folder) / "found", []
        try:
            for rank in range(world):
                with errors[rank].open("wb") as sink:
                    call = [sys.executable, "-m", "froude.doctor.rank", json.dumps(order | {"rank": rank})]
                    ranks.append(
                        subprocess.Popen(call, env=own, stdout=sink, stderr=sink, start_new_session=True)
                    )
            ended, late = _wait(ranks, errors, seconds, lambda: len(_lines(result)), begun)
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        found = {name: content for line in _lines(result) for name, content in json.loads(line).items()}
        return Work(found, ended, late)


def _lines(file: Path) -> list[str]:
    """Those that are whole."""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [line for line in lines if line.endswith("\n")]


def _wait(
    ranks: Sequence[subprocess.Popen[bytes]],
    errors: Sequence[Path],
    seconds: float,
    done: Callable[[], int],
    begun: Callable[[int], None],
) -> tuple[str, bool]:
    """Wait for all; why one of them did not come to its end, and whether time was up."""
    now = moved = time.monotonic()
    until, before = now + seconds, 0
    while any(process.poll() is None for process in ranks):
        for process, file in zip(ranks, errors, strict=True):
            if process.poll():
                return _why(process.returncode, file), False
        now, count = time.monotonic(), done()
        if count > before:
            before, moved = count, now
        if now > until:
            hangs = now - moved > HANGS
            return (f"no answer in {now - moved:.0f} s", False) if hangs else ("", True)
        begun(count)
        time.sleep(POLL_SECONDS)
    failed = (_why(p.returncode, file) for p, file in zip(ranks, errors, strict=True) if p.returncode)
    return next(failed, ""), False


def _why(code: int, file: Path) -> str:
    lines = [line for line in file.read_text(errors="replace").splitlines() if line.strip()]
    said = lines[-1].strip()[:TOLD] if lines else "nothing said"
    return f"a process ended by signal {-code}, {said}" if code < 0 else f"a process failed, {said}"
