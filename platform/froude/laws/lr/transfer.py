"""How the best learning rate moves with width (or any other size): one joint fit over all curves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from froude.laws.drawing import rows as drawn
from froude.laws.drawing.numbers import short
from froude.laws.drawing.panel import Axis, Band, Line, Note, Panel, Points, Series
from froude.laws.law import Law
from froude.laws.lr.contradiction import Fitted
from froude.laws.lr.curve import FLAT, HALF_OCTAVE, WINDOW, is_noise, left_out, mean_by_rate, too_high
from froude.laws.lr.quadratic import Quadratic, least_squares, own_design
from froude.laws.lr.u_panel import u_panel
from froude.laws.stats import uncertainty
from froude.laws.stats.frames import Array, Mask, Sample, read
from froude.laws.stats.results import NO_ESTIMATE, Estimate, Status, positive

MIN_RATES, MIN_WIDTHS = 3, 2


@dataclass(frozen=True, eq=False)
class LrTransfer(Law):
    """The line log2 lr = const + slope · log2 `over` through the optima of all curves, fitted jointly.

    `slope` is at 95%. `curves` has one row per width: `<over>, lr, low, high, loss, curvature, noise,
    rates, status, left_out`, where `lr` with its 95% interval is the width's own optimum under the common
    curvature (nats per ln lr squared), `loss` its floor, `rates` the number of rates that can be fitted, and
    `left_out` names the others, and why. Fitted to a row is its width's parabola, if the width has one.
    """

    over: str
    slope: Estimate
    curves: pl.DataFrame
    curvature: float
    noise: float
    _line: Quadratic | None = field(repr=False)
    _own: Quadratic | None = field(repr=False)
    _widths: tuple[float, ...] = field(repr=False)
    _in_fit: Mask
    _center: tuple[float, float] = field(repr=False)

    def optimum(self, size: float) -> Estimate:
        """Return the best learning rate on the fitted line at a width (in general: a value of `over`), at 95%."""
        at = math.log(positive(self.over, size)) - self._center[1]
        if self._line is None:
            raise self.refusal("No line was fitted")
        weights = np.zeros(self._line.beta.size)
        weights[-3], weights[-2] = 1.0, at
        x, se = self._line.ratio(weights)
        return uncertainty.log_interval(x + self._center[0], se, self._line.dof)

    @property
    def curvature_se(self) -> float:
        """The standard error of `curvature`; NaN without a line."""
        return 2 * math.sqrt(self._line.covariance[-1, -1]) if self._line is not None else math.nan

    def table(self) -> pl.DataFrame:
        """Return `curves`, which has the optimum of each width."""
        return self.curves

    def residuals(self) -> tuple[Array, Array, Mask] | None:
        if self._own is None:
            return None
        x, sizes, y = (
            np.log(self.sample["lr"]) - self._center[0],
            self.sample[self.over],
            self.sample["loss"],
        )
        known = np.isin(sizes, self._widths)
        design = own_design(x, sizes, self._widths)
        fitted = design @ self._own.beta
        leverage = np.einsum("ij,jk,ik->i", design, self._own.inverse, design)
        marks = np.zeros(y.size, dtype=bool)
        inside = self._in_fit
        marks[inside] = uncertainty.studentized_outliers(
            (y - fitted)[inside], leverage[inside], design.shape[1]
        )
        return np.where(known, fitted, np.nan), np.where(known, y - fitted, np.nan), marks

    def drawing(self) -> tuple[Panel, ...]:
        """The U-curve of each width; and the optima with 95% intervals, and the line through them."""
        return u_panel(self.rows, self.curves, self.over), self._optima()

    def _optima(self) -> Panel:
        sizes = drawn.sizes_of(self.curves, self.over)
        series: list[Series] = []
        for size, lr, low, high, status in self.curves.select(
            self.over, "lr", "low", "high", "status"
        ).iter_rows():
            if math.isfinite(low):
                series.append(Points([size], [lr], style="best", size=size))
                series.append(Band([size], [low], [high], style="bar", size=size))
            elif math.isfinite(lr):
                series += [Points([size], [lr], style="left out"), Note(status, size, lr)]
        title = ""
        if self._line is not None:
            at = np.geomspace(sizes[0] / 1.3, sizes[-1] * 1.3, 40)
            line = [self.optimum(float(size)) for size in at]
            series.append(Line(at, [e.value for e in line]))
            series.append(Band(at, [e.low for e in line], [e.high for e in line]))
            title = f"slope {self.slope.value:+.2f}  [{self.slope.low:+.2f}, {self.slope.high:+.2f}]"
        return Panel(
            x=Axis(self.over, base=2, ticks=sizes[:: 1 + len(sizes) // 9], words=short),
            y=Axis("best learning rate (95% interval)", base=2),
            series=tuple(series),
            title=title,
            sizes=sizes,
        )


def lr_transfer(frame: pl.DataFrame | pl.LazyFrame, over: str = "width") -> LrTransfer:
    """Fit how the optimum moves: columns `lr`, `loss` (nats per token) and `over`; several seeds are several rows.

    One least-squares fit: each width has a floor of its own, all share the curvature in ln lr, the optimum
    is linear in log `over`. Separate parabolas per width are too noisy for a slope. Diverged runs, and
    losses 0.5 nats above the width's best, are not fitted. A width whose optimum lies at an edge of its
    grid does not enter the slope and makes the status `edge`; a width needs three rates. It is `not_convex`, too, where
    the widths by themselves contradict the joint fit: optima off the line, curvatures that differ and move the slope
    (F tests at 1%), or losses next to zero. Raises as `froude.laws.stats.frames.read` does.
    """
    if over in ("lr", "loss"):
        raise ValueError(f"over must name a column other than lr and loss, but got {over!r}.")
    sample = read(frame, ["lr", over], loss=True, setting="lr", within=[over])
    sizes = sample[over]
    high = np.zeros(sizes.size, dtype=bool)
    for size in np.unique(sizes):
        high[sizes == size] = too_high(sample["loss"][sizes == size])
    sample = sample.without(high)
    return _Search(sample, over).result()


class _Search:
    """Alternate between the joint fit, the window around each optimum, and dropping widths at an edge."""

    def __init__(self, sample: Sample, over: str) -> None:
        self.sample, self.over = sample, over
        x = np.log(sample["lr"])
        self.center = float(x.mean()) if x.size else 0.0
        self.x, self.y, self.sizes = x - self.center, sample["loss"], sample[over]
        counted = sample.used | sample.diverged
        self.all_x = np.log(sample.columns["lr"][counted]) - self.center
        self.all_sizes = sample.columns[over][counted]
        self.status: dict[float, Status] = {}
        for size in np.unique(self.all_sizes):
            here = self.sizes == size
            enough = np.unique(self.x[here]).size >= MIN_RATES
            level = bool(enough and np.ptp(self.y[here]) <= 1e-9 * self.y[here].max())
            self.status[float(size)] = "flat" if level else "ok" if enough else "too_few_points"

    @property
    def active(self) -> tuple[float, ...]:
        return tuple(size for size, status in self.status.items() if status == "ok")

    def result(self) -> LrTransfer:
        own: Quadratic | None = None
        widths: tuple[float, ...] = ()
        window = np.zeros(self.x.size, dtype=bool)
        while self.active and self.active != widths:
            widths = self.active
            own, window = self._windowed(widths)
            if own is None:
                break
            for size in widths:
                if self._at_edge(own, widths, size):
                    self.status[size] = "edge"
        widths = self.active
        if own is None and widths:
            for size in widths:
                here = self.sizes == size
                self.status[size] = "flat" if is_noise(self.x[here], self.y[here]) else "not_convex"
        line = self._line(widths, window) if own is not None and len(widths) >= MIN_WIDTHS else None
        if line is not None and not line.beta[-1] > 0:
            line = None
        return self._build(own if widths else None, line, widths, window)

    def _windowed(self, widths: tuple[float, ...]) -> tuple[Quadratic | None, Mask]:
        """Fit one parabola per width within reach of its optimum; None without a common convex curvature."""
        window = np.isin(self.sizes, widths)
        own = None
        for _ in range(3):
            own = least_squares(own_design(self.x, self.sizes, widths)[window], self.y[window])
            if own is None or not own.beta[-1] > 0:
                return None, window
            narrower = np.zeros_like(window)
            for i, size in enumerate(widths):
                here = self.sizes == size
                rates = np.unique(self.x[here])
                step = float(np.diff(rates).max())
                at = float(np.clip(own.ratio(own.unit(len(widths) + i))[0], rates[0], rates[-1]))
                # One grid step more than for a single curve: the optimum is not known better than that yet.
                near = here & (np.abs(self.x - at) <= WINDOW + step + 1e-9)
                narrower |= near if np.unique(self.x[near]).size >= MIN_RATES else here
            if np.array_equal(narrower, window):
                break
            window = narrower
        return own, window

    def _at_edge(self, own: Quadratic, widths: tuple[float, ...], size: float) -> bool:
        rates, means = mean_by_rate(self.x[self.sizes == size], self.y[self.sizes == size])
        tried = self.all_x[self.all_sizes == size]
        low, high = max(tried.min(), rates[0] - HALF_OCTAVE), min(tried.max(), rates[-1] + HALF_OCTAVE)
        at, se = own.ratio(own.unit(len(widths) + widths.index(size)))
        if not low < at < high:
            return True
        # A lowest loss at the end of the grid is an edge, unless other rates show that it is noise: losses that do not
        # fall all the way there, and a joint fit that places the optimum well inside.
        reach = max(uncertainty.t_quantile(uncertainty.LEVEL, own.dof) * se, float(np.diff(rates).min()) / 2)
        best, steps = float(rates[means.argmin()]), np.diff(means)
        first = best == tried.min() and (at - reach < low or bool(np.all(steps > 0)))
        last = best == tried.max() and (at + reach > high or bool(np.all(steps < 0)))
        return bool(first or last)

    def _line(self, widths: tuple[float, ...], window: Mask) -> Quadratic | None:
        log_size = np.log(self.sizes) - self._log_center(widths)
        floors = (self.sizes[:, None] == np.array(widths)).astype(np.float64)
        design = np.column_stack([floors, self.x, self.x * log_size, self.x**2])[window]
        return least_squares(design, self.y[window])

    def _log_center(self, widths: tuple[float, ...]) -> float:
        return float(np.log(widths).mean()) if widths else 0.0

    def _build(
        self, own: Quadratic | None, line: Quadratic | None, widths: tuple[float, ...], window: Mask
    ) -> LrTransfer:
        rows: list[tuple[float | int | str, ...]] = []
        for size, status in self.status.items():
            here = self.sizes == size
            rates, means = mean_by_rate(self.x[here], self.y[here])
            best = math.exp(float(rates[means.argmin()]) + self.center) if rates.size else math.nan
            lr, floor = Estimate(best, math.nan, math.nan, math.nan), math.nan
            if own is not None and size in widths:
                i = widths.index(size)
                x, se = own.ratio(own.unit(len(widths) + i))
                lr = uncertainty.log_interval(x + self.center, se, own.dof)
                floor = float(own.beta[i] - own.beta[-1] * x * x)
                if own.dof < 1:  # a parabola through three points: nothing says how good it is
                    status = self.status[size] = "too_few_points"
                    lr = Estimate(best, math.nan, math.nan, math.nan)
                if own.dof > 0 and uncertainty.t_quantile(uncertainty.LEVEL, own.dof) * se > FLAT:
                    status = self.status[size] = "flat"
            fitted = own if own is not None and size in widths else None
            curvature = 2 * float(fitted.beta[-1]) if fitted else math.nan
            noise = fitted.noise if fitted else math.nan
            numbers = (size, lr.value, lr.low, lr.high, floor, curvature, noise)
            rows.append((*numbers, int(rates.size), status, left_out(self.sample, self.over, size)))
        floats = (self.over, "lr", "low", "high", "loss", "curvature", "noise")
        schema: dict[str, type[pl.DataType]] = {**dict.fromkeys(floats, pl.Float64), "rates": pl.Int64}
        schema |= {"status": pl.String, "left_out": pl.String}
        slope = NO_ESTIMATE
        if line is not None:
            slope = uncertainty.interval(*line.ratio(line.unit(len(widths) + 1)), line.dof)
        status, reasons = self._verdict(line, slope)
        if status == "ok" and line is not None:
            inside = (self.x[window], self.y[window], self.sizes[window])
            if against := Fitted(*inside, widths, self.over, self.center).contradictions(line, slope):
                status, reasons = "not_convex", (*reasons, *against)
        return LrTransfer(
            over=self.over,
            slope=slope,
            curves=pl.DataFrame(rows, schema=schema, orient="row"),
            curvature=2 * float(line.beta[-1]) if line is not None else math.nan,
            noise=line.noise if line is not None else math.nan,
            status=status,
            reasons=reasons,
            sample=self.sample,
            _line=line,
            _own=own,
            _widths=widths,
            _in_fit=window & np.isin(self.sizes, widths),
            _center=(self.center, self._log_center(widths)),
        )

    def _verdict(self, line: Quadratic | None, slope: Estimate) -> tuple[Status, tuple[str, ...]]:
        named: dict[Status, list[str]] = {}
        for size, status in self.status.items():
            named.setdefault(status, []).append(f"{size:g}")
        order: Sequence[tuple[Status, str]] = (
            ("edge", "the optimum lies at an edge of the rates tried"),
            ("not_convex", "the curves have no common minimum"),
            ("flat", "the curve does not place the optimum within a factor of 2"),
            ("too_few_points", f"fewer than {MIN_RATES} rates that can be fitted"),
        )
        found = [
            (status, f"{self.over} {', '.join(named[status])}: {text}")
            for status, text in order
            if status in named
        ]
        if found and (found[0][0] != "too_few_points" or line is None):
            return found[0][0], tuple(reason for _, reason in found)
        reasons = tuple(reason for _, reason in found)
        if line is None or not (math.isfinite(slope.se) and line.dof > 0):
            return "too_few_points", (*reasons, f"needs {MIN_WIDTHS} widths with runs to spare")
        # A width with too few runs is left out of a slope that the others determine; the reasons say so.
        return "ok", reasons
