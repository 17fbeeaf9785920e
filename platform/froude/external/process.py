"""Starting a user's command, waiting for it, and ending it with all that it has started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL
POLL_SECONDS = 0.2
TAIL_LINES, TAIL_BYTES = 5, 4096
STDOUT, STDERR = "stdout.txt", "stderr.txt"
GUARD = Path(__file__).with_name("guard.py")


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (128 + N after signal N), and whether its time limit ended it."""

    code: int
    seconds: float
    timed_out: bool = False

    def why(self, limit: float, folder: Path) -> str:
        """Why it failed, in one line, with the last lines of what it wrote; empty if it exited with 0."""
        if not self.code and not self.timed_out:
            return ""
        how = f"ran into its time limit of {limit:g} s" if self.timed_out else f"exited with {self.code}"
        if self.code > 128 and not self.timed_out:
            how = f"was ended by signal {self.code - 128}"
        *before, last = tail(folder / STDERR) or tail(folder / STDOUT) or [""]
        said = f'wrote at last "{last}"' if last else "wrote nothing"
        more = f", after {' | '.join(before)}" if before else ""
        return f"the trainer's command {how}, and {said} ({folder}){more}"


def run(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    *,
    time_limit: float = 0.0,
    tick: Callable[[], None] = lambda: None,
) -> Ended:
    """Run the command in `folder`, its output appended to files there; nothing that it started outlives the call.

    `environment` is added to this process's. `tick` is called a few times a second; what it raises ends the command,
    and so does the end of this process, however it comes (`froude.external.guard`).
    """
    began, timed_out = time.monotonic(), False
    guarded = [sys.executable, "-I", "-S", str(GUARD), str(GRACE_SECONDS), *command]
    with (folder / STDOUT).open("ab") as out, (folder / STDERR).open("ab") as err:
        guard = subprocess.Popen(
            guarded,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            cwd=folder,
            env={**os.environ, **environment},
            start_new_session=True,  # Ctrl-C is for froude, which then ends the command
        )
        assert guard.stdin is not None
        try:
            while guard.poll() is None and not timed_out:
                tick()
                try:
                    guard.wait(POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    timed_out = 0 < time_limit < time.monotonic() - began
        finally:
            guard.stdin.close()
            code = guard.wait()
    return Ended(code, time.monotonic() - began, timed_out)


def tail(file: Path) -> list[str]:
    """The last lines of a text file that are not empty."""
    try:
        with file.open("rb") as source:
            size = source.seek(0, os.SEEK_END)
            source.seek(max(0, size - TAIL_BYTES))
            text = source.read().decode(errors="replace")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()][-TAIL_LINES:]
