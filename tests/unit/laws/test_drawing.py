"""Figures as data and their renderer: what it shows of intervals, and that the data of a law's curves are public."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure

from froude import laws
from froude.laws.drawing.panel import Axis, Band, Line, Mark, Panel, Points
from froude.laws.drawing.render import draw
from froude.laws.drawing.themes import PLAIN, Theme
from froude.report.theme import REPORT

X = np.linspace(1, 10, 20)
RATES = 2.0 ** np.arange(-10, -3)
SWEEP = pl.DataFrame(
    [
        {"width": w, "lr": lr, "loss": 3 + 0.05 * math.log(lr * w) ** 2 + 0.001 * (-1) ** i}
        for w in (32, 64)
        for i, lr in enumerate(RATES)
    ]
)


@pytest.mark.parametrize("base", [0, 10])
@pytest.mark.parametrize("high", [1e4, math.inf])
def test_a_band_that_would_flatten_the_curve_is_cut(base: int, high: float) -> None:
    def shown(*bands: Band) -> tuple[tuple[float, float], bool]:
        axes = Figure().subplots()
        y = Axis("loss", base=base, reach=1.0)  # type: ignore[arg-type]
        beyond = draw(axes, Panel(Axis("steps"), y, (Line(X, 1 + 1 / X), *bands)), PLAIN)
        return axes.get_ylim(), beyond

    (_, top), beyond = shown(Band(X, X - 0.5, np.full(20, high)))
    (least, most), _ = shown()
    assert beyond
    assert top == pytest.approx(most * max(most / least, 2) if base else 2 * most - least)
    narrow, beyond = shown(Band(X, 1 / X + 0.9, 1 / X + 1.1))
    assert not beyond
    assert narrow[0] < 1.0 < 2.1 < narrow[1]


def test_bars_are_cut_as_bands_are() -> None:
    axes = Figure().subplots()
    panel = Panel(
        Axis("steps"), Axis("loss", reach=1.0), (Line(X, 1 + 1 / X), Band([5.0], [-3], [9], style="bar"))
    )
    assert draw(axes, panel, PLAIN)
    assert axes.get_ylim()[0] > -1
    assert axes.get_ylim()[1] < 4


def test_an_interval_along_x_ends_where_the_curves_do() -> None:
    axes = Figure().subplots()
    plain = Figure().subplots()
    curve = Line(X, X)
    draw(plain, Panel(Axis("x"), Axis("y"), (curve, Mark(5.0))), PLAIN)
    draw(axes, Panel(Axis("x"), Axis("y"), (curve, Mark(5.0, interval=(2.0, math.inf)))), PLAIN)
    assert axes.get_xlim() == plain.get_xlim()
    assert len(axes.patches) == 1
    assert axes.get_ylim() == plain.get_ylim()


@pytest.mark.parametrize("theme", [PLAIN, REPORT])
def test_a_theme_has_a_look_for_all_that_laws_draw(theme: Theme) -> None:
    for name in ("styles", "shades", "bars", "notes", "hues"):
        assert getattr(PLAIN, name).keys() <= getattr(theme, name).keys(), name


def test_the_first_series_of_a_size_names_it() -> None:
    sizes = (1e6, 2e6)
    series = [part for size in sizes for part in (Points(X, X, size=size), Line(X, X, size=size))]
    axes = Figure().subplots()
    draw(axes, Panel(Axis("x"), Axis("y"), tuple(series), sizes=sizes, legend="parameters"), PLAIN)
    assert axes.get_legend_handles_labels()[1] == ["1M", "2M"]
    assert axes.get_legend().get_title().get_text() == "parameters"
    colours = [line.get_color() for line in axes.lines]
    assert colours[0] == colours[1] != colours[2] == colours[3]


def test_many_sizes_have_a_bar_of_colours() -> None:
    sizes = tuple(float(size) for size in np.geomspace(1e6, 1e9, 50))
    figure = Figure()
    points = Points(np.arange(50) + 1, np.arange(50), size=sizes)
    draw(figure.subplots(), Panel(Axis("x"), Axis("y"), (points,), sizes=sizes, legend="parameters"), PLAIN)
    assert len(figure.axes) == 2
    assert figure.axes[1].get_ylabel() == "parameters"


def test_the_curves_of_a_law_are_data() -> None:
    law = laws.lr_transfer(SWEEP)
    shapes, optima = law.drawing()
    assert (shapes.x.name, shapes.x.base, shapes.y.name) == ("peak learning rate", 2, "loss (nats per token)")
    stars = [each for each in shapes.series if isinstance(each, Points) and each.style == "optimum"]
    assert [each.size for each in stars] == [32, 64]
    assert [np.asarray(each.x).item() for each in stars] == law.curves["lr"].to_list()
    bars = [each for each in optima.series if isinstance(each, Band) and each.style == "bar"]
    assert [np.asarray(each.low).item() for each in bars] == law.curves["low"].to_list()
    curve = next(each for each in shapes.series if isinstance(each, Line) and each.style == "law")
    assert np.asarray(curve.y).min() == pytest.approx(law.curves["loss"][0], abs=1e-3)


def test_runs_without_a_loss_are_crosses_at_the_upper_edge() -> None:
    lost = pl.concat([SWEEP, pl.DataFrame({"width": [64], "lr": [0.5], "loss": [math.nan]})])
    crosses = [s for s in laws.lr_transfer(lost).drawing()[0].series if getattr(s, "style", "") == "diverged"]
    assert len(crosses) == 1
    assert isinstance(crosses[0], Points)
    assert crosses[0].y is None
    assert np.asarray(crosses[0].x).tolist() == [0.5]
