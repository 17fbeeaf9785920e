"""Figure of a coordinate check: how far a few updates move each block, over width or depth."""

from collections.abc import Mapping

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from froude.laws.figures import MUTED, WARN, label, log_scale, panels, short
from froude.parametrizations import PARAMETRIZATIONS


def draw(rows: pl.DataFrame, over: str, verdict: str = "passed", *, reasons: tuple[str, ...] = ()) -> Figure:
    """A panel a parametrization and t: mean|x_t - x_0| of each block and the logits against `over`, all seeds.

    `rows` have the columns `parametrization, <over>, seed, name, t, delta`; lines join the means over seeds.
    """
    moved = rows.filter((pl.col("delta") > 0) & pl.col("delta").is_finite())
    shown = moved.select("parametrization", "t").unique(maintain_order=True).rows()
    figure, axes = panels(max(1, len(shown)), "ok" if verdict == "passed" else verdict, reasons)
    names = [n for n in rows["name"].unique(maintain_order=True) if n != "logits"]
    colors: Mapping[str, tuple[float, ...] | str] = {
        name: (0.04, 0.43, 0.60, 0.35 + 0.65 * (i + 1) / len(names)) for i, name in enumerate(names)
    } | {"logits": WARN}
    for axis, (parametrization, t) in zip(axes, shown, strict=False):
        here = moved.filter((pl.col("parametrization") == parametrization) & (pl.col("t") == t))
        log_scale(axis, y=True)
        for (name,), group in here.group_by("name", maintain_order=True):
            means = group.group_by(over).agg(pl.col("delta").mean()).sort(over)
            axis.plot(group[over], group["delta"], ".", color=MUTED, ms=3)
            axis.plot(
                means[over], means["delta"], "o-", color=colors[str(name)], ms=4, lw=1.3, label=str(name)
            )
        axis.set_xscale("log", base=2)
        axis.set_xticks(np.unique(here[over].to_numpy()))
        axis.xaxis.set_major_formatter(lambda value, _: short(value))
        rules = PARAMETRIZATIONS[parametrization]
        promise = "is to be level" if rules.transfers else "the control, is to rise"
        label(axis, over, "mean |x_t - x_0|", f"{rules.label}: {promise}, t = {t}")
    axes[-1].legend(frameon=False, fontsize=8)
    return figure
