"""What a failure acts on: the run, its store, the living driver, and what was put around them."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from froude.config import Run
from froude.launch.chaos.life import Life
from froude.launch.chaos.s3_proxy import S3Proxy
from froude.launch.chaos.small_disk import SmallDisk
from froude.runlog import LogReader, Record, expired
from froude.store import Location

T = TypeVar("T")
#: A failure as it is carried out: see `kind`.
Act = Generator[str, None, None]
WAIT_SECONDS = 120.0
POLL_SECONDS = 0.05


class NotInjected(RuntimeError):
    """What a failure waited for did not come."""


@dataclass
class Scene:
    """The run, its living driver (`life`), and drivers that still have to end.

    `struck` is when the present failure happened (monotonic seconds), None before; `damaged` are the numbers of records
    whose data was damaged on purpose.
    """

    run: Run
    place: Location  # the run's directory
    order: dict[str, Any]
    environment: dict[str, str]
    logs: Path
    proxy: S3Proxy | None = None
    disk: SmallDisk | None = None
    struck: float | None = None
    damaged: set[int] = field(default_factory=set)
    lives: list[Life] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = LogReader(self.place)

    @property
    def life(self) -> Life:
        return self.lives[-1]

    def begin(self) -> Life:
        """Start a driver on a cluster of its own."""
        self.lives.append(Life(self.order, self.environment, self.logs / "driver.log"))
        return self.life

    def calm(self) -> None:
        """Forget the failure before."""
        self.struck = None

    def strike(self) -> None:
        """Note that the failure happens now."""
        self.struck = time.monotonic()

    def saved(self) -> list[Record]:
        """The checkpoints that the log has and has not given up, oldest first."""
        records = self.log.records()
        gone = expired(records)
        return [record for record in records if record.kind != "attempt" and record.seq not in gone]

    def close(self) -> None:
        """End every driver and its cluster."""
        with ExitStack() as stack:
            for life in self.lives:
                stack.callback(life.close)


def choose(target: float, among: Sequence[T]) -> T:
    """The item that a number from 0 to 1 picks; NotInjected if there are none."""
    if not among:
        raise NotInjected("there is nothing to strike")
    return among[min(int(target * len(among)), len(among) - 1)]


def wait_for(
    condition: Callable[[], T], what: str, *, seconds: float = WAIT_SECONDS, poll: float = POLL_SECONDS
) -> T:
    """The first result that is true; NotInjected after `seconds`."""
    until = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > until:
            raise NotInjected(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(poll)
    return result
