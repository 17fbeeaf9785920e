"""The figures of an exponent: curves of a setting, and their optima with what was fitted and published."""

import math
from collections.abc import Sequence

import numpy as np

from froude.laws.drawing import rows as drawn
from froude.laws.drawing.numbers import short
from froude.laws.drawing.panel import Axis, Band, Line, Note, Panel, Points, Series
from froude.laws.lr.levels import LEVEL, Curve, Slope
from froude.laws.lr.published import PUBLISHED, Published
from froude.laws.stats.uncertainty import t_quantile

NAMES = {
    "lr": "peak learning rate",
    "timescale": "decay timescale, share of the run",
    "half_life": "half-life of beta2 (tokens)",
    "tokens": "training tokens",
    "batch": "batch (tokens)",
}


def setting_panel(found: Sequence[Curve], setting: str, over: str) -> Panel:
    """Losses against the setting at each size of the fullest line, with the fitted curves and their optima."""
    here = _fullest(found)
    series: list[Series] = []
    for curve in here:
        done = curve.fit.rows.filter(drawn.FINITE_LOSS)
        series.append(Points(done["lr"], done["loss"], size=curve.size))
        lost = curve.fit.rows.filter(~drawn.FINITE_LOSS.fill_null(False))
        series += [Points(lost["lr"], None, style="diverged")] if lost.height else []
        series += [Line(*shape, size=curve.size)] if (shape := curve.fit.shape()) is not None else []
        if math.isfinite(curve.fit.loss):
            series.append(Points([curve.fit.lr], [curve.fit.loss], style="optimum", size=curve.size))
    return Panel(
        x=Axis(NAMES.get(setting, setting), base=10),
        y=Axis("loss (nats per token)"),
        series=tuple(series),
        title=f"loss by {NAMES.get(setting, setting)}",
        sizes=tuple(sorted({curve.size for curve in here})),
        legend=NAMES.get(over, over),
    )


def optimum_panel(
    found: Sequence[Curve], fit: Slope | None, setting: str, over: str, others: Sequence[Published]
) -> Panel:
    """Optima against the size with 90% intervals, the power law, and published exponents through its middle.

    Lines other than the fullest are moved onto it. What is set apart is the best value of a curve without an optimum.
    """
    here = _fullest(found)
    line, sizes = here[0].line if here else 0, [curve.size for curve in here]
    series: list[Series] = [
        Points([curve.size], [curve.fit.lr], style="left out")
        for curve in here
        if curve.fit.status != "ok" and math.isfinite(curve.fit.lr)
    ]
    title = "no exponent"
    if fit is not None:
        line = line if line in fit.centers else next(iter(fit.centers))
        cx, cy = fit.centers[line]
        moved = np.array([curve.at - fit.centers[curve.line][1] + cy for curve in fit.curves])
        placed = np.array([curve.size * math.exp(cx - fit.centers[curve.line][0]) for curve in fit.curves])
        half = t_quantile(LEVEL, fit.dof) * fit.se
        series.append(Band(placed, np.exp(moved - half), np.exp(moved + half), style="bar"))
        series.append(Points(placed, np.exp(moved), style="best"))
        x = np.geomspace(placed.min() / 1.2, placed.max() * 1.2, 40)
        low, high = fit.interval
        ends = [np.exp(cy + slope * (np.log(x) - cx)) for slope in (low, high)]
        series.append(Line(x, np.exp(cy + fit.exponent * (np.log(x) - cx))))
        series.append(Band(x, np.minimum(*ends), np.maximum(*ends)))
        for slope, names in _grouped(others).items():
            y = np.exp(cy + slope * (np.log(x) - cx))
            series.append(Line(x, y, style="limit"))
            series.append(Note(f" {slope:+.2f} {names}", float(x[-1]), float(y[-1]), style="limit"))
        title = f"exponent {fit.exponent:+.2f}  [{low:+.2f}, {high:+.2f}]"
    return Panel(
        Axis(NAMES.get(over, over), base=10, ticks=sizes[:: 1 + len(sizes) // 9], words=short),
        Axis(f"best {NAMES.get(setting, setting)}", base=10),
        tuple(series),
        title,
    )


def _fullest(found: Sequence[Curve]) -> list[Curve]:
    """The curves of the line that has most, ascending in size."""
    lines = [curve.line for curve in found]
    line = max(lines, key=lines.count, default=0)
    return sorted((curve for curve in found if curve.line == line), key=lambda curve: curve.size)


def _grouped(others: Sequence[Published]) -> dict[float, str]:
    """A short name for published exponents, those within .1 of the group's least together, at their mean."""
    groups: list[list[Published]] = []
    for each in others:
        if groups and each.value - groups[-1][0].value < 0.1:
            groups[-1].append(each)
        else:
            groups.append([each])
    named = {}
    for group in groups:
        names = list(dict.fromkeys(each.name for each in sorted(group, key=PUBLISHED.index)))
        more = f" + {len(names) - 1}" if len(names) > 1 else ""
        named[sum(each.value for each in group) / len(group)] = names[0] + more
    return named
