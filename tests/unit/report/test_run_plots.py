"""Figures with a forecast in them: their curves are seen, however wide it is."""

from __future__ import annotations

from typing import Any, TextIO

import numpy as np
import polars as pl
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from froude import laws
from froude.promote.forecast import BandPoint, Forecast
from froude.report.law_plots import loss_curves
from froude.report.run_plots import forecast_curve
from froude.report.svg import Plot

HORIZON, STEPS = 1_000_000, 1000
FORECAST = Forecast(3.0, 2.9, 3.1, 0.9, False, "ok", (), 3.2)


def loss_at(share: float) -> float:
    return 3.0 + 2.0 * float(np.exp(-6 * share))


def with_band(low: float, high: float, interval: tuple[float, float] = (2.9, 3.1)) -> Forecast:
    """The forecast with a band that ends at `low` and `high`, and is as wide all along."""
    shares = [k / 40 for k in range(2, 41)]
    band = tuple(
        BandPoint(round(HORIZON * s), loss_at(s), loss_at(s) - 3.0 + low, loss_at(s) - 3.0 + high, 0.05)
        for s in shares
    )
    more = {"low": interval[0], "high": interval[1], "band": band, "band_level": 0.99, "block": 5000}
    return Forecast(**{**vars(FORECAST), **more})


def drawn(forecast: Forecast, monkeypatch: pytest.MonkeyPatch, steps: int = STEPS) -> tuple[list[Any], Plot]:
    """The axes of both sizes of the figure, and the figure with its words, after so many steps of a run."""
    axes: list[Any] = []

    def savefig(figure: Figure, sink: TextIO, **_: object) -> None:
        axes.extend(figure.axes)
        sink.write('<svg viewBox="0 0 1 1"></svg>')

    monkeypatch.setattr(Figure, "savefig", savefig)
    seen = pl.DataFrame(
        {
            "tokens": [1000 * i for i in range(1, steps + 1)],
            "loss": [loss_at(i / STEPS) for i in range(1, steps + 1)],
        },
        schema={"tokens": pl.Int64, "loss": pl.Float64},
    )
    evals = seen.filter(pl.col("tokens") % 100_000 == 0)
    actual = 3.01 if steps == STEPS else None
    return axes, forecast_curve(forecast, HORIZON, seen, evals, actual, [])


def shaded(axes: Any) -> bool:
    return any(isinstance(item, PolyCollection) for item in axes.collections)


@pytest.mark.parametrize("steps", [STEPS, 300])
def test_a_band_wider_than_the_curve_does_not_hide_it(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    wide = with_band(-0.72, 12.7, (0.4, 9.0))
    axes, plot = drawn(wide, monkeypatch, steps)
    curve = loss_at(0.15) - 3.0  # down to the forecast
    assert len(axes) == 2
    for each in axes:
        low, high = each.get_ylim()
        assert low < 3.0 < loss_at(0.2) < high
        assert high - low < 5 * curve
        assert not shaded(each)
    assert "Not shaded: the 99% band" in plot.caption
    assert "wider than the figure (from −0.715 to 12.7 nats per token at the end)" in plot.caption


def test_a_band_beyond_one_edge_is_shaded_and_says_where_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    axes, plot = drawn(with_band(2.8, 12.7, (2.85, 9.0)), monkeypatch)
    assert all(shaded(each) for each in axes)
    assert all(each.get_ylim()[1] < 6 for each in axes)
    assert "it goes beyond the figure (from 2.80 to 12.7 nats per token at the end)" in plot.caption


def test_a_narrow_band_is_drawn_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    axes, plot = drawn(with_band(2.85, 3.15), monkeypatch)
    for each in axes:
        low, high = each.get_ylim()
        assert low < 2.85 < 3.15 < high
        assert shaded(each)
    assert "Shaded: the 99% band of the training loss that was sealed before step 0. Grey" in plot.caption


def test_before_the_run_the_whole_interval_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = Forecast(**{**vars(FORECAST), "low": 1.0, "high": 9.0})
    axes, plot = drawn(wide, monkeypatch, steps=0)
    for each in axes:
        low, high = each.get_ylim()
        assert low < 1.0 < 9.0 < high
    assert "Shaded: the 90% interval that was sealed before step 0." in plot.caption


def test_a_wide_interval_does_not_flatten_the_loss_law(monkeypatch: pytest.MonkeyPatch) -> None:
    axes: list[Any] = []

    def savefig(figure: Figure, sink: TextIO, **_: object) -> None:
        axes.extend(figure.axes)
        sink.write('<svg viewBox="0 0 1 1"></svg>')

    monkeypatch.setattr(Figure, "savefig", savefig)
    rows = [
        {"params": n, "tokens": d, "loss": 2 + 12 / n**0.3 + 30 / d**0.3}
        for n in (10_000, 20_000, 40_000, 80_000)
        for d in (100_000, 200_000, 400_000)
    ]
    law, target = laws.loss_law(pl.DataFrame(rows)), (160_000.0, 800_000.0)
    loss = law.predict(params=target[0], tokens=target[1]).loss
    plots = [
        loss_curves(law, target, Forecast(loss, low, high, 0.9, False, "ok", (), 3.2), loss)
        for low, high in ((-0.72, 12.7), (loss - 0.05, loss + 0.05))
    ]
    wide, narrow = (each.get_ylim() for each in axes)
    assert wide[1] - wide[0] < 3.5 * (narrow[1] - narrow[0])
    assert "interval, from −0.720 to 12.7, goes beyond the figure" in plots[0].caption
    assert plots[1].caption == ""
