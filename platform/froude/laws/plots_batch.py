"""Figures of the laws of batch and noise, with units on every axis."""

import math
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from froude.laws.figures import (
    ACCENT,
    DRAWN_ROWS,
    INK,
    MUTED,
    WARN,
    label,
    log_scale,
    mark_outliers,
    panels,
    short,
)

if TYPE_CHECKING:
    from froude.laws.batch_lr import BatchLrLaw
    from froude.laws.noise import NoiseScale


def batch_lr_law(law: "BatchLrLaw") -> Figure:
    """The best learning rate against batch, the curve, the rate that it approaches and the noise scale."""
    figure, (axis,) = panels(1, law.status, law.reasons)
    log_scale(axis)
    fitted = math.isfinite(law.lr_max.value)
    done = law.rows.filter(pl.col("fitted").is_not_null()) if fitted else law.rows
    axis.plot(done["batch"], done["lr"], "o", color=ACCENT, ms=5, ls="none", label="best rates")
    title = ""
    if fitted and done.height:
        batch = done["batch"].cast(pl.Float64).to_numpy()
        x = np.geomspace(batch.min() / 1.5, batch.max() * 1.5, 150)
        axis.plot(x, [law.lr(float(b)) for b in x], "-", color=INK, lw=1.3, label="lr_max / (1 + B_noise/B)")
        axis.axhline(law.lr_max.value, color=MUTED, ls="--", lw=0.9, label=f"lr_max = {law.lr_max.value:.3g}")
        scale, limits = law.noise_scale, axis.get_xlim()
        axis.axvline(scale.value, color=WARN, lw=1.1, label=f"B_noise = {short(scale.value)}")
        axis.axvspan(max(scale.low, limits[0]), min(scale.high, limits[1]), color=WARN, alpha=0.12, lw=0)
        axis.set_xlim(limits)
        mark_outliers(axis, done, "batch", "lr")
        title = f"noise scale {short(scale.value)}  [{short(scale.low)}, {short(scale.high)}]"
    label(axis, "batch (tokens)", "best peak learning rate", title)
    axis.legend(frameon=False, fontsize=8)
    return figure


def noise_scale(law: "NoiseScale") -> Figure:
    """Left: the noise scale as training goes, and the estimate. Right: the squared norm of the true gradient."""
    figure, (left, right) = panels(2, law.status, law.reasons)
    trend = law.trend
    if trend.height > DRAWN_ROWS:
        trend = trend.gather_every(trend.height // DRAWN_ROWS + 1)
    for axis, name in ((left, "noise_scale"), (right, "grad_sq")):
        if trend[name].drop_nulls().len() > 1:  # there is none over few steps
            axis.plot(trend["step"], trend[name], "-", color=ACCENT, lw=1.2, label="moving average")
    left.set_xlim(right.get_xlim())
    for axis, estimate in ((left, law.noise_scale), (right, law.grad_sq)):
        if math.isfinite(estimate.value):
            axis.axhline(estimate.value, color=WARN, lw=1.1, label="estimate")
        if math.isfinite(estimate.low) and math.isfinite(estimate.high):
            axis.axhspan(estimate.low, estimate.high, color=WARN, alpha=0.12, lw=0, label="95% interval")
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize=8)
    scale = law.noise_scale
    title = f"noise scale {short(scale.value)}  [{short(scale.low)}, {short(scale.high)}]"
    label(left, "step", "noise scale (tokens)", title if math.isfinite(scale.value) else "")
    label(right, "step", "|G|² (squared norm of the true gradient)")
    return figure
