"""Figure of a coordinate check: how far a few updates move each block, over width or depth."""

from collections.abc import Sequence
from dataclasses import replace

import polars as pl
from matplotlib.figure import Figure

from froude.laws.drawing.numbers import short
from froude.laws.drawing.panel import Axis, Line, Panel, Points, Series
from froude.laws.drawing.render import render
from froude.laws.drawing.themes import PLAIN, Colour
from froude.parametrizations import PARAMETRIZATIONS

MOVED = "mean |x_t - x_0|"


def draw(rows: pl.DataFrame, over: str, verdict: str = "passed", *, reasons: tuple[str, ...] = ()) -> Figure:
    """A panel a parametrization and t: mean|x_t - x_0| of each block and the logits against `over`, all seeds.

    `rows` have the columns `parametrization, <over>, seed, name, t, delta`; lines join the means over seeds.
    """
    moved = rows.filter((pl.col("delta") > 0) & pl.col("delta").is_finite())
    shown = moved.select("parametrization", "t").unique(maintain_order=True).rows()
    blocks = [name for name in rows["name"].unique(maintain_order=True) if name != "logits"]
    panels = [
        _panel(moved.filter(parametrization=key, t=t), over, blocks, f"{_title(key)}, t = {t}")
        for key, t in shown
    ] or [Panel(Axis(over), Axis(MOVED), ())]
    panels[:-1] = [replace(panel, series=tuple(map(_unnamed, panel.series))) for panel in panels[:-1]]
    return render(panels, "ok" if verdict == "passed" else verdict, reasons, THEME)


def _title(parametrization: str) -> str:
    rules = PARAMETRIZATIONS[parametrization]
    return f"{rules.label}: {'is to be level' if rules.transfers else 'the control, is to rise'}"


def _unnamed(series: Series) -> Series:
    """The same without a name: one legend is enough."""
    return replace(series, name="") if isinstance(series, Line) else series


def _ramp(places: Sequence[float]) -> list[tuple[Colour, str]]:
    """The deeper a block, the darker."""
    return [((0.04, 0.43, 0.60, 0.35 + 0.65 * (i + 1) / len(places)), "o") for i in range(len(places))]


THEME = replace(PLAIN, ramp=_ramp)


def _panel(rows: pl.DataFrame, over: str, blocks: list[str], title: str) -> Panel:
    series: list[Series] = [Points(rows[over], rows["delta"], style="row")]
    for (name,), group in rows.group_by("name", maintain_order=True):
        means = group.group_by(over).agg(pl.col("delta").mean()).sort(over)
        place = None if name == "logits" else float(blocks.index(str(name)) + 1)
        hue = "warn" if name == "logits" else ""
        series.append(Line(means[over], means["delta"], style="joined", hue=hue, size=place, name=str(name)))
    ticks = [float(value) for value in rows[over].unique().sort()]
    return Panel(
        x=Axis(over, base=2, ticks=ticks, words=short),
        y=Axis(MOVED, base=10),
        series=tuple(series),
        title=title,
        sizes=tuple(float(i + 1) for i in range(len(blocks))),
    )
