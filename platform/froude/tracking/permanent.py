"""Which steps of a run nothing can take back any more: a function of its commit log alone.

A checkpoint is not enough, for the spike policy goes back past checkpoints: to the newest one that was kept and lies
`reach` steps back, at most. A second rollback, soon after the first, may go further; so may who finds that checkpoint
damaged. Then the run has another history, which is told as another revision, from its start: a function of the log too.
"""

from __future__ import annotations

from collections.abc import Sequence

from froude.runlog import Record, expired


class Permanent:
    """`line` are the checkpoints that lead to the newest one, `upto` is the last step that stays."""

    def __init__(self, reach: int) -> None:
        self.reach = reach
        self.line: list[Record] = []
        self.upto = self.revision = self._seen = 0
        self._gone: set[int] = set()

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
        self._gone |= expired([record])
        far = record.step - (0 if record.kind == "finished" else self.reach)
        kept = (each.step for each in self.line if each.step <= far and each.seq not in self._gone)
        self.upto = max([self.upto, *kept])
