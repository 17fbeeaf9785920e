"""Figures of fitted laws: the rows used, the curve, its interval and the optimum, with units on every axis."""

import math
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from matplotlib import colormaps
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from froude.laws.figures import (
    ACCENT,
    DRAWN_ROWS,
    FINITE_LOSS,
    INK,
    LEGEND_ENTRIES,
    MUTED,
    WARN,
    colors,
    label,
    least,
    log_scale,
    mark_diverged,
    mark_outliers,
    most,
    name_sizes,
    panels,
    short,
)

if TYPE_CHECKING:
    from froude.laws.batch import CriticalBatch
    from froude.laws.loss import LossLaw
    from froude.laws.lr import LrCurve
    from froude.laws.optimum import PowerLaw
    from froude.laws.transfer import LrTransfer


def loss_law(law: "LossLaw") -> Figure:
    """Left: loss against tokens, a colour and a curve per size. Right: residuals in percent of the loss."""
    figure, (left, right) = panels(2, law.status, law.reasons)
    rows = law.rows.filter(FINITE_LOSS & (pl.col("params") > 0) & (pl.col("tokens") > 0))
    if rows.height > DRAWN_ROWS:
        rows = rows.sample(DRAWN_ROWS, seed=0)
    sizes = rows["params"].cast(pl.Float64).unique().sort().to_list()
    # Sizes that differ by a few percent are one colour class in a figure: draw at most as many curves as
    # can be told apart.
    curves = sizes if len(sizes) <= 12 else [sizes[i] for i in np.linspace(0, len(sizes) - 1, 12).astype(int)]
    norm = LogNorm(sizes[0], max(sizes[-1], sizes[0] * 1.0001)) if sizes else None
    few = len(sizes) <= LEGEND_ENTRIES
    palette = (
        colors(sizes) if few else {s: tuple(colormaps["viridis"](norm(s))) for s in sizes} if norm else {}
    )
    log_scale(left)
    for size in sizes if few else []:
        here = rows.filter(pl.col("params") == size)
        left.plot(
            here["tokens"], here["loss"], "o", ms=4.5, ls="none", color=palette[size], label=short(size)
        )
    if not few:
        left.scatter(
            rows["tokens"], rows["loss"], s=9, c=rows["params"].to_numpy(), cmap="viridis", norm=norm
        )
    if math.isfinite(law.E) and rows.height:
        tokens = np.geomspace(least(rows, "tokens") / 1.5, most(rows, "tokens") * 2, 120)
        for size in curves:
            term = law.A * math.exp(-law.alpha * math.log(size)) if math.isfinite(law.A) else math.nan
            loss = law.E + term + np.exp(math.log(law.B) - law.beta * np.log(tokens))
            left.plot(tokens, loss, "-", lw=1.1, color=palette[size], alpha=0.9)
        left.axhline(law.E, color=MUTED, ls="--", lw=0.9)
        left.annotate(f"E = {law.E:.3f}", (tokens[0], law.E), color=MUTED, fontsize=8, va="bottom")
        done = rows.filter(pl.col("fitted").is_not_null())
        percent = 100 * (done["residual"] / done["fitted"])
        right.scatter(done["fitted"], percent, s=12, color=ACCENT, alpha=0.7, linewidths=0)
        mark_outliers(right, done.with_columns(percent.alias("percent")), "fitted", "percent")
        right.axhline(0, color=INK, lw=0.8)
    mark_outliers(left, rows, "tokens", "loss")
    if sizes:
        name_sizes(figure, left, sizes, "parameters")
    formula = f"L = {law.E:.3g} + {law.A:.3g}/N^{law.alpha:.3g} + {law.B:.3g}/D^{law.beta:.3g}"
    label(left, "training tokens D", "loss (nats per token)", formula if math.isfinite(law.E) else "")
    label(right, "fitted loss (nats per token)", "residual (% of the fitted loss)")
    return figure


def lr_curve(curve: "LrCurve") -> Figure:
    """Losses against the learning rate, the curve, the optimum with its 95% interval; crosses are diverged runs."""
    figure, (axis,) = panels(1, curve.status, curve.reasons)
    log_scale(axis)
    rows = curve.rows
    done = rows.filter(pl.col("fitted").is_not_null()) if curve._curve else rows.filter(FINITE_LOSS)
    axis.plot(done["lr"], done["loss"], "o", color=ACCENT, ms=5, ls="none", label="runs")
    if curve._curve is not None:
        x = np.linspace(curve._curve.low, curve._curve.high, 200)
        axis.plot(np.exp(x), curve._curve(x), "-", color=INK, lw=1.3, label=f"degree {curve.degree}")
        mark_diverged(axis, curve._sample, "lr")
        mark_outliers(axis, rows, "lr", "loss")
    title = f"best lr {curve.lr:.3g}"
    if math.isfinite(curve.low):
        axis.axvline(curve.lr, color=WARN, lw=1.1)
        left, right = axis.get_xlim()
        axis.axvspan(
            max(curve.low, left), min(curve.high, right), color=WARN, alpha=0.12, lw=0, label="95% interval"
        )
        axis.set_xlim(left, right)
        title += f"  [{curve.low:.3g}, {curve.high:.3g}]"
    label(axis, "peak learning rate", "loss (nats per token)", title)
    axis.legend(frameon=False, fontsize=8)
    return figure


def lr_transfer(transfer: "LrTransfer") -> Figure:
    """Left: the U-curve of each width. Right: the optima with 95% intervals, and the line through them."""
    figure, (left, right) = panels(2, transfer.status, transfer.reasons)
    rows, curves, over = transfer.rows, transfer.curves, transfer.over
    sizes = curves[over].to_list()
    palette = colors(sizes)
    log_scale(left, base=2)
    log_scale(right, y=True, base=2)
    for size, lr, low, high, floor, bend, _, _, status, _ in curves.iter_rows():
        runs = rows.filter((pl.col(over) == size) & FINITE_LOSS)
        left.plot(runs["lr"], runs["loss"], "o", ms=4.5, ls="none", color=palette[size], label=short(size))
        if math.isfinite(bend) and runs.height:
            x = np.linspace(math.log(least(runs, "lr")), math.log(most(runs, "lr")), 100)
            shape = floor + 0.5 * bend * (x - math.log(lr)) ** 2
            seen = shape <= most(runs, "loss") + 0.1 * max(most(runs, "loss") - floor, 1e-9)
            left.plot(np.exp(x[seen]), shape[seen], "-", lw=1.2, color=palette[size])
            left.plot([lr], [floor], "D", ms=5, color=palette[size], mec="white", mew=0.7)
        if math.isfinite(low):
            right.errorbar(
                [size], [lr], yerr=[[lr - low], [high - lr]], fmt="o", color=palette[size], capsize=3, ms=6
            )
        elif math.isfinite(lr):
            right.plot([size], [lr], "x", color=WARN, ms=7)
            right.annotate(
                str(status), (size, lr), fontsize=8, color=WARN, xytext=(5, 4), textcoords="offset points"
            )
    title = ""
    if transfer._line is not None:
        at = np.geomspace(min(sizes) / 1.3, max(sizes) * 1.3, 40)
        line = [transfer.optimum(float(size)) for size in at]
        right.plot(at, [e.value for e in line], "-", color=INK, lw=1.2)
        right.fill_between(at, [e.low for e in line], [e.high for e in line], color=INK, alpha=0.1, lw=0)
        slope = transfer.slope
        title = f"slope {slope.value:+.2f}  [{slope.low:+.2f}, {slope.high:+.2f}]"
    if sizes:
        name_sizes(figure, left, sizes, over)
        right.set_xticks(sizes if len(sizes) <= 8 else sizes[:: len(sizes) // 8 + 1], minor=False)
        right.xaxis.set_major_formatter(lambda value, _: short(value))
    label(left, "peak learning rate", "loss (nats per token)", "loss by learning rate")
    label(right, over, "best learning rate (95% interval)", title)
    return figure


def critical_batch(law: "CriticalBatch") -> Figure:
    """Left: steps to the target loss against batch, with both asymptotes. Right: the data that they take."""
    figure, (left, right) = panels(2, law.status, law.reasons)
    done = law.rows.filter(pl.col("fitted").is_not_null()) if math.isfinite(law.s_min) else law.rows
    batch, steps = (done[name].cast(pl.Float64).to_numpy() for name in ("batch", "steps"))
    for axis, values in ((left, steps), (right, steps * batch)):
        log_scale(axis, y=True)
        axis.plot(batch, values, "o", color=ACCENT, ms=5, ls="none", label="runs")
    title = ""
    if math.isfinite(law.s_min) and batch.size:
        x = np.geomspace(batch.min() / 1.5, batch.max() * 1.5, 150)
        left.plot(x, law.s_min + law.e_min / x, "-", color=INK, lw=1.3, label="S = S_min (1 + B_c/B)")
        right.plot(x, law.s_min * x + law.e_min, "-", color=INK, lw=1.3, label="E = E_min (1 + B/B_c)")
        left.axhline(law.s_min, color=MUTED, ls="--", lw=0.9, label=f"S_min = {short(law.s_min)}")
        right.axhline(law.e_min, color=MUTED, ls="--", lw=0.9, label=f"E_min = {short(law.e_min)}")
        for axis in (left, right):
            limits = axis.get_xlim()
            axis.axvline(law.b_crit, color=WARN, lw=1.1, label=f"B_c = {short(law.b_crit)}")
            axis.axvspan(max(law.low, limits[0]), min(law.high, limits[1]), color=WARN, alpha=0.12, lw=0)
            axis.set_xlim(limits)
        title = f"critical batch {short(law.b_crit)}  [{short(law.low)}, {short(law.high)}]"
    label(left, "batch (tokens)", "steps to the target loss", title)
    label(right, "batch (tokens)", "data to the target loss (batch × steps, tokens)")
    for axis in (left, right):
        axis.legend(frameon=False, fontsize=8)
    return figure


def power_law(law: "PowerLaw") -> Figure:
    """One panel per column: the target, moved along the law to the other columns' geometric means, and the line."""
    figure, axes = panels(len(law.over), law.status, law.reasons)
    rows = law.rows.filter(pl.col("fitted").is_not_null()) if law._fit else law.rows
    if rows.height > DRAWN_ROWS:
        rows = rows.sample(DRAWN_ROWS, seed=0)
    logs = {name: np.log(rows[name].cast(pl.Float64).to_numpy()) for name in law.over} if law._fit else {}
    means = {name: math.exp(float(values.mean())) for name, values in logs.items()}
    for axis, name in zip(axes, law.over, strict=True):
        log_scale(axis, y=True)
        title = ""
        if law._fit:
            moved = rows[law.target].cast(pl.Float64).to_numpy().copy()
            for other in law.over:
                if other != name:
                    moved *= np.exp(law.exponents[other].value * (math.log(means[other]) - logs[other]))
            axis.plot(np.exp(logs[name]), moved, "o", color=ACCENT, ms=5, ls="none")
            at = np.exp(np.linspace(logs[name].min() - 0.2, logs[name].max() + 0.2, 60))
            line = [law.predict(**{**means, name: float(x)}) for x in at]
            axis.plot(at, [e.value for e in line], "-", color=INK, lw=1.3)
            axis.fill_between(at, [e.low for e in line], [e.high for e in line], color=INK, alpha=0.1, lw=0)
            e = law.exponents[name]
            title = f"exponent {e.value:.3f}  [{e.low:.3f}, {e.high:.3f}]"
        held = ", ".join(f"{other} = {short(means[other])}" for other in means if other != name)
        label(axis, name, law.target + (f" (at {held})" if held else ""), title)
    return figure
