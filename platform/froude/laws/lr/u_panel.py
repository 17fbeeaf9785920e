"""The U-curves of several sizes as one panel."""

import math

import numpy as np
import polars as pl

from froude.laws.drawing import rows as drawn
from froude.laws.drawing.panel import Axis, Line, Panel, Points, Series


def u_panel(rows: pl.DataFrame, curves: pl.DataFrame, over: str) -> Panel:
    """Losses against learning rate at every size of `over`, fitted parabola, optimum and its 95% interval.

    Crosses at the upper edge are runs without a finite loss. `rows` have `lr, loss, <over>`, `curves` a row per size.
    """
    sizes = drawn.sizes_of(curves, over)
    series: list[Series] = []
    for row in curves.sort(over).iter_rows(named=True):
        size = float(row[over])
        here = rows.filter(pl.col(over) == row[over])
        kept = here.filter(drawn.FINITE_LOSS).sort("lr")
        lost = here.filter(~drawn.FINITE_LOSS.fill_null(False))
        series.append(Points(kept["lr"], kept["loss"], size=size))
        if lost.height:
            series.append(Points(lost["lr"], None, style="diverged"))
        if math.isfinite(row["curvature"]) and kept.height:
            x = np.linspace(math.log(kept["lr"][0]) - 0.15, math.log(kept["lr"][-1]) + 0.15, 80)
            y = row["loss"] + row["curvature"] / 2 * (x - math.log(row["lr"])) ** 2
            series.append(Line(np.exp(x), y, size=size))
            if math.isfinite(row["low"]):
                ends = [row["low"], row["high"]]
                series.append(Line(ends, [row["loss"]] * 2, style="interval", size=size))
            series.append(Points([row["lr"]], [row["loss"]], style="optimum", size=size))
    rates = rows["lr"].cast(pl.Float64).to_numpy()
    rates = rates[np.isfinite(rates) & (rates > 0)]
    losses = rows.filter(drawn.FINITE_LOSS)["loss"].cast(pl.Float64).to_numpy()
    around = (float(rates.min()) / 1.25, float(rates.max()) * 1.25) if rates.size else None
    heights = with_room(float(losses.min()), float(losses.max())) if losses.size else None
    return Panel(
        x=Axis("peak learning rate", base=2, limits=around),
        y=Axis("loss (nats per token)", limits=heights),
        series=tuple(series),
        title="loss by learning rate",
        sizes=sizes,
        legend=over,
    )


def with_room(low: float, high: float) -> tuple[float, float]:
    """Limits of a panel whose losses lie between these."""
    room = 0.12 * max(high - low, 0.02)
    return low - room, high + room
