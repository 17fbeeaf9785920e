"""What all figures of laws share: panels with units, colours of sizes, marks of outliers and of diverged runs.

Built on `matplotlib.figure.Figure` without pyplot, so nothing depends on a display or on global state.
"""

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

if TYPE_CHECKING:
    from froude.laws.frames import Sample

INK, MUTED, ACCENT, WARN = "#1f2933", "#7b8794", "#0b6e99", "#c2410c"
FINITE_LOSS = pl.col("loss").cast(pl.Float64).is_finite()
LEGEND_ENTRIES = 7
DECADES = 10**2.5  # axes over a wider range name decades only
DRAWN_ROWS = 5_000  # a scatter of more is a blot and a slow file


def panels(count: int, status: str, reasons: tuple[str, ...]) -> tuple[Figure, list[Axes]]:
    """Return a figure of panels side by side, with a status other than ok above them."""
    figure = Figure(figsize=(5.2 * count + 0.4, 3.9), layout="constrained", facecolor="white")
    axes = list(np.atleast_1d(figure.subplots(1, count)))
    for axis in axes:
        axis.grid(True, color="#e4e7eb", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.tick_params(colors=INK, labelsize=8.5)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    if status != "ok":
        text = f"status: {status}" + (f" ({reasons[0]})" if reasons else "")
        figure.suptitle(text, color=WARN, fontsize=9, x=0.01, ha="left")
    return figure, axes


def label(axis: Axes, x: str, y: str, title: str = "") -> None:
    """Name both axes, units included, and the panel."""
    axis.set_xlabel(x, color=INK, fontsize=9)
    axis.set_ylabel(y, color=INK, fontsize=9)
    if title:
        axis.set_title(title, color=INK, fontsize=10, loc="left")


def log_scale(axis: Axes, *, y: bool = False, base: int = 10) -> None:
    """Make the x axis logarithmic, and with `y` the other too, with ticks that people read."""
    axis.set_xscale("log", base=base)
    if y:
        axis.set_yscale("log", base=base)
    # Ranges of less than a decade, or an octave, would have one labelled tick, or none.
    steps = (1.0, 2.0, 5.0) if base == 10 else tuple(2 ** (quarter / 4) for quarter in range(4))
    for scale in [axis.xaxis, axis.yaxis][: 1 + y]:
        scale.set_major_locator(LogLocator(base=base, subs=steps, numticks=9 if base == 10 else 50))
        scale.set_major_formatter(partial(_tick if base == 10 else _octave, scale))
        scale.set_minor_formatter(NullFormatter())


def _octave(scale: Axis, value: float, place: int | None = None) -> str:
    """Label a power of two, on short axes also halves and quarters of an octave."""
    low, high = scale.get_view_interval()
    exponent = round(4 * math.log2(value)) / 4
    step = 0.25 if high < 2 * low else 0.5 if high < 4 * low else 1.0
    return f"$2^{{{exponent:g}}}$" if exponent % step == 0 else ""


def _tick(scale: Axis, value: float, place: int | None = None) -> str:
    """Label a tick; over several decades only their beginnings, as others would run into each other."""
    low, high = scale.get_view_interval()
    leading = value / 10 ** math.floor(math.log10(value) + 1e-9)
    return short(value) if leading < 1.5 or high < DECADES * low else ""


def short(value: float) -> str:
    """Write a number as 12.3k, 4.56M, 7B; from 1e15 on, where FLOPs are counted, as 3e+17."""
    if abs(value) >= 1e15:
        return f"{value:.3g}"
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def colors(sizes: list[float]) -> dict[float, tuple[float, ...]]:
    """Give each size a colour, dark to light."""
    tone = np.linspace(0.05, 0.85, max(len(sizes), 2))
    return {size: tuple(colormaps["viridis"](t)) for size, t in zip(sizes, tone, strict=False)}


def name_sizes(figure: Figure, axis: Axes, sizes: list[float], name: str) -> None:
    """Say which colour is which size: a legend for a few, else a colour bar."""
    if len(sizes) <= LEGEND_ENTRIES:
        axis.legend(frameon=False, fontsize=8, title=name, title_fontsize=8)
        return
    scale = ScalarMappable(LogNorm(sizes[0], sizes[-1]), colormaps["viridis"])
    bar = figure.colorbar(scale, ax=axis, pad=0.02)
    bar.set_label(name, fontsize=8.5, color=INK)
    bar.ax.tick_params(labelsize=8)


def mark_outliers(axis: Axes, rows: pl.DataFrame, x: str, y: str) -> None:
    """Circle the rows marked as outliers."""
    marked = rows.filter(pl.col("outlier").fill_null(False))
    if marked.height:
        axis.plot(marked[x], marked[y], "o", mfc="none", mec=WARN, ms=9, ls="none", label="outlier")


def mark_diverged(axis: Axes, sample: "Sample", x: str) -> None:
    """Put crosses at the upper edge where runs diverged."""
    lost = sample.columns[x][sample.diverged]
    if lost.size:
        marks = axis.plot(lost, np.full(lost.size, 0.97), "x", color=WARN, ms=6, ls="none", label="diverged")
        marks[0].set_transform(axis.get_xaxis_transform())


def least(rows: pl.DataFrame, name: str) -> float:
    """Return the smallest value of a column."""
    return float(rows[name].cast(pl.Float64).to_numpy().min())


def most(rows: pl.DataFrame, name: str) -> float:
    """Return the largest value of a column."""
    return float(rows[name].cast(pl.Float64).to_numpy().max())
