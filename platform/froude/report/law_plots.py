"""Figures of the fits: U-curves, transfer of the learning rate, critical batch, loss law and its residuals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from froude.laws import CriticalBatch, LossLaw, LrTransfer
from froude.promote.forecast import Forecast
from froude.report import text
from froude.report.svg import ACTUAL, BAD, CARD, FORECAST, MARKERS, MUP, MUTED, RAMP, SP, Plot, figure, inline

NAMES = {"sp": "SP", "mup": "μP"}
COLOURS = {"sp": SP, "mup": MUP}
MOST_TICKS = 6  # on an axis of tokens, one more with the target


def ramp(n: int) -> list[tuple[str, str]]:
    """A colour and a marker for each of n sizes, small to large."""
    if n == 1:
        return [(RAMP[3], MARKERS[0])]
    return [(RAMP[round(i * (len(RAMP) - 1) / (n - 1))], MARKERS[i % len(MARKERS)]) for i in range(n)]


def u_curves(transfer: Mapping[str, LrTransfer]) -> list[Plot]:
    """For SP and μP: loss against learning rate at every width, fitted parabola, optimum and its 95% interval."""
    plots = []
    finite = [law.rows.filter(pl.col("loss").is_finite())["loss"].to_numpy() for law in transfer.values()]
    losses = np.concatenate(finite) if finite else np.array([])
    limits = _loss_limits(losses)
    rates = [rate for law in transfer.values() for rate in law.rows["lr"]]
    for key in ("sp", "mup"):
        if key not in transfer:
            continue
        with figure(4.7, 3.5) as drawing:
            axes = drawing.subplots()
            _draw_u(axes, transfer[key], limits)
            label_rates(axes, rates)  # of both, to be compared
            legend(drawing, "", 4)
            sizes = text.listing([f"{width:g}" for width in transfer[key].curves[transfer[key].over]])
            svg = inline(
                drawing, f"u-{key}", f"Loss against learning rate in {NAMES[key]} for widths {sizes}."
            )
        plots.append(Plot(f"{NAMES[key]}: loss against learning rate", svg))
    return plots


def _loss_limits(losses: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float]:
    if not losses.size:
        return 0.0, 1.0
    low, high = float(losses.min()), float(np.quantile(losses, 0.97))
    room = max(high - low, 0.02)
    return low - 0.12 * room, high + 0.12 * room


def _draw_u(axes: Axes, law: LrTransfer, limits: tuple[float, float]) -> None:
    over = law.over
    curves = law.curves.sort(over)
    for row, (colour, marker) in zip(curves.iter_rows(named=True), ramp(curves.height), strict=True):
        here = law.rows.filter(pl.col(over) == row[over])
        kept = here.filter(pl.col("loss").is_finite()).sort("lr")
        lost = here.filter(~pl.col("loss").is_finite().fill_null(False))
        axes.plot(kept["lr"], kept["loss"], marker, color=colour, label=f"{over} {row[over]:g}")
        if lost.height:
            axes.plot(
                lost["lr"], [limits[1]] * lost.height, "x", color=BAD, clip_on=False, markeredgewidth=1.8
            )
        if math.isfinite(row["curvature"] or math.nan) and kept.height:
            x = np.linspace(math.log(kept["lr"][0]) - 0.15, math.log(kept["lr"][-1]) + 0.15, 80)
            y = row["loss"] + row["curvature"] / 2 * (x - math.log(row["lr"])) ** 2
            axes.plot(np.exp(x), y, color=colour, linewidth=1.3)
            if row["low"] and math.isfinite(row["low"]):
                axes.plot([row["low"], row["high"]], [row["loss"]] * 2, color=colour, linewidth=5, alpha=0.3)
            axes.plot(
                row["lr"],
                row["loss"],
                "*",
                color=colour,
                markersize=12,
                markeredgecolor=CARD,
                markeredgewidth=0.8,
            )
    axes.set_ylim(*limits)
    axes.set_ylabel("final loss, nats per token")


def transfer_line(transfer: Mapping[str, LrTransfer]) -> Plot:
    """Best learning rate against width with 95% intervals, and the line of the joint fit, for SP and μP.

    A width that has no interval is not in the fit: its best rate tried is hollow.
    """
    with figure(4.7, 3.5) as drawing:
        axes = drawing.subplots()
        rates: list[float] = []
        sizes: list[float] = []
        for key, law in transfer.items():
            colour, shift = COLOURS[key], 1.015 if key == "sp" else 1 / 1.015
            found = law.curves.filter(pl.col("lr").is_finite()).sort(law.over)
            at = found[law.over].to_numpy()
            lr, low, high = (found[name].to_numpy() for name in ("lr", "low", "high"))
            known = np.isfinite(low)
            marker = "o" if key == "mup" else "s"
            errors = [(lr - low)[known], (high - lr)[known]]
            axes.errorbar(
                at[known] * shift, lr[known], errors, fmt=marker, color=colour, capsize=3, elinewidth=1.3
            )  # fmt: skip
            axes.plot(at[~known] * shift, lr[~known], marker, color=colour, fillstyle="none")
            rates += [*lr, *low[known], *high[known]]
            sizes += list(at)
            if math.isfinite(law.slope.value):
                x = np.array([at.min() / 1.1, at.max() * 1.1])
                axes.plot(x, [law.optimum(float(size)).value for size in x], color=colour, linewidth=1.3)
                label = f"{NAMES[key]}: {text.signed(law.slope.value)} ± {law.slope.se:.2f}"
            else:
                label = f"{NAMES[key]}: no slope ({law.status})"
            axes.plot([], [], f"{marker}-", color=colour, label=label)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(sorted(set(sizes))))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_major_locator(FixedLocator(octaves(rates)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text.power_of_two(value)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("width")
        axes.set_ylabel("best learning rate")
        legend(drawing, "log₂ rate per log₂ width", 2)
        words = [f"{NAMES[key]} {text.signed(law.slope.value)}" for key, law in transfer.items()]
        svg = inline(drawing, "transfer", f"Best learning rate against width; slopes {text.listing(words)}.")
    return Plot("How the best rate moves with width", svg)


def critical_batch(law: CriticalBatch, batch: int | None) -> Plot:
    """Steps and tokens to the target loss, each over its least, against batch in tokens; they cross at b_crit."""
    rows = law.rows.sort("batch")
    sizes, steps = rows["batch"].to_numpy(), rows["steps"].to_numpy()
    with figure(4.7, 3.5) as drawing:
        axes = drawing.subplots()
        if math.isfinite(law.b_crit):
            x = np.geomspace(sizes.min() / 1.4, sizes.max() * 1.4, 120)
            axes.plot(x, 1 + law.b_crit / x, color=FORECAST, label="steps ÷ the least")
            axes.plot(x, 1 + x / law.b_crit, color=SP, label="tokens ÷ the least")
            axes.plot(sizes, steps / law.s_min, "o", color=FORECAST)
            axes.plot(sizes, steps * sizes / law.e_min, "s", color=SP)
            if math.isfinite(law.low):
                axes.axvspan(law.low, law.high, color=MUTED, alpha=0.12, linewidth=0)
            axes.axvline(law.b_crit, color=MUTED, linestyle="--", linewidth=1.2)
            note = f"b_crit {text.count(law.b_crit)}"
            axes.text(law.b_crit, 0.02, f" {note}", transform=axes.get_xaxis_transform(), size=9)
            axes.set_ylabel("times the least possible")
        else:
            axes.plot(sizes, steps, "o", color=FORECAST, label="steps to the target loss")
            axes.set_ylabel("steps")
        if batch is not None:
            axes.axvline(batch, color=ACTUAL, linewidth=1.2)
            top = axes.get_xaxis_transform()
            axes.text(batch, 0.98, " recipe", color=ACTUAL, transform=top, va="top", size=9, weight="bold")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: text.whole(value)))
            axis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_locator(FixedLocator([float(size) for size in sizes]))
        axes.set_xlabel("batch, tokens")
        legend(drawing, "", 2)
        svg = inline(
            drawing,
            "critical",
            f"Steps and tokens to one loss against batch; b_crit {text.count(law.b_crit)}.",
        )
    return Plot("What a larger batch buys, and costs", svg)


def loss_curves(
    law: LossLaw, target: tuple[float, float] | None, forecast: Forecast | None, actual: float | None
) -> Plot:
    """Losses of the proxies against tokens with the law's curve for each size, and for the target (params, tokens)."""
    rows = law.rows.filter(pl.col("loss").is_finite())
    sizes = rows["params"].unique().sort().to_list()
    tokens = rows["tokens"].to_numpy()
    reach = max(float(tokens.max()), target[1] if target else 0.0) * 1.15
    x = np.geomspace(float(tokens.min()) / 1.15, reach, 100)
    with figure(4.7, 3.7) as drawing:
        axes = drawing.subplots()
        known = math.isfinite(law.E)
        for params, (colour, marker) in zip(sizes, ramp(len(sizes)), strict=True):
            here = rows.filter(pl.col("params") == params)
            axes.plot(here["tokens"], here["loss"], marker, color=colour, label=text.count(params))
            if known:
                axes.plot(x, at(law, params, x), color=colour, linewidth=1.1)
        if target and known:
            axes.plot(
                x,
                at(law, target[0], x),
                color=FORECAST,
                linewidth=1.8,
                label=f"{text.count(target[0])} target",
            )
            if law.free is not None and math.isfinite(law.free.E):
                free = at(law.free, target[0], x)
                axes.plot(x, free, color=MUTED, linewidth=1.4, linestyle="--", label="target, free fit")
        if target and actual is not None:
            axes.plot(
                [target[1]], [actual], "o", color=ACTUAL, markersize=8, markeredgecolor=CARD, label="actual"
            )
        caption = ""
        if target and forecast:
            low, high = axes.get_ylim()
            error = [[forecast.loss - forecast.low], [forecast.high - forecast.loss]]
            axes.errorbar([target[1]], [forecast.loss], error, color=FORECAST, capsize=4, elinewidth=2)
            wide = axes.get_ylim()
            bottom, top = 2 * low - high, 2 * high - low  # a longer interval would flatten the curves
            axes.set_ylim(max(wide[0], bottom), min(wide[1], top))
            if forecast.low < bottom or forecast.high > top:
                ends = f"from {text.number(forecast.low)} to {text.number(forecast.high)}"
                caption = f"The forecast's interval, {ends}, goes beyond the figure."
        log_axis(axes, [float(value) for value in rows["tokens"].unique().sort()], target)
        axes.set_xlabel("training tokens")
        axes.set_ylabel("final loss, nats per token")
        legend(drawing, "parameters", 4)
        svg = inline(
            drawing, "loss", "Final loss against training tokens for each size, with the fitted law."
        )
    return Plot("The loss law", svg, caption)


def residuals(law: LossLaw) -> Plot | None:
    """Residuals of the law as percentages of the loss, against tokens; None where nothing was fitted."""
    rows = law.rows.filter(pl.col("residual").is_finite())
    if rows.is_empty():
        return None
    sizes = rows["params"].unique().sort().to_list()
    with figure(4.7, 3.7) as drawing:
        axes = drawing.subplots()
        axes.axhline(0, color=MUTED, linewidth=1)
        for params, (colour, marker) in zip(sizes, ramp(len(sizes)), strict=True):
            here = rows.filter(pl.col("params") == params)
            percent = 100 * here["residual"] / here["fitted"]
            axes.plot(
                here["tokens"], percent, f"{marker}-", color=colour, linewidth=0.8, label=text.count(params)
            )
            odd = here["outlier"].fill_null(False)
            if odd.any():
                axes.plot(
                    here["tokens"].filter(odd),
                    percent.filter(odd),
                    "o",
                    color=BAD,
                    markersize=11,
                    fillstyle="none",
                )
        log_axis(axes, [float(value) for value in rows["tokens"].unique().sort()], None)
        reach = max(float(np.abs(100 * rows["residual"] / rows["fitted"]).max()) * 1.25, 0.1)
        axes.set_ylim(-reach, reach)
        axes.set_xlabel("training tokens")
        axes.set_ylabel("residual, % of the loss")
        legend(drawing, "parameters", 4)
        svg = inline(drawing, "residuals", "Residuals of the loss law in percent against training tokens.")
    return Plot("What the law leaves over", svg)


def at(
    law: LossLaw, params: float, tokens: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The law's loss at one size for many horizons."""
    return np.asarray(law.E + law.A / params**law.alpha + law.B / tokens**law.beta)


def legend(drawing: Figure, title: str, columns: int) -> None:
    """A legend over the axes, where it hides nothing."""
    drawing.legend(
        loc="outside upper left", ncols=columns, title=title or None, title_fontsize=9, alignment="left",
        handletextpad=0.4, columnspacing=1.1, borderpad=0,
    )  # fmt: skip


def octaves(values: Sequence[float]) -> list[float]:
    """Powers of two that cover the values."""
    if not values:
        return [1.0]
    low, high = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
    return [2.0**k for k in range(low, high + 1)]


def label_rates(axes: Axes, rates: Sequence[float]) -> None:
    """A logarithmic abscissa that covers these learning rates, with powers of two as labels."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(rates) / 1.25, max(rates) * 1.25)
    axes.xaxis.set_major_locator(FixedLocator(octaves(rates)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text.power_of_two(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("peak learning rate")


def log_axis(axes: Axes, ticks: Sequence[float], target: tuple[float, float] | None) -> None:
    """A logarithmic abscissa in tokens with the tried horizons, thinned, and the target's as labels."""
    axes.set_xscale("log")
    wanted = [*ticks, target[1]] if target else list(ticks)
    apart = max(1.22, (max(wanted) / min(wanted)) ** (1 / MOST_TICKS))
    kept: list[float] = []
    for value in sorted(wanted, reverse=True):
        if not kept or kept[-1] / value >= apart:
            kept.append(value)
    axes.xaxis.set_major_locator(FixedLocator(kept))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text.count(value)))
    axes.xaxis.set_minor_locator(NullLocator())
