"""Matplotlib figures as inline SVG whose colours are the page's, so that they follow its light and dark scheme."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

#: Colours that figures draw with. Each stands for a CSS variable of the template and is replaced by it in the SVG:
#: the values themselves are never seen.
INK, MUTED, GRID, CARD = "#010101", "#020202", "#030303", "#040404"
FORECAST, ACTUAL, MUP, SP = "#050505", "#060606", "#070707", "#080808"
GOOD, BAD = "#090909", "#0a0a0a"
RAMP = ("#0b0b0b", "#0c0c0c", "#0d0d0d", "#0e0e0e", "#0f0f0f", "#101010")  # sizes, small to large
VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    CARD: "card",
    FORECAST: "forecast",
    ACTUAL: "actual",
    MUP: "mup",
    SP: "sp",
    GOOD: "good",
    BAD: "bad",
    **{colour: f"size-{i}" for i, colour in enumerate(RAMP)},
}
MARKERS = "osD^vP"  # sizes are told apart without colour too

STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 10,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "figure.facecolor": "none",
    "font.family": "DejaVu Sans",  # for the layout only, and shipped with Matplotlib; the page sets its own
    "font.size": 10,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "svg.fonttype": "none",
    "text.color": INK,
    "xtick.color": MUTED,
    "xtick.labelsize": 9,
    "ytick.color": MUTED,
    "ytick.labelsize": 9,
}


@dataclass(frozen=True)
class Plot:
    """An inline SVG with its words: `title` over it, `caption` under it, `alt` for those who cannot see it."""

    title: str
    svg: str
    caption: str = ""


@contextmanager
def figure(width: float, height: float) -> Iterator[Figure]:
    """A figure in the report's style, sizes in inches of 72 points; no pyplot, so nothing is left open."""
    with mpl.rc_context():
        mpl.rcdefaults()  # whatever the user's matplotlibrc says
        mpl.rcParams.update(STYLE)
        yield Figure(figsize=(width, height))


def inline(drawing: Figure, name: str, alt: str) -> str:
    """The figure as one <svg> element; `name` is unique in the page and prefixes every id, `alt` says what is drawn."""
    assert re.fullmatch(r"[a-z][a-z0-9-]*", name), name
    sink = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        drawing.savefig(sink, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = sink.getvalue()
    text = text[text.index("<svg") :].rstrip()
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)  # its rules would hold for the whole page
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]+"', "<g", text)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = re.sub(r'\b(?:xlink:)?href="#([^"]+)"', rf'href="#{name}-\1"', text)
    text = re.sub(r"font-family:[^;\"]*;?|font: ([\d.]+px) [^;\"]*", _font, text)
    text = re.sub(
        r"#[0-9a-f]{6}\b", lambda m: f"var(--{VARIABLES[m[0]]})" if m[0] in VARIABLES else m[0], text
    )
    text = re.sub(r"\s+", " ", text).replace("> <", "><")
    head, body = text.split(">", 1)
    box = re.search(r'viewBox="([^"]+)"', head)
    assert box is not None
    width = float(box[1].split()[2])
    label = html.escape(alt, quote=True)
    return (
        f'<svg viewBox="{box[1]}" role="img" aria-label="{label}" style="--natural:{width * 4 / 3:.0f}px" '
        f'xmlns="http://www.w3.org/2000/svg">{body}'
    )


def _font(match: re.Match[str]) -> str:
    return f"font-size: {match[1]}" if match[1] else ""
