"""Figures of loss curves, of budgets, and of the laws to compare the loss law with; units on every axis."""

import math
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
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
    mark_outliers,
    most,
    name_sizes,
    panels,
    short,
)

if TYPE_CHECKING:
    from froude.laws.curve import CurveLaw
    from froude.laws.isoflop import IsoFlop
    from froude.laws.kaplan_law import KaplanLaw
    from froude.laws.repeated import DataConstrainedLaw


def iso_flop(law: "IsoFlop") -> Figure:
    """Left: loss against size, a colour per budget, optima marked. Right: the best size against compute, the line."""
    figure, (left, right) = panels(2, law.status, law.reasons)
    log_scale(left)
    log_scale(right, y=True)
    rows, budgets = law.rows.filter(FINITE_LOSS), law.optima["flops"].to_list()
    palette = colors(budgets)
    for flops, size, loss, status in law.optima.select("flops", "params", "loss", "status").iter_rows():
        here = rows.filter(pl.col("flops").cast(pl.Float64) == flops).sort("params")
        left.plot(here["params"], here["loss"], "o-", ms=4, lw=1.0, color=palette[flops], label=short(flops))
        if status == "ok":
            left.plot([size], [loss], "D", ms=6, color=palette[flops], mec="white", mew=0.7)
            right.plot([flops], [size], "o", ms=6, color=palette[flops])
        elif math.isfinite(size):
            right.plot([flops], [size], "x", ms=7, color=WARN)
            right.annotate(
                status, (flops, size), fontsize=8, color=WARN, xytext=(5, 4), textcoords="offset points"
            )
    title = ""
    if math.isfinite(law.n_exponent.value):
        at = np.geomspace(min(budgets) / 1.5, max(budgets) * 1.5, 40)
        right.plot(at, [law.params(float(flops)) for flops in at], "-", color=INK, lw=1.2)
        slope = law.n_exponent
        title = f"exponent {slope.value:.3f}  [{slope.low:.3f}, {slope.high:.3f}]"
    mark_outliers(left, rows, "params", "loss")
    if budgets:
        name_sizes(figure, left, budgets, "FLOPs")
    label(left, "parameters N", "loss (nats per token)", "loss at equal compute")
    label(right, "compute C (FLOPs)", "best size N (parameters)", title)
    return figure


def curve_law(law: "CurveLaw") -> Figure:
    """Left: each run's losses after the warmup and the law's curve. Right: their learning rates."""
    figure, (left, right) = panels(2, law.status, law.reasons)
    names = law.rows["run"].unique(maintain_order=True).to_list() if law.rows.height else []
    tones = colors([float(i) for i in range(len(names))])
    for i, name in enumerate(names):
        rows = law.rows.filter((pl.col("run") == name) & FINITE_LOSS).sort("step")
        if rows.height > DRAWN_ROWS:
            rows = rows.gather_every(rows.height // DRAWN_ROWS + 1)
        tone, text = tones[float(i)], str(name) if len(names) <= LEGEND_ENTRIES else None
        late = rows.filter(pl.col("fitted").is_not_null()) if law.rows["fitted"].count() else rows
        left.plot(late["step"], late["loss"], ".", ms=2.5, color=tone, alpha=0.5, ls="none")
        left.plot(late["step"], late["fitted"], "-", lw=1.4, color=tone, label=text)
        right.plot(rows["step"], rows["lr"], "-", lw=1.2, color=tone, label=text)
    if 0 < len(names) <= LEGEND_ENTRIES:
        left.legend(frameon=False, fontsize=8, title="law (dots: rows)", title_fontsize=8)
        right.legend(frameon=False, fontsize=8)
    left.set_xscale("log")
    formula = {
        "annealing": "L0 + A·S1^-alpha - C·S2",
        "multi_power": "L0 + A·S1^-alpha - B·Σ falls·(1 - (C·lr^-gamma·S + 1)^-beta)",
    }
    label(left, "step", "loss (nats per token)", formula[law.form])
    label(right, "step", "learning rate")
    return figure


def kaplan(law: "KaplanLaw") -> Figure:
    """Left: loss against tokens, a colour and a curve per size. Right: residuals in percent of the loss."""
    figure, (left, right) = panels(2, law.status, law.reasons)
    log_scale(left)
    rows = law.rows.filter(FINITE_LOSS)
    if rows.height > DRAWN_ROWS:
        rows = rows.sample(DRAWN_ROWS, seed=0)
    sizes = rows["params"].cast(pl.Float64).unique().sort().to_list()
    palette = colors(sizes)
    known = math.isfinite(law.alpha_N.value)
    for size in sizes:
        here = rows.filter(pl.col("params") == size)
        left.plot(here["tokens"], here["loss"], "o", ms=4, ls="none", color=palette[size], label=short(size))
    if known and rows.height:
        tokens = np.geomspace(least(rows, "tokens") / 1.5, most(rows, "tokens") * 2, 80)
        for size in sizes[:: max(len(sizes) // 12, 1)]:
            curve = [law.predict(params=size, tokens=float(t)).value for t in tokens]
            left.plot(tokens, curve, "-", lw=1.1, color=palette[size])
        done = rows.filter(pl.col("fitted").is_not_null())
        percent = 100 * (done["residual"] / done["fitted"])
        right.scatter(done["fitted"], percent, s=12, color=ACCENT, alpha=0.7, linewidths=0)
        mark_outliers(right, done.with_columns(percent.alias("percent")), "fitted", "percent")
        right.axhline(0, color=INK, lw=0.8)
    if sizes:
        name_sizes(figure, left, sizes, "parameters")
    text = f"alpha_N {law.alpha_N.value:.3f}, alpha_D {law.alpha_D.value:.3f}"
    label(left, "training tokens D", "loss (nats per token)", text if known else "")
    label(right, "fitted loss (nats per token)", "residual (% of the fitted loss)")
    return figure


def data_constrained(law: "DataConstrainedLaw") -> Figure:
    """Left: loss against epochs with what the law gives. Right: what tokens seen again are worth in new ones."""
    figure, (left, right) = panels(2, law.status, law.reasons)
    rows = law.rows.filter(FINITE_LOSS)
    epochs = pl.max_horizontal(pl.col("tokens") / pl.col("unique_tokens"), pl.lit(1.0)).alias("epochs")
    rows = rows.with_columns(epochs)
    left.set_xscale("log")
    left.plot(rows["epochs"], rows["loss"], "o", ms=4.5, color=ACCENT, ls="none", label="runs")
    if math.isfinite(law.r_data.value):
        left.plot(rows["epochs"], rows["fitted"], "x", ms=5, color=INK, ls="none", label="law")
        mark_outliers(left, rows, "epochs", "loss")
        seen = np.linspace(1, max(most(rows, "epochs"), 4.0), 80)
        r = law.r_data.value
        right.plot(seen, 1 - r * np.expm1(-(seen - 1) / r), "-", color=INK, lw=1.3, label="worth")
        right.plot(seen, seen, "--", color=MUTED, lw=0.9, label="as if all were new")
        right.axhline(1 + r, color=WARN, lw=0.9, label=f"limit: {1 + r:.3g}")
        right.legend(frameon=False, fontsize=8)
    left.legend(frameon=False, fontsize=8)
    e = law.r_data
    title = f"R* = {e.value:.3g}  [{e.low:.3g}, {e.high:.3g}]" if math.isfinite(e.value) else ""
    label(left, "epochs (tokens / unique tokens)", "loss (nats per token)")
    label(right, "epochs", "effective tokens / unique tokens", title)
    return figure
