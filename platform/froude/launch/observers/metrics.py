"""Ray's copy of a run's newest metrics."""

from __future__ import annotations

from froude.launch.observers import Lasting
from froude.train.rows import Row


class RayMetrics(Lasting):
    """Keeps the newest row of the steps frame; empty but on rank 0."""

    def __init__(self) -> None:
        self.row: Row = {}

    def wrote(self, row: Row) -> None:
        self.row = row

    def report(self) -> None:
        """Hand the row's numbers to Ray; every rank calls it alike, and Ray keeps rank 0's."""
        from ray import train

        train.report({name: value for name, value in self.row.items() if isinstance(value, int | float)})
