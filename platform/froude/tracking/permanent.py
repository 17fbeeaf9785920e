"""Which steps of a run nothing can take back any more: a function of its commit log alone.

A checkpoint is not enough, for the spike policy goes back past checkpoints; but by `reach` steps at most. A checkpoint
that is found damaged, on the way back or at a restart, leads further back than that. Then the run has another history,
which is told as another revision, from its start: who comes later reads the same revisions in the log.
"""

from __future__ import annotations

from collections.abc import Sequence

from froude.runlog import Record


class Permanent:
    """`line` are the checkpoints that lead to the newest one, `upto` is the last step that stays."""

    def __init__(self, reach: int) -> None:
        self.reach = reach
        self.line: list[Record] = []
        self.upto = self.revision = self._seen = 0

    def take(self, records: Sequence[Record]) -> list[Record]:
        """Go through what the log has more than the last time; the new records."""
        new = list(records[self._seen :])
        self._seen = len(records)
        for record in new:
            if record.kind != "attempt":
                self._add(record)
        return new

    def _add(self, record: Record) -> None:
        while self.line and self.line[-1].seq != record.base:
            self.line.pop()
        if (self.line[-1].step if self.line else 0) < self.upto:
            self.revision += 1
            self.upto = 0
        self.line.append(record)
        far = record.step - (0 if record.kind == "finished" else self.reach)
        self.upto = max([self.upto, *(each.step for each in self.line if each.step <= far)])
