"""How far a sweep is, and showing it: a live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.console import RenderableType

    from froude.sweep.agenda import Agenda

LINE_SECONDS = 10.0
REDRAW_SECONDS = 0.25


@dataclass(frozen=True)
class SweepProgress:
    """Trials done and in all, by stage; the share done of those that run; `seconds_left` is NaN until it is known."""

    stages: Mapping[str, tuple[int, int]]
    running: Mapping[str, float]
    diverged: int
    failed: int
    seconds: float
    seconds_left: float

    @property
    def done(self) -> int:
        return sum(done for done, _ in self.stages.values())

    @property
    def total(self) -> int:
        return sum(total for _, total in self.stages.values())

    @classmethod
    def of(
        cls,
        agenda: Agenda,
        running: Mapping[str, float] | None = None,
        seconds: float = 0.0,
        left: float = 0.0,
    ) -> Self:
        """Of an agenda, given what runs and the seconds that passed and are left."""
        odd = {status: agenda.with_status(status) for status in ("diverged", "failed")}
        return cls(agenda.counts(), running or {}, odd["diverged"], odd["failed"], seconds, left)

    def line(self) -> str:
        """All of it in one line."""
        stages = "  ".join(f"{name} {done}/{total}" for name, (done, total) in self.stages.items())
        odd = "".join(
            f", {n} {word}" for n, word in ((self.diverged, "diverged"), (self.failed, "failed")) if n
        )
        times = f"{clock(self.seconds)}, left {clock(self.seconds_left)}"
        return f"[sweep] {self.done}/{self.total} trials{odd} ({stages})  {times}"


def clock(seconds: float) -> str:
    """Minutes and seconds; a dash for what is not known."""
    if seconds != seconds:
        return "–"
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def tell(text: str, out: TextIO, end: str = "\n") -> bool:
    """Print a text at once; False where nobody reads on, and then nothing will be printed there.

    Work goes on without its reader: a `tee` that died must not end a run.
    """
    try:
        print(text, end=end, file=out, flush=True)
    except BrokenPipeError:
        hush(out)
        return False
    return True


def hush(out: TextIO) -> None:
    """Let what is still printed there, and what waits in its buffer, go nowhere: nobody reads on."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


@dataclass
class _Lines:
    out: TextIO
    _shown: float = field(default=-LINE_SECONDS)
    _last: str = ""

    def __call__(self, progress: SweepProgress) -> None:
        ended = progress.total > 0 and progress.done == progress.total
        if ended or progress.seconds - self._shown >= LINE_SECONDS:
            self._shown, line = progress.seconds, progress.line()
            if line != self._last:
                tell(line, self.out)
            self._last = line


@contextmanager
def shown(out: TextIO | None = None) -> Iterator[Callable[[SweepProgress], None]]:
    """A function that shows the progress it is given on `out` (standard error if not given)."""
    out = out or sys.stderr
    if not out.isatty():
        yield _Lines(out)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(file=out), auto_refresh=False, transient=False) as live:
        drawn = -REDRAW_SECONDS

        def draw(progress: SweepProgress) -> None:
            nonlocal drawn
            now = time.monotonic()
            if now - drawn >= REDRAW_SECONDS or progress.done == progress.total:
                drawn = now
                live.update(_table(progress), refresh=True)

        yield draw


def _table(progress: SweepProgress) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name, (done, total) in progress.stages.items():
        table.add_row(name, ProgressBar(total=total, completed=done, width=32), f"{done}/{total}")
    running = "  ".join(f"{name} {100 * share:.0f}%" for name, share in sorted(progress.running.items())[:4])
    odd = "".join(
        f", {n} {word}" for n, word in ((progress.diverged, "diverged"), (progress.failed, "failed")) if n
    )
    table.add_row("sweep", f"{clock(progress.seconds)}, left {clock(progress.seconds_left)}{odd}", "")
    table.add_row("now", running, "")
    return table
