"""The one renderer: panels of series in, Matplotlib figures out, in the looks of a theme.

Built on `matplotlib.figure.Figure` without pyplot, so nothing depends on a display or on global state.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, assert_never

import numpy as np
from matplotlib import colormaps, rcParams
from matplotlib.axes import Axes
from matplotlib.axis import Axis as Scale
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from froude.laws.drawing.numbers import short
from froude.laws.drawing.panel import Axis, Band, Line, Mark, Note, Panel, Points
from froude.laws.drawing.themes import BY_SIZE, INK, PLAIN, WARN, Theme

DECADES = 10**2.5  # axes over a wider range name decades only
LEAST_HEIGHT = math.log10(2)  # of a logarithmic axis, where `reach` is counted in it
DOUBLE = 300.0  # decades either way that a double has


def render(
    panels: Sequence[Panel], status: str = "ok", reasons: Sequence[str] = (), theme: Theme = PLAIN
) -> Figure:
    """Draw panels side by side, with a status other than ok above them."""
    figure = Figure(figsize=(5.2 * len(panels) + 0.4, 3.9), layout="constrained", facecolor="white")
    for axes, panel in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        draw(axes, panel, theme)
    if status != "ok":
        text = f"status: {status}" + (f" ({reasons[0]})" if reasons else "")
        figure.suptitle(text, color=WARN, fontsize=9, x=0.01, ha="left")
    return figure


def draw(axes: Axes, panel: Panel, theme: Theme) -> bool:
    """Draw one panel on axes, and return whether an interval goes beyond it.

    Points and curves come first: they say how much of the intervals is shown.
    """
    if theme.grid:
        axes.grid(True, **theme.grid)
        axes.set_axisbelow(True)
    if theme.ticks:
        axes.tick_params(**theme.ticks)
    for side, axis in (("x", panel.x), ("y", panel.y)):
        _scale(axes, side, axis)
    pen = _Pen(axes, panel, theme)
    for series in panel.series:
        match series:
            case Points():
                pen.points(series)
            case Line():
                pen.line(series)
            case Mark():
                pen.mark(series)
            case Note():
                pen.note(series)
            case Band():
                pass  # below
            case _:
                assert_never(series)
    beyond = pen.intervals()
    axes.set_xlabel(panel.x.name, **theme.name)
    axes.set_ylabel(panel.y.name, **theme.name)
    if panel.title:
        axes.set_title(panel.title, **theme.title)
    _legend(axes, panel, theme)
    return beyond


class _Pen:
    """Draws series with the looks that a theme has for their styles."""

    def __init__(self, axes: Axes, panel: Panel, theme: Theme) -> None:
        self.axes, self.panel, self.theme = axes, panel, theme
        self.ramp = dict(zip(panel.sizes, theme.ramp(panel.sizes), strict=True)) if panel.sizes else {}
        self.unnamed = set(panel.sizes) if panel.legend or panel.size_words else set()

    def points(self, series: Points) -> None:
        look = {"linestyle": "none", **self.look(series)}
        x = np.asarray(series.x, dtype=np.float64)
        if series.size is not None and np.ndim(series.size):
            colours = [self.ramp[float(size)][0] for size in np.asarray(series.size)]
            across = look.get("markersize", rcParams["lines.markersize"])
            self.axes.scatter(x, np.asarray(series.y), s=across**2 / 2, c=colours, linewidths=0)
        elif series.y is None:
            if x.size:
                at = self.axes.get_xaxis_transform()
                self.axes.plot(x, np.full(x.size, self.theme.top), transform=at, **look)
        else:
            self.axes.plot(x, np.asarray(series.y, dtype=np.float64), **look)

    def line(self, series: Line) -> None:
        x, y = (np.asarray(values, dtype=np.float64) for values in (series.x, series.y))
        self.axes.plot(x, y, **self.look(series))

    def mark(self, series: Mark) -> None:
        across = self.axes.axvline if series.axis == "x" else self.axes.axhline
        across(series.at, label=series.name or None, **self.theme.styles[series.style])

    def note(self, series: Note) -> None:
        look = dict(self.theme.notes[series.style])
        offset = look.pop("xytext", (0, 0))
        at: tuple[float, float] = (series.x, series.y)
        frame: Any = "data"
        if series.edge is not None:
            at, frame = (series.x, series.edge), self.axes.get_xaxis_transform()
        self.axes.annotate(series.text, at, xytext=offset, xycoords=frame, textcoords="offset points", **look)

    def intervals(self) -> bool:
        """Draw what has ends: along x as far as the curves go, along y as far as the axis' `reach`; is there more?"""
        spans = [
            (each, each.interval) for each in self.panel.series if isinstance(each, Mark) and each.interval
        ]
        bands = [s for s in self.panel.series if isinstance(s, Band)]
        if not (spans or bands):
            return False
        along, up = self.axes.get_xlim(), self.axes.get_ylim()
        shown, far = (_reach(up, self.panel.y, times) for times in (1, 2))
        for mark, interval in spans:
            least, most = along if mark.axis == "x" else shown
            low, high = max(interval[0], least), min(interval[1], most)
            shade = self.axes.axvspan if mark.axis == "x" else self.axes.axhspan
            if low < high:
                shade(low, high, linewidth=0, label=mark.span or None, **self.theme.shades[mark.style])
        for band in bands:
            self.band(band, far)
        self.axes.set_xlim(along)
        wide = self.axes.get_ylim()
        self.axes.set_ylim(max(wide[0], shown[0]), min(wide[1], shown[1]))
        return any(
            np.any(np.less(each.low, shown[0])) or np.any(np.greater(each.high, shown[1])) for each in bands
        )

    def band(self, series: Band, far: tuple[float, float]) -> None:
        x, low, high = (np.asarray(ends, dtype=np.float64) for ends in (series.x, series.low, series.high))
        low, high = np.clip(low, *far), np.clip(high, *far)  # an end without bounds is still drawn
        if series.style == "band":
            self.axes.fill_between(x, low, high, linewidth=0, **self.look(series, self.theme.shades))
        else:
            ends = [np.zeros(low.shape), high - low]
            self.axes.errorbar(x, low, ends, fmt="none", **self.look(series, self.theme.bars))

    def look(self, series: Points | Line | Band, looks: Any = None) -> dict[str, Any]:
        """The keywords of a series: its style's, with the colour of its hue or size, and its name."""
        look = dict((looks or self.theme.styles)[series.style])
        name, marker = series.name, "o"
        if series.hue:
            look["color"] = self.theme.hues[series.hue]
        if series.size is not None and not np.ndim(series.size):
            size = float(np.asarray(series.size))
            look["color"], marker = self.ramp[size]
            if size in self.unnamed:
                self.unnamed.remove(size)
                name = name or (self.panel.size_words or self.theme.words)(size)
        if look.get("marker") == BY_SIZE:
            look["marker"] = marker
        return {**look, "label": name} if name else look


def _reach(limits: tuple[float, float], axis: Axis, times: int = 1) -> tuple[float, float]:
    """How far intervals are drawn on an axis whose points and curves fill these limits."""
    low, high = limits
    if not axis.base:
        room = times * axis.reach * (high - low)
        return low - room, high + room
    low, high = math.log10(low), math.log10(high)
    room = times * axis.reach * max(high - low, LEAST_HEIGHT)
    return 10 ** max(low - room, -DOUBLE), 10 ** min(high + room, DOUBLE)


def _legend(axes: Axes, panel: Panel, theme: Theme) -> None:
    """Say which colour is which size, and what lines are: a legend, or a bar of colours for many sizes."""
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    named, title = bool(axes.get_legend_handles_labels()[0]), panel.legend or None
    if panel.legend and len(panel.sizes) > theme.entries:
        scale = ScalarMappable(LogNorm(panel.sizes[0], panel.sizes[-1]), colormaps["viridis"])
        bar = figure.colorbar(scale, ax=axes, pad=0.02)
        bar.set_label(panel.legend, fontsize=8.5, color=INK)
        bar.ax.tick_params(labelsize=8)
    elif named and theme.above:
        columns = {"ncols": panel.columns, "title": title, **theme.legend}
        figure.legend(loc="outside upper left", alignment="left", **columns)
    elif named:
        axes.legend(title=title, **theme.legend)


def _scale(axes: Axes, side: str, axis: Axis) -> None:
    scale, resize = (axes.xaxis, axes.set_xscale) if side == "x" else (axes.yaxis, axes.set_yscale)
    if axis.base:
        resize("log", base=axis.base)
        if axis.ticks is None and axis.words is None:
            _house_ticks(scale, axis.base)
    if axis.ticks is not None:
        scale.set_major_locator(FixedLocator([float(value) for value in axis.ticks]))
    if axis.words is not None:
        words = axis.words
        scale.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
    if axis.ticks is not None or (axis.base and axis.words is not None):
        scale.set_minor_locator(NullLocator())
    if axis.limits is not None:
        (axes.set_xlim if side == "x" else axes.set_ylim)(*axis.limits)


def _house_ticks(scale: Scale, base: int) -> None:
    """Ticks that people read: ranges of less than a decade, or an octave, would have one labelled tick, or none."""
    steps = (1.0, 2.0, 5.0) if base == 10 else tuple(2 ** (quarter / 4) for quarter in range(4))
    scale.set_major_locator(LogLocator(base=base, subs=steps, numticks=9 if base == 10 else 50))
    scale.set_major_formatter(partial(_tick if base == 10 else _octave, scale))
    scale.set_minor_formatter(NullFormatter())


def _octave(scale: Scale, value: float, place: int | None = None) -> str:
    """Label a power of two, on short axes also halves and quarters of an octave."""
    low, high = scale.get_view_interval()
    exponent = round(4 * math.log2(value)) / 4
    step = 0.25 if high < 2 * low else 0.5 if high < 4 * low else 1.0
    return f"$2^{{{exponent:g}}}$" if exponent % step == 0 else ""


def _tick(scale: Scale, value: float, place: int | None = None) -> str:
    """Label a tick; over several decades only their beginnings, as others would run into each other."""
    low, high = scale.get_view_interval()
    leading = value / 10 ** math.floor(math.log10(value) + 1e-9)
    return short(value) if leading < 1.5 or high < DECADES * low else ""
