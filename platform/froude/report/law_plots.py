"""Figures of the fits: U-curves, transfer of the learning rate, critical batch, loss law and its residuals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from froude.laws import CriticalBatch, LossLaw, LrTransfer
from froude.laws.drawing import rows as drawn
from froude.laws.drawing.panel import Axis, Band, Line, Mark, Note, Panel, Points, Series
from froude.laws.lr.u_panel import with_room
from froude.parametrizations import PARAMETRIZATIONS
from froude.promote.forecast import Forecast
from froude.report import text
from froude.report.svg import Plot
from froude.report.theme import ENTRIES, LOOKS, picture

#: How far each parametrization is moved along an axis of widths, in the order of their registry, to be seen apart.
SHIFTS = (1.015, 1 / 1.015, 1.03, 1 / 1.03)
MOST_TICKS = 6  # on an axis of tokens, one more with the target


def u_curves(transfer: Mapping[str, LrTransfer]) -> list[Plot]:
    """For each parametrization loss against rate at every width, fitted parabola, optimum and its 95% interval."""
    finite = [law.rows.filter(pl.col("loss").is_finite())["loss"].to_numpy() for law in transfer.values()]
    losses = np.concatenate(finite) if finite else np.array([])
    heights = (0.0, 1.0)
    if losses.size:
        heights = with_room(float(losses.min()), float(np.quantile(losses, 0.97)))
    rates = [rate for law in transfer.values() for rate in law.rows["lr"]]
    plots = []
    for key, rules in PARAMETRIZATIONS.items():
        if key not in transfer:
            continue
        over, panel = transfer[key].over, transfer[key].drawing()[0]
        panel = replace(
            panel,
            x=rate_axis(rates),  # of all, to be compared
            y=Axis("final loss, nats per token", limits=heights),
            title="",
            legend="",
            size_words=f"{over} {{:g}}".format,
        )
        alt = f"Loss against learning rate in {rules.label} for widths {text.listing([f'{w:g}' for w in panel.sizes])}."
        plots.append(picture(f"{rules.label}: loss against learning rate", panel, f"u-{key}", alt))
    return plots


def transfer_line(transfer: Mapping[str, LrTransfer]) -> Plot:
    """Best learning rate against width with 95% intervals, and the line of the joint fit, for each parametrization.

    A width that has no interval is not in the fit: its best rate tried is hollow.
    """
    series: list[Series] = []
    rates: list[float] = []
    sizes: list[float] = []
    for key, law in transfer.items():
        place = list(PARAMETRIZATIONS).index(key) % len(LOOKS)  # a fifth looks as the first
        look, shift, called = f"look {place}", SHIFTS[place], PARAMETRIZATIONS[key].label
        found = law.curves.filter(pl.col("lr").is_finite()).sort(law.over)
        at, lr, low, high = (found[name].to_numpy() for name in (law.over, "lr", "low", "high"))
        known = np.isfinite(low)
        series += [
            Points(at[known] * shift, lr[known], style=look),
            Band(at[known] * shift, low[known], high[known], style="bar", hue=look),
            Points(at[~known] * shift, lr[~known], style=f"{look} left out"),
        ]
        rates += [*lr, *low[known], *high[known]]
        sizes += list(at)
        label = f"{called}: no slope ({law.status})"
        if math.isfinite(law.slope.value):
            ends = [float(at.min()) / 1.1, float(at.max()) * 1.1]
            series.append(Line(ends, [law.optimum(size).value for size in ends], hue=look))
            label = f"{called}: {text.signed(law.slope.value)} ± {law.slope.se:.2f}"
        series.append(Line([], [], style=look, name=label))
    panel = Panel(
        x=Axis("width", base=2, ticks=sorted(set(sizes)), words=lambda value: f"{value:g}"),
        y=Axis("best learning rate", base=2, ticks=octaves(rates), words=text.power_of_two),
        series=tuple(series),
        legend="log₂ rate per log₂ width",
        columns=2,
    )
    words = [f"{PARAMETRIZATIONS[key].label} {text.signed(law.slope.value)}" for key, law in transfer.items()]
    alt = f"Best learning rate against width; slopes {text.listing(words)}."
    return picture("How the best rate moves with width", panel, "transfer", alt)


def critical_batch(law: CriticalBatch, batch: int | None) -> Plot:
    """Steps and tokens to the target loss, each over its least, against batch in tokens; they cross at b_crit."""
    rows = law.rows.sort("batch")
    sizes, steps = rows["batch"].to_numpy(), rows["steps"].to_numpy()
    series: list[Series] = [Points(sizes, steps, style="steps", name="steps to the target loss")]
    height = "steps"
    if math.isfinite(law.b_crit):
        x = np.geomspace(sizes.min() / 1.4, sizes.max() * 1.4, 120)
        series = [
            Line(x, 1 + law.b_crit / x, style="law of steps", name="steps ÷ the least"),
            Line(x, 1 + x / law.b_crit, style="law of data", name="tokens ÷ the least"),
            Points(sizes, steps / law.s_min, style="steps"),
            Points(sizes, steps * sizes / law.e_min, style="data"),
            Mark(law.b_crit, interval=(law.low, law.high) if math.isfinite(law.low) else None),
            Note(f" b_crit {text.count(law.b_crit)}", law.b_crit, edge=0.02),
        ]
        height = "times the least possible"
    if batch is not None:
        series += [Mark(batch, style="recipe"), Note(" recipe", batch, edge=0.98, style="recipe")]
    panel = Panel(
        x=Axis("batch, tokens", base=2, ticks=[float(size) for size in sizes], words=text.whole),
        y=Axis(height, base=2, words=text.whole),
        series=tuple(series),
        columns=2,
    )
    alt = f"Steps and tokens to one loss against batch; b_crit {text.count(law.b_crit)}."
    return picture("What a larger batch buys, and costs", panel, "critical", alt)


def loss_curves(
    law: LossLaw, target: tuple[float, float] | None, forecast: Forecast | None, actual: float | None
) -> Plot:
    """Losses of the proxies against tokens with the law's curve for each size, and for the target (params, tokens)."""
    rows = drawn.thinned(law.rows.filter(pl.col("loss").is_finite()))
    tokens = rows["tokens"].to_numpy()
    reach = max(float(tokens.max()), target[1] if target else 0.0) * 1.15
    x = np.geomspace(float(tokens.min()) / 1.15, reach, 100)
    known = math.isfinite(law.E)
    series = drawn.losses(rows, law.curve if known else None, x, style="law of losses", every=_few(rows))
    if target and known:
        words = f"{text.count(target[0])} target"
        series.append(Line(x, law.curve(target[0], x), style="target", name=words))
        if law.free is not None and math.isfinite(law.free.E):
            series.append(Line(x, law.free.curve(target[0], x), style="free", name="target, free fit"))
    if target and actual is not None:
        series.append(Points([target[1]], [actual], style="actual", name="actual"))
    if target and forecast:
        series.append(Band([target[1]], [forecast.low], [forecast.high], style="forecast"))
    panel = Panel(
        x=token_axis([float(value) for value in rows["tokens"].unique().sort()], target),
        y=Axis("final loss, nats per token", reach=1.0),
        series=tuple(series),
        sizes=drawn.sizes_of(rows),
        legend="parameters",
    )
    alt = "Final loss against training tokens for each size, with the fitted law."
    ends = f"from {text.number(forecast.low)} to {text.number(forecast.high)}" if forecast else ""
    beyond = f"The forecast's interval, {ends}, goes beyond the figure."
    return picture("The loss law", panel, "loss", alt, height=3.7, beyond=beyond)


def residuals(law: LossLaw) -> Plot | None:
    """Residuals of the law as percentages of the loss, against tokens; None where nothing was fitted."""
    rows = drawn.thinned(drawn.with_percent(law.rows.filter(pl.col("residual").is_finite())))
    if rows.is_empty():
        return None
    series: list[Series] = [Mark(0.0, axis="y", style="zero")]
    sizes = drawn.sizes_of(rows)
    if _few(rows):
        for params in sizes:
            here = rows.filter(pl.col("params") == params)
            series.append(Line(here["tokens"], here["percent"], style="joined", size=params))
            odd = here.filter(pl.col("outlier").fill_null(False))
            series += [Points(odd["tokens"], odd["percent"], style="outlier")] if odd.height else []
    else:
        series.append(Points(rows["tokens"], rows["percent"], size=rows["params"].cast(pl.Float64)))
        series += drawn.outliers(rows, "tokens", "percent")
    reach = max(float(np.abs(rows["percent"].to_numpy()).max()) * 1.25, 0.1)
    panel = Panel(
        x=token_axis([float(value) for value in rows["tokens"].unique().sort()], None),
        y=Axis("residual, % of the loss", limits=(-reach, reach)),
        series=tuple(series),
        sizes=sizes,
        legend="parameters",
    )
    alt = "Residuals of the loss law in percent against training tokens."
    return picture("What the law leaves over", panel, "residuals", alt, height=3.7)


def _few(rows: pl.DataFrame) -> bool:
    """Whether each size has its own curve, and a name in the legend."""
    return len(drawn.sizes_of(rows)) <= ENTRIES


def octaves(values: Sequence[float]) -> list[float]:
    """Powers of two that cover the values."""
    if not values:
        return [1.0]
    low, high = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
    return [2.0**k for k in range(low, high + 1)]


def rate_axis(rates: Sequence[float]) -> Axis:
    """A logarithmic axis that covers these learning rates, with powers of two as labels."""
    around = min(rates) / 1.25, max(rates) * 1.25
    return Axis("peak learning rate", base=2, ticks=octaves(rates), words=text.power_of_two, limits=around)


def token_axis(ticks: Sequence[float], target: tuple[float, float] | None) -> Axis:
    """A logarithmic axis in tokens with the tried horizons, thinned, and the target's as labels."""
    wanted = [*ticks, target[1]] if target else list(ticks)
    apart = max(1.22, (max(wanted) / min(wanted)) ** (1 / MOST_TICKS))
    kept: list[float] = []
    for value in sorted(wanted, reverse=True):
        if not kept or kept[-1] / value >= apart:
            kept.append(value)
    return Axis("training tokens", base=10, ticks=kept, words=text.count)
