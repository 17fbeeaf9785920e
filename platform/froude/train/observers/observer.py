"""The protocol of what watches the training loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from froude.config import Run
from froude.train.parallel import World
from froude.train.rows import Row
from froude.train.step import StepResult
from froude.train.trainer import Trainer


class Watched(Protocol):
    """The training loop, as those see it that watch it; `tables` are the rows since the last commit, by frame."""

    run: Run
    trainer: Trainer
    world: World
    attempt: int
    tables: dict[str, list[Row]]


@dataclass
class Made:
    """A step that was made, counted from 1; `began` is on `time.perf_counter`'s clock.

    What observers put into `columns` stands in the step's row, which is written after all of them have seen the step.
    """

    step: int
    result: StepResult
    began: float
    columns: Row = field(default_factory=dict)


class Observer:
    """Told what the training loop does, on every rank alike, so that its methods may call collectives.

    It may add rows to the loop's `tables` (on rank 0; they are committed with the next checkpoint, and cleared when the
    run goes back) and keep a state in checkpoints, as JSON under its `name`, which no other has. All methods may be
    left as they are.
    """

    name: ClassVar[str] = ""  # empty: it has no state

    def begin(self, loop: Watched) -> None:
        """The loop is at the step from which it goes on."""
        self.loop = loop

    def wants_slot_norms(self, step: int) -> bool:
        """Whether the norms of the slots' gradients are to be measured in this step."""
        return False

    def around(self, step: int) -> AbstractContextManager[object]:
        """What is entered while the step's gradient is computed and applied."""
        return nullcontext()

    def gradients(self, step: int) -> None:
        """The step's gradient is there, before it is clipped, and before it is known whether it is used."""

    def decided(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Rows of the events frame: what the policy against spikes did or noticed."""

    def stepped(self, made: Made) -> None:
        """An update was made."""

    def wrote(self, row: Row) -> None:
        """The row of the step that was just made, with the columns of all observers; rank 0 only."""

    def evaluated(self, row: Row) -> None:
        """The row of an evaluation; rank 0 only."""

    def checkpoint(self, step: int) -> None:
        """A checkpoint comes next, by the run's own count: every `checkpoint_every` steps, and at the end."""

    def state(self) -> dict[str, Any]:
        """What is to be kept in a checkpoint."""
        return {}

    def rewind(self, state: Mapping[str, Any]) -> None:
        """Go on from what a checkpoint kept; empty at the run's start.

        A run that goes back there builds its trainer anew after this: hold nothing of the old one, or there may be no
        room for two.
        """
