"""How the report's figures of laws look, and how a panel becomes one of its inline pictures."""

from __future__ import annotations

from collections.abc import Sequence

from froude.laws.drawing.panel import Panel
from froude.laws.drawing.render import draw
from froude.laws.drawing.themes import BY_SIZE, Colour, Theme, viridis
from froude.report import text
from froude.report.svg import (
    ACTUAL,
    BAD,
    CARD,
    FORECAST,
    INK,
    MARKERS,
    MUP,
    MUTED,
    RAMP,
    SP,
    Plot,
    figure,
    inline,
)

ENTRIES = 16  # sizes that a legend names: more would leave the figure no room
#: Colour and marker of each parametrization, in the order of their registry.
LOOKS = ((SP, "s"), (MUP, "o"), (ACTUAL, "D"), (MUTED, "^"))


def ramp(sizes: Sequence[float]) -> list[tuple[Colour, str]]:
    """A colour and a marker for each of some sizes, small to large."""
    if len(sizes) > ENTRIES:  # they have a bar of colours
        return viridis(sizes)
    if len(sizes) == 1:
        return [(RAMP[3], MARKERS[0])]
    last = len(sizes) - 1
    return [(RAMP[round(i * (len(RAMP) - 1) / last)], MARKERS[i % len(MARKERS)]) for i in range(last + 1)]


# Sizes, fonts and grid are those of `svg.figure`.
REPORT = Theme(
    ramp=ramp,
    words=text.count,
    styles={
        "run": {"marker": BY_SIZE, "color": FORECAST},
        "rest": {"marker": "o", "color": FORECAST, "alpha": 0.7},
        "row": {"marker": ".", "markersize": 3, "color": MUTED, "alpha": 0.5, "zorder": 1.9},
        "fitted": {"marker": "x", "color": INK},
        "best": {"marker": "o", "color": FORECAST},
        "left out": {"marker": "o", "color": BAD, "fillstyle": "none"},
        "joined": {"marker": BY_SIZE, "color": FORECAST, "linewidth": 0.8},
        "law": {"color": FORECAST, "linewidth": 1.3},
        "along": {"color": MUTED, "linewidth": 1.2},
        "limit": {"color": MUTED, "linewidth": 1, "linestyle": ":"},
        "interval": {"color": FORECAST, "linewidth": 5, "alpha": 0.3},
        "optimum": {
            "marker": "*", "markersize": 12, "color": FORECAST, "markeredgecolor": CARD, "markeredgewidth": 0.8
        },
        "diverged": {"marker": "x", "color": BAD, "clip_on": False, "markeredgewidth": 1.8},
        "outlier": {"marker": "o", "color": BAD, "markersize": 11, "fillstyle": "none"},
        "found": {"color": MUTED, "linestyle": "--", "linewidth": 1.2},
        "zero": {"color": MUTED, "linewidth": 1},
        # Only here:
        "law of losses": {"linewidth": 1.1},
        "law of steps": {"color": FORECAST},
        "law of data": {"color": SP},
        "steps": {"marker": "o", "color": FORECAST},
        "data": {"marker": "s", "color": SP},
        **{f"look {i}": {"marker": each[1], "color": each[0]} for i, each in enumerate(LOOKS)},
        **{
            f"look {i} left out": {"marker": each[1], "color": each[0], "fillstyle": "none"}
            for i, each in enumerate(LOOKS)
        },
        "recipe": {"color": ACTUAL, "linewidth": 1.2},
        "target": {"color": FORECAST, "linewidth": 1.8},
        "free": {"color": MUTED, "linewidth": 1.4, "linestyle": "--"},
        "actual": {"marker": "o", "color": ACTUAL, "markersize": 8, "markeredgecolor": CARD},
    },
    hues={**{f"look {i}": each[0] for i, each in enumerate(LOOKS)}, "warn": BAD},
    shades={"found": {"color": MUTED, "alpha": 0.12}, "band": {"color": FORECAST, "alpha": 0.16}},
    bars={
        "bar": {"color": FORECAST, "capsize": 3, "elinewidth": 1.3},
        "forecast": {"color": FORECAST, "capsize": 4, "elinewidth": 2},
    },
    notes={
        "note": {"size": 9},
        "limit": {"color": MUTED, "size": 9, "va": "bottom"},
        "recipe": {"color": ACTUAL, "va": "top", "size": 9, "weight": "bold"},
    },
    legend={"title_fontsize": 9, "handletextpad": 0.4, "columnspacing": 1.1, "borderpad": 0},
    above=True,
    entries=ENTRIES,
)  # fmt: skip


def picture(title: str, panel: Panel, name: str, alt: str, *, height: float = 3.5, beyond: str = "") -> Plot:
    """The panel as an inline SVG with its words; `beyond` is the caption where an interval goes beyond the figure.

    `name` is unique in the page, `alt` says what is drawn to those who cannot see it.
    """
    with figure(4.7, height) as drawing:
        hidden = draw(drawing.subplots(), panel, REPORT)
        return Plot(title, inline(drawing, name, alt), beyond if hidden else "")
