"""The process beside a command, one for each tracker: started, left alone, and ended with patience for a while."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from froude.section import without_secrets
from froude.store import Location

POLL_SECONDS = 2.0  # between two looks at the study
#: At the end: how long a tracker may give no sign that it gets on.
END_SECONDS = 60.0
WAIT_SECONDS = 0.05
LONGEST_PAUSE = 300.0  # between two tries, after errors
NICE = 10  # what trains on this machine comes first


@contextlib.contextmanager
def tracked(
    targets: Sequence[str], study: Location, *, facts: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """While the command goes on, and at its end, send the study's trials to these trackers, with `facts` its run.

    Whatever a tracker does, nothing is raised here. At the end each has until it has said nothing for `END_SECONDS`.
    """
    children = []
    for target in targets:
        try:
            children.append(Child.start(target, study, facts))
        except OSError as error:
            warn(target, f"its process did not start: {error}")
    try:
        yield
    finally:
        for child in children:
            child.ask_to_end()
        for child in children:
            child.end()


@dataclass
class Child:
    """One such process. It hears of the end by its standard input, also where this process is killed."""

    target: str
    process: subprocess.Popen[bytes]
    sign: Path

    @classmethod
    def start(cls, target: str, study: Location, facts: Mapping[str, Any] | None) -> Child:
        file, sign = tempfile.mkstemp(prefix="froude-track-")
        os.close(file)
        process = subprocess.Popen(
            [sys.executable, "-m", "froude.tracking.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the command, which then ends this
        )
        order = {"target": target, "study": study.url, "facts": facts, "sign": sign}
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
        return cls(target, process, Path(sign))

    def ask_to_end(self) -> None:
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()

    def end(self) -> None:
        """Wait for its end as long as it gives signs; kill it, and what it started, after that."""
        asked = time.time()
        while self.process.poll() is None:
            if time.time() - max(asked, self._last_sign()) > END_SECONDS:
                warn(self.target, f"it gave no sign for {END_SECONDS:g} s, and was ended")
                with contextlib.suppress(OSError):
                    os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
                break
            time.sleep(WAIT_SECONDS)
        else:  # by itself, or (a code below 0) by a signal from elsewhere
            if self.process.returncode not in (0, 1):
                warn(self.target, f"its process ended with exit code {self.process.returncode}")
        self.sign.unlink(missing_ok=True)

    def _last_sign(self) -> float:
        try:
            return self.sign.stat().st_mtime
        except OSError:
            return 0.0


def warn(target: str, what: str) -> None:
    """One line to stderr; targets may hold passwords, so only their kind is named, and none of those in `what`."""
    kind = target.partition(":")[0]
    print(
        f"froude: tracker {kind}: {without_secrets(what)}; training is not concerned, and the same command sends "
        "what is missing",
        file=sys.stderr,
        flush=True,
    )


def follow(
    target: str, study: str, facts: Mapping[str, Any] | None, sign: str, ended: threading.Event
) -> int:
    """Send what comes until the end, and all that is left then; after an error once more, from what the tracker has."""
    from froude.promote import recipe
    from froude.tracking import load
    from froude.tracking.session import RunSession, SweepSession
    from froude.user_code import told

    place, alive = Location.parse(study), Path(sign).touch
    session: RunSession | SweepSession | None = None
    failures, warned = 0, False
    while True:
        final, failed = ended.is_set(), False
        try:
            if session is None:
                found = recipe.read(place) if facts is not None else None
                tracker = load(target)
                session = (
                    RunSession(place, found.run, tracker, recipe=found, facts=facts, alive=alive)
                    if found
                    else SweepSession(place, tracker, alive=alive)
                )
            alive()
            session.send(final)
            failures = 0
        except Exception as error:  # noqa: BLE001  whatever a tracker raises is told once, and tried again
            session, failed, failures = None, True, failures + 1
            if not warned:
                warn(target, told(error))
                warned = True
        if final and (not failed or failures > 1):
            return int(failed)
        ended.wait(min(POLL_SECONDS * 2 ** min(failures, 10), LONGEST_PAUSE))


def main() -> int:
    """The process: its order is a line of JSON on standard input, whose end is the end of what it follows."""
    os.nice(NICE)
    order, ended = json.loads(sys.stdin.buffer.readline()), threading.Event()

    def listen() -> None:
        sys.stdin.buffer.read()
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    return follow(**order, ended=ended)


if __name__ == "__main__":
    sys.exit(main())
