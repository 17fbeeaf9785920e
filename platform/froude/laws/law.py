"""What every fitted law is: a typed status with reasons, the rows that it was fitted to, a table and a drawing.

A law of one's own is a frozen dataclass that inherits `Law`, with an `Estimate` for each parameter, `drawing` and
`residuals`: one file, and nothing else has to know of it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from froude.laws.drawing.panel import Panel
from froude.laws.stats.frames import Array, Mask, Sample
from froude.laws.stats.results import Estimate, Status, table_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, kw_only=True)
class Law(ABC):
    """The result of a fit to the rows of `sample`.

    `reasons` says in words why `status` is not ok, and notes what a reader should know.
    """

    status: Status
    reasons: tuple[str, ...]
    sample: Sample = field(repr=False)

    @abstractmethod
    def drawing(self) -> tuple[Panel, ...]:
        """Return what a figure of the law shows, as data: panels of points, lines, bands and marks."""

    @abstractmethod
    def residuals(self) -> tuple[Array, Array, Mask] | None:
        """Return fitted values, residuals and marks of outliers of the used rows; None where nothing was fitted.

        A fitted value of NaN says that the law has nothing to say of a row.
        """

    @cached_property
    def rows(self) -> pl.DataFrame:
        """Every input row with `fitted`, `residual` = observed - fitted (in the unit of both) and `outlier`.

        Null in rows that did not enter the fit, and in all of them where nothing was fitted.
        """
        found = self.residuals()
        return self.sample.unfitted() if found is None else self.sample.rows(*found)

    def table(self) -> pl.DataFrame:
        """Return `parameter, value, se, low, high` at 95%, a row for each estimate of the law."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return table_of({name: value for name, value in values.items() if isinstance(value, Estimate)})

    def plot(self) -> "Figure":
        """Draw the law, with a status other than ok above it."""
        from froude.laws.drawing.render import render  # Matplotlib, which a fit does not need

        return render(self.drawing(), self.status, self.reasons)

    def refusal(self, what: str = "No law was fitted") -> ValueError:
        """Return the error for a question that the law has no answer to."""
        return ValueError(f"{what}: status {self.status} ({'; '.join(self.reasons)}).")
