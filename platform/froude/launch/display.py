"""Live progress: one line that is rewritten on a terminal, and a new line now and then elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from froude.sweep.progress import tell

if TYPE_CHECKING:
    from froude.launch.elastic import Progress

TERMINAL_SECONDS = 0.2  # between two updates
LOG_SECONDS = 10.0


@dataclass
class Display:
    """Prints what a stage is doing and for how long it still will; `quiet` prints nothing."""

    stream: TextIO = field(default_factory=lambda: sys.stdout)
    quiet: bool = False
    _stage: str = ""
    _began: float = 0.0
    _first: tuple[float, float] | None = None  # time and fraction at the stage's first update
    _printed: float = 0.0
    _complete: bool = False
    _open: bool = False

    def line(self, text: str = "") -> None:
        """Print a line of its own."""
        if not self.quiet:
            self._close()
            self._tell(text)

    def stage(self, name: str) -> None:
        """Begin a stage: what `update` says belongs to it."""
        self._close()
        self._stage, self._began, self._first = name, time.monotonic(), None
        self._printed, self._complete = 0.0, False

    def update(self, fraction: float, text: str) -> None:
        """Show the share of the stage (0 to 1) that is done; the time left is a linear guess from its speed."""
        now = time.monotonic()
        if self._first is None or fraction == self._first[1]:
            self._first = (now, fraction)  # before it moves, nothing is known of its speed
        every = TERMINAL_SECONDS if self.stream.isatty() else LOG_SECONDS
        complete = fraction >= 1 and not self._complete
        if self.quiet or (now - self._printed < every and not complete):
            return
        self._printed, self._complete = now, fraction >= 1
        began, start = self._first
        left = (now - began) * (1 - fraction) / (fraction - start) if fraction > start else None
        about = f", about {clock(left)} left" if left is not None and fraction < 1 else ""
        line = f"[{self._stage}] {100 * fraction:3.0f}%  {text}{about}"
        if self.stream.isatty():
            width = shutil.get_terminal_size().columns - 1
            self._tell(f"\r{line[:width]:<{width}}", end="")
            self._open = True
        else:
            self._tell(line)

    def done(self, text: str) -> None:
        """End the stage with what came of it and how long it took."""
        self.line(f"[{self._stage}] {text} ({clock(time.monotonic() - self._began)})")

    def _close(self) -> None:
        if self._open:
            self._tell("")
            self._open = False

    def _tell(self, text: str, end: str = "\n") -> None:
        self.quiet = self.quiet or not tell(text, self.stream, end)


def following(display: Display) -> Callable[[Progress], None]:
    """A function that shows where a run is; once each: alarms, what its policy does, which hosts it leaves out."""
    told: set[str] = set()

    def show(now: Progress) -> None:
        lines = [f"[train] alarm: {line}" for line in now.alarms]
        lines += [f"[train] {line}" for line in now.said]
        lines += [f"[train] left out: {line}" for line in now.left_out]
        for line in lines:
            if line not in told:
                display.line(line)
        told.update(lines)
        display.update(
            now.step / now.steps,
            f"step {now.step} of {now.steps}, {now.world} workers, attempt {now.attempt}",
        )

    return show


def clock(seconds: float) -> str:
    """Seconds as 42 s, 3 min 20 s or 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
