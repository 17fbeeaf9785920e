"""What a figure shows, as data: panels of points, lines, bands, marks and notes on named axes.

Nothing here knows of colours or of Matplotlib: a series names by its `style` what it stands for, and a theme says how
that looks. `hue` is a colour by what it stands for, in place of the style's own; `size`, a place on the panel's ramp of
sizes, comes before both. `name` is what the legend says.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from numpy.typing import ArrayLike


@dataclass(frozen=True, eq=False)
class Points:
    """Values `y` at `x`; without `y` they lie at the upper edge. `size` may hold one for each point."""

    x: ArrayLike
    y: ArrayLike | None
    style: str = "run"
    hue: str = ""
    size: ArrayLike | None = None
    name: str = ""


@dataclass(frozen=True, eq=False)
class Line:
    """A curve through (x, y), or rows of a table that belong together."""

    x: ArrayLike
    y: ArrayLike
    style: str = "law"
    hue: str = ""
    size: float | None = None
    name: str = ""


@dataclass(frozen=True, eq=False)
class Band:
    """Intervals from `low` to `high` at `x`: shaded between neighbours (`band`), or a bar each (`bar`)."""

    x: ArrayLike
    low: ArrayLike
    high: ArrayLike
    style: str = "band"
    hue: str = ""
    size: float | None = None
    name: str = ""


@dataclass(frozen=True, eq=False)
class Mark:
    """One value of an axis, drawn across the panel; its interval is shaded, and `span` its name."""

    at: float
    axis: Literal["x", "y"] = "x"
    style: str = "found"
    name: str = ""
    interval: tuple[float, float] | None = None
    span: str = ""


@dataclass(frozen=True, eq=False)
class Note:
    """Words next to a point; `edge`, a share of the panel's height, stands for `y`."""

    text: str
    x: float
    y: float = 0.0
    edge: float | None = None
    style: str = "note"


Series = Points | Line | Band | Mark | Note


@dataclass(frozen=True, eq=False)
class Axis:
    """An axis: its name with the unit, and the base of its logarithm, 0 for a linear one.

    `ticks` and `words` stand for those that suit the values. `reach` says how far beyond the points and curves an
    interval is drawn, in heights of these: more would flatten them.
    """

    name: str
    base: Literal[0, 2, 10] = 0
    ticks: Sequence[float] | None = None
    words: Callable[[float], str] | None = None
    limits: tuple[float, float] | None = None
    reach: float = 3.0


@dataclass(frozen=True, eq=False)
class Panel:
    """One pair of axes with its series, in the order in which they are drawn.

    `sizes`, ascending, is the ramp that colours stand for; with `legend`, its title, or `size_words` the first series
    of each size is named by it. `columns` is the legend's width where a theme sets it above the axes.
    """

    x: Axis
    y: Axis
    series: tuple[Series, ...]
    title: str = ""
    sizes: tuple[float, ...] = ()
    size_words: Callable[[float], str] | None = None
    legend: str = ""
    columns: int = 4
