"""Columns of the steps frame: the time of a step by phase, and what share of the device's speed it makes use of."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from froude.train.observers.observer import Made, Observer, Watched
from froude.train.rows import Row
from froude.train.speed.peak import peak_flops
from froude.train.speed.phases import Clock, running

#: Phases with a column of their own; the rest of a step's seconds is none of these.
TIMED = ("data", "forward", "backward", "reduce", "optimizer")


class Timing(Observer):
    """On a GPU a step's times come when the next has waited for the device, or at a checkpoint: nothing waits for them.

    A step after which a run is saved for another reason has none there.
    """

    clock: Clock
    waiting: tuple[Row, Clock] | None = None

    def begin(self, loop: Watched) -> None:
        super().begin(loop)
        trainer, run = loop.trainer, loop.run
        peak = peak_flops(trainer.world.device, run.precision)
        #: Of a token a second, of all workers: the share of their peak.
        self.share = None if peak is None else trainer.flops_per_token / (peak * trainer.world.size)

    def around(self, step: int) -> AbstractContextManager[object]:
        self.clock = Clock(self.loop.trainer.world.device)
        return running(self.clock)

    def gradients(self, step: int) -> None:
        self._write()

    def stepped(self, made: Made) -> None:
        if not self.clock.cuda:
            made.columns |= _columns(self.clock)

    def wrote(self, row: Row) -> None:
        if self.share is not None:
            row["mfu"] = row["tokens_per_second"] * self.share
        if self.clock.cuda:
            self.waiting = row, self.clock

    def checkpoint(self, step: int) -> None:
        self._write()

    def rewind(self, state: Mapping[str, object]) -> None:
        self.waiting = None

    def _write(self) -> None:
        if self.waiting is not None:
            row, clock = self.waiting
            row |= _columns(clock)
            self.waiting = None


def _columns(clock: Clock) -> Row:
    found = clock.seconds()
    return {f"{phase}_seconds": found.get(phase) for phase in TIMED}
