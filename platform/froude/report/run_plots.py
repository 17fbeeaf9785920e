"""Figures of the target run: its loss against the sealed forecast, and its world size over time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from froude.attempts import Elastic
from froude.promote.forecast import BandPoint, Forecast
from froude.report import text
from froude.report.svg import ACTUAL, CARD, FORECAST, INK, MUTED, SP, Plot, figure, inline

MOVING = 25  # steps of the running mean over the batch loss
POINTS = 600  # of a curve: more cannot be told apart at the report's width
SHOWN_FROM = 0.15  # share of the run before which the loss is so high that it would flatten the rest
HEADROOM = (
    1.0  # of a forecast beyond the curve that is drawn, in heights of the curve: more would flatten the curve
)
LEAST = 0.02  # height of a curve, as a share of the loss: a run that has just begun has hardly any


def forecast_curve(
    forecast: Forecast,
    horizon: int,
    steps: pl.DataFrame,
    evals: pl.DataFrame,
    actual: float | None,
    restarts: Sequence[int],
) -> Plot:
    """Loss against tokens seen: batch loss (running mean), evaluations, the forecast's interval at the horizon.

    Frames have `tokens` and `loss` in nats per token; `restarts` are the tokens at which a later attempt resumed.
    """
    svgs = "".join(
        f'<div class="{name}">{_forecast_svg(name, size, forecast, horizon, steps, evals, actual, restarts)}</div>'
        for name, size in (("wide", (9.6, 4.2)), ("narrow", (4.4, 4.2)))
    )
    words = _band_words(forecast, _limits(forecast, horizon, steps, evals, actual))
    caption = (
        f"{words} Grey: loss of the training batches, mean over {MOVING} steps. Points: validation loss. "
        "Dotted: what else could have been forecast, the largest proxy's loss (naive) and the loss under published "
        "exponents."
    )
    if restarts:
        caption += " Ticks on the axis: restarts."
    return Plot("Loss over the run", svgs, caption)


def _forecast_svg(
    name: str,
    size: tuple[float, float],
    forecast: Forecast,
    horizon: int,
    steps: pl.DataFrame,
    evals: pl.DataFrame,
    actual: float | None,
    restarts: Sequence[int],
) -> str:
    with figure(*size) as drawing:
        axes = drawing.subplots()
        end = forecast.low, forecast.high
        bottom, top = _limits(forecast, horizon, steps, evals, actual)
        if steps.height:
            tokens, loss = running_mean(steps["tokens"].to_numpy(), steps["loss"].to_numpy())
            axes.plot(tokens, loss, color=MUTED, linewidth=1.2, alpha=0.75, zorder=2)
        if forecast.band:
            seen = [point.tokens for point in forecast.band]
            lows, highs = [p.low for p in forecast.band], [p.high for p in forecast.band]
            if _shaded(forecast, (bottom, top)):
                axes.fill_between(seen, lows, highs, color=FORECAST, alpha=0.16, linewidth=0, zorder=0)
            axes.plot(
                seen, [p.loss for p in forecast.band], color=FORECAST, linewidth=1, linestyle="--", zorder=3
            )
        elif _shaded(forecast, (bottom, top)):
            axes.axhspan(*end, color=FORECAST, alpha=0.12, linewidth=0, zorder=0)
        axes.axhline(forecast.loss, color=FORECAST, linewidth=1, zorder=1)
        others = {"naive": forecast.naive, "published": forecast.comparator}
        others = {words: loss for words, loss in others.items() if math.isfinite(loss)}
        for other in others.values():
            axes.axhline(other, color=SP, linewidth=1, linestyle=":", zorder=1)
        axes.errorbar(
            [horizon], [forecast.loss], [[forecast.loss - end[0]], [end[1] - forecast.loss]],
            color=FORECAST, capsize=5, elinewidth=2, capthick=2, zorder=4,
        )  # fmt: skip
        if evals.height > 1:
            axes.plot(evals["tokens"], evals["loss"], "o", color=ACTUAL, markersize=4, zorder=5)
        if actual is not None:
            axes.plot([horizon], [actual], "o", color=ACTUAL, markersize=9, markeredgecolor=CARD, zorder=6)
        room = top - bottom
        axes.set_ylim(bottom - 0.08 * room, top + 0.02 * room)
        axes.set_xlim(0, horizon * 1.03)
        for at in restarts:
            axes.axvline(at, ymax=0.06, color=INK, linewidth=1.5)
        labels = [(forecast.loss, "forecast", FORECAST)] + [(v, words, SP) for words, v in others.items()]
        labels += [(actual, "actual", ACTUAL)] if actual is not None else []
        apart = 0.055 * 1.1 * room * 4.2 / size[1]
        for y, (value, words, colour) in zip(
            spread([label[0] for label in labels], apart), labels, strict=True
        ):
            axes.annotate(
                f"{words} {text.loss(value)}", (1, y), xycoords=("axes fraction", "data"), xytext=(5, 0),
                textcoords="offset points", ha="left", va="center", color=colour, weight="bold", size=9,
            )  # fmt: skip
        label_tokens(axes)
        axes.set_ylabel("loss, nats per token")
        alt = f"Loss of the run against tokens seen; forecast {text.loss(forecast.loss)}, actual {text.loss(actual)}."
        return inline(drawing, f"forecast-{name}", alt)


def _limits(
    forecast: Forecast, horizon: int, steps: pl.DataFrame, evals: pl.DataFrame, actual: float | None
) -> tuple[float, float]:
    """Least and largest loss that are drawn: the curve's, and the forecast's as far as it does not hide the curve."""
    ends: Sequence[BandPoint | Forecast] = (forecast, *forecast.band[-1:])
    low, high = min(end.low for end in ends), max(end.high for end in ends)
    high += 0.35 * (forecast.high - forecast.low)
    others = [loss for loss in (forecast.naive, forecast.comparator) if math.isfinite(loss)]
    needed = [forecast.loss, *others, *([actual] if actual is not None else [])]
    shown: list[float] = []
    if evals.height:
        late = evals.filter(pl.col("tokens") >= SHOWN_FROM * horizon, pl.col("loss").is_finite())
        shown += late["loss"].to_list()
    if steps.height:
        tokens, loss = running_mean(steps["tokens"].to_numpy(), steps["loss"].to_numpy())
        later = loss[tokens >= SHOWN_FROM * horizon]
        shown += [float(loss.min())] if loss.size else []
        shown += [float(np.quantile(later, 0.995))] if later.size else []
    if not shown:
        return max(min(low, *needed), 0.0), max(high, *needed)
    needed += shown
    reach = HEADROOM * max(max(needed) - min(needed), LEAST * forecast.loss)
    bottom, top = max(min(needed) - reach, 0.0), max(needed) + reach
    return min(max(low, bottom), *needed), max(min(high, top), *needed)


def _shaded(forecast: Forecast, limits: tuple[float, float]) -> bool:
    """Whether shading the band, or the interval, would show anything but a fully shaded figure."""
    low, high = limits
    points: Sequence[BandPoint | Forecast] = forecast.band or (forecast,)
    return any(point.low > low or point.high < high for point in points)


def _band_words(forecast: Forecast, limits: tuple[float, float]) -> str:
    """What the shaded area is, and where it ends if that is not drawn."""
    name, level, end = "interval", forecast.level, (forecast.low, forecast.high)
    if forecast.band:
        name, level = "band of the training loss", forecast.band_level
        end = forecast.band[-1].low, forecast.band[-1].high
    what = f"the {100 * level:.0f}% {name} that was sealed before step 0"
    reach = f"from {text.number(end[0])} to {text.number(end[1])} nats per token at the end"
    if not _shaded(forecast, limits):
        return f"Not shaded: {what}, which is wider than the figure ({reach})."
    beyond = end[0] < limits[0] or end[1] > limits[1]
    return f"Shaded: {what}" + (f"; it goes beyond the figure ({reach})." if beyond else ".")


def spread(values: Sequence[float], apart: float) -> list[float]:
    """Positions near the values, in the same order, at least `apart` from each other."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    placed = [values[i] for i in order]
    for _ in range(50):
        for i in range(len(placed) - 1):
            if (gap := placed[i + 1] - placed[i]) < apart:
                placed[i] -= (apart - gap) / 2
                placed[i + 1] += (apart - gap) / 2
    found = list(values)
    for position, i in zip(placed, order, strict=True):
        found[i] = position
    return found


def world_size(elastic: Elastic) -> Plot:
    """World size against seconds since the run's first record, with the pause before each attempt shaded."""
    with figure(9.6, 2.5) as wide, figure(4.4, 2.8) as narrow:
        drawn = [(wide, "wide"), (narrow, "narrow")]
        svgs = []
        for drawing, name in drawn:
            _draw_world(drawing.subplots(), elastic)
            sizes = " then ".join(str(size) for size in elastic.world_sizes)
            svg = inline(drawing, f"world-{name}", f"World size over time: {sizes} workers.")
            svgs.append(f'<div class="{name}">{svg}</div>')
    caption = (
        "Each bar is an attempt from its first to its last kept step, as high as its number of workers. "
    )
    caption += "The number between two bars: seconds from the last step, kept or lost, to the first new one."
    return Plot("World size over time", "".join(svgs), caption)


def _draw_world(axes: Axes, elastic: Elastic) -> None:
    before: float | None = None
    top = max((attempt.world for attempt in elastic.attempts), default=1)
    for attempt in elastic.attempts:
        if attempt.first is None:
            axes.plot([attempt.start], [0], "|", color=ACTUAL, markersize=14, clip_on=False)
            continue
        axes.fill_between(
            [attempt.first, attempt.end], attempt.world, color=FORECAST, alpha=0.22, linewidth=0
        )
        axes.plot([attempt.first, attempt.end], [attempt.world] * 2, color=FORECAST, linewidth=2.5)
        middle = (attempt.first + attempt.end) / 2
        axes.text(
            middle, attempt.world / 2, f"{attempt.world}", ha="center", va="center", size=14, weight="bold"
        )
        if attempt.recovery is not None and before is not None:
            axes.axvspan(before, attempt.first, color=ACTUAL, alpha=0.16, linewidth=0)
            label = f"{attempt.recovery:.1f} s"
            axes.text(
                (before + attempt.first) / 2,
                top + 0.12,
                label,
                ha="center",
                va="bottom",
                color=ACTUAL,
                size=9,
            )
        before = attempt.end
    axes.set_ylim(0, top + 0.55)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("seconds since the run began")
    axes.set_ylabel("workers")


def running_mean(
    x: np.ndarray[tuple[int], np.dtype[np.float64]], y: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """The mean of the last MOVING values at each x (fewer at the start), thinned to at most POINTS."""
    keep = np.isfinite(y)
    x, y = x[keep].astype(np.float64), y[keep].astype(np.float64)
    total = np.concatenate([[0.0], np.cumsum(y)])
    last = np.arange(1, y.size + 1)
    first = np.maximum(last - MOVING, 0)
    mean = (total[last] - total[first]) / (last - first)
    chosen = (
        np.unique(np.linspace(0, y.size - 1, min(POINTS, y.size)).round().astype(int)) if y.size else last[:0]
    )
    return x[chosen], mean[chosen]


def label_tokens(axes: Axes) -> None:
    """Label the abscissa in tokens: 200k, 1M."""
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text.count(value, 2) if value else "0"))
    axes.set_xlabel("tokens seen")
