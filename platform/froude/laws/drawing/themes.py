"""How what a series stands for looks: a theme, and the plain one of notebooks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib import colormaps

from froude.laws.drawing.numbers import short

Colour = str | tuple[float, ...]
Look = Mapping[str, Any]  # keywords of Matplotlib
BY_SIZE = "by size"  # in place of a marker: that of the size

INK, MUTED, ACCENT, WARN = "#1f2933", "#7b8794", "#0b6e99", "#c2410c"
LEGEND_ENTRIES = 7  # more sizes than this have a bar of colours instead


@dataclass(frozen=True, eq=False)
class Theme:
    """The looks of styles, hues and sizes, keywords of Matplotlib's lines, shades, bars and texts.

    A theme has the styles of PLAIN, which laws draw with, and may have more for panels of its own.
    `ramp` gives each of some sizes, ascending, its colour and marker; `words` writes a size. `shades` and `bars` belong
    to the intervals of a style. `top` is the share of the height where points without a `y` lie, `above` says whether
    the legend stands over the axes, where it hides nothing; more sizes than `entries` have a bar of colours. What is
    not named here is left to Matplotlib's settings.
    """

    ramp: Callable[[Sequence[float]], Sequence[tuple[Colour, str]]]
    styles: Mapping[str, Look]
    words: Callable[[float], str] = short
    hues: Mapping[str, Colour] = field(default_factory=dict)
    shades: Mapping[str, Look] = field(default_factory=dict)
    bars: Mapping[str, Look] = field(default_factory=dict)
    notes: Mapping[str, Look] = field(default_factory=dict)
    name: Look = field(default_factory=dict)
    title: Look = field(default_factory=dict)
    legend: Look = field(default_factory=dict)
    ticks: Look = field(default_factory=dict)
    grid: Look = field(default_factory=dict)
    top: float = 1.0
    above: bool = False
    entries: int = LEGEND_ENTRIES


def viridis(sizes: Sequence[float]) -> list[tuple[Colour, str]]:
    """Dark to light: a few sizes evenly apart, many by their logarithms, as a bar of colours shows them."""
    if len(sizes) <= LEGEND_ENTRIES:
        tones = np.linspace(0.05, 0.85, max(len(sizes), 2))[: len(sizes)]
    else:
        logs = np.log(sizes)
        tones = (logs - logs[0]) / (logs[-1] - logs[0])
    return [(tuple(colormaps["viridis"](tone)), "o") for tone in tones]


PLAIN = Theme(
    ramp=viridis,
    styles={
        "run": {"marker": "o", "markersize": 4.5, "color": ACCENT},
        "rest": {"marker": "o", "markersize": 3.5, "markeredgewidth": 0, "color": ACCENT, "alpha": 0.7},
        "row": {"marker": ".", "markersize": 2.5, "color": MUTED, "alpha": 0.5, "zorder": 1.9},
        "fitted": {"marker": "x", "markersize": 5, "color": INK},
        "optimum": {
            "marker": "D", "markersize": 5, "color": ACCENT, "markeredgecolor": "white", "markeredgewidth": 0.7
        },
        "best": {"marker": "o", "markersize": 6, "color": ACCENT},
        "left out": {"marker": "x", "markersize": 7, "color": WARN},
        "diverged": {"marker": "x", "markersize": 6, "color": WARN},
        "outlier": {"marker": "o", "markersize": 9, "color": WARN, "fillstyle": "none"},
        "law": {"color": INK, "linewidth": 1.2},
        "joined": {"marker": "o", "markersize": 4, "color": ACCENT, "linewidth": 1.0},
        "along": {"color": ACCENT, "linewidth": 1.2},
        "interval": {"color": INK, "linewidth": 5, "alpha": 0.3},
        "found": {"color": WARN, "linewidth": 1.1},
        "limit": {"color": MUTED, "linewidth": 0.9, "linestyle": "--"},
        "zero": {"color": INK, "linewidth": 0.8},
    },
    hues={"warn": WARN},
    shades={"band": {"color": INK, "alpha": 0.1}, "found": {"color": WARN, "alpha": 0.12}},
    bars={"bar": {"color": INK, "capsize": 3}},
    notes={
        "note": {"color": WARN, "fontsize": 8, "xytext": (5, 4)},
        "limit": {"color": MUTED, "fontsize": 8, "va": "bottom"},
    },
    name={"color": INK, "fontsize": 9},
    title={"color": INK, "fontsize": 10, "loc": "left"},
    legend={"frameon": False, "fontsize": 8, "title_fontsize": 8},
    ticks={"colors": INK, "labelsize": 8.5},
    grid={"color": "#e4e7eb", "linewidth": 0.6},
    top=0.97,
)  # fmt: skip
