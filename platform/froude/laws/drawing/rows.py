"""Series of the rows that a law was fitted to: losses by size, residuals, outliers."""

from collections.abc import Callable

import numpy as np
import polars as pl
from numpy.typing import NDArray

from froude.laws.drawing.panel import Axis, Line, Mark, Panel, Points, Series

Array = NDArray[np.float64]

FINITE_LOSS = pl.col("loss").cast(pl.Float64).is_finite()
#: Rows that a panel over sizes and tokens has a place for: those that a law ignores may have none.
SIZED = FINITE_LOSS & (pl.col("params") > 0) & (pl.col("tokens") > 0)
DRAWN_ROWS = 5_000  # a scatter of more is a blot and a slow file
DRAWN_SIZES = 40  # of more sizes the rows are one series
# Sizes that differ by a few percent are one colour: draw at most as many curves as can be told apart.
DRAWN_CURVES = 12


def thinned(rows: pl.DataFrame) -> pl.DataFrame:
    """At most DRAWN_ROWS of the rows, drawn at random, always the same."""
    return rows.sample(DRAWN_ROWS, seed=0) if rows.height > DRAWN_ROWS else rows


def least(rows: pl.DataFrame, name: str) -> float:
    """Return the smallest value of a column."""
    return float(rows[name].cast(pl.Float64).to_numpy().min())


def most(rows: pl.DataFrame, name: str) -> float:
    """Return the largest value of a column."""
    return float(rows[name].cast(pl.Float64).to_numpy().max())


def outliers(rows: pl.DataFrame, x: str, y: str) -> list[Series]:
    """The rows marked as outliers, if there are any."""
    marked = rows.filter(pl.col("outlier").fill_null(False))
    return [Points(marked[x], marked[y], style="outlier", name="outlier")] if marked.height else []


def sizes_of(rows: pl.DataFrame, name: str = "params") -> tuple[float, ...]:
    """The distinct values of a column, ascending."""
    return tuple(rows[name].cast(pl.Float64).unique().sort().to_list())


def losses(
    rows: pl.DataFrame,
    curve: Callable[[float, Array], Array] | None,
    tokens: Array,
    *,
    style: str = "law",
    every: bool = False,
) -> list[Series]:
    """Losses against tokens, a colour a size, and the law's `curve` of a size over `tokens`.

    Many sizes have one series and a few curves, unless `every` one is asked for.
    """
    sizes = few = sizes_of(rows)
    if len(sizes) > DRAWN_CURVES and not every:
        few = tuple(sizes[i] for i in np.linspace(0, len(sizes) - 1, DRAWN_CURVES).astype(int))
    together = len(sizes) > DRAWN_SIZES and not every
    series: list[Series] = []
    if together:
        series.append(Points(rows["tokens"], rows["loss"], size=rows["params"].cast(pl.Float64)))
    for size in few if together else sizes:
        if not together:
            here = rows.filter(pl.col("params") == size)
            series.append(Points(here["tokens"], here["loss"], size=size))
        if curve is not None and size in few:
            series.append(Line(tokens, curve(size, tokens), style=style, size=size))
    return series


def around(rows: pl.DataFrame) -> Array:
    """Tokens from a little below to a little above those of the rows."""
    if rows.is_empty():
        return np.empty(0)
    return np.geomspace(least(rows, "tokens") / 1.5, most(rows, "tokens") * 2, 120)


def loss_panel(rows: pl.DataFrame, series: list[Series], title: str) -> Panel:
    """The panel of `losses`: loss against tokens."""
    return Panel(
        x=Axis("training tokens D", base=10),
        y=Axis("loss (nats per token)"),
        series=(*series, *outliers(rows, "tokens", "loss")),
        title=title,
        sizes=sizes_of(rows),
        legend="parameters",
    )


def residual_panel(rows: pl.DataFrame) -> Panel:
    """Residuals in percent of the fitted loss, against it; empty where nothing was fitted."""
    done = with_percent(rows.filter(pl.col("fitted").is_not_null()))
    series: list[Series] = []
    if done.height:
        series.append(Points(done["fitted"], done["percent"], style="rest"))
        series += [*outliers(done, "fitted", "percent"), Mark(0.0, axis="y", style="zero")]
    return Panel(Axis("fitted loss (nats per token)"), Axis("residual (% of the fitted loss)"), tuple(series))


def with_percent(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with their residuals as percentages of the fitted loss, `percent`."""
    return rows.with_columns((100 * (pl.col("residual") / pl.col("fitted"))).alias("percent"))
