"""The learning-rate curve of one shape: its optimum, the interval of the optimum and the cost of missing it."""

import math
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from froude.laws.drawing import rows as drawn
from froude.laws.drawing.panel import Axis, Line, Mark, Panel, Points, Series
from froude.laws.law import Law
from froude.laws.stats import uncertainty
from froude.laws.stats.frames import Array, Mask, Sample, read
from froude.laws.stats.results import Status, positive

# All in ln lr. A loss so far above the best is as good as diverged; a polynomial describes the curve within
# WINDOW of its best rate; an optimum may lie HALF_OCTAVE outside the finished rates (if a diverged rate
# bounds it); an interval of more than ±FLAT says nothing. From U-curves of 160 published sweeps.
DIVERGED_GAP = 0.5  # nats
WINDOW = 1.05
HALF_OCTAVE = 0.5 * math.log(2)
FLAT = 0.7
QUADRATIC_BIAS = 0.1  # half-width that a quadratic through an asymmetric curve needs on top, within WINDOW
SEARCH = 1.5  # an interval that reaches so far is cut there: it is flat anyway
CUBIC_POINTS, MIN_RATES = 6, 4
#: What an interval is worth where few repeats tell the noise: of 3000 sweeps at each noise, 7 rates half an octave
#: apart, curves steeper above the optimum (tests/unit/laws/test_lr.py makes 300 of them again). One to three repeats in
#: all are no better than none: 82 to 84% at .22, of 1000.
FEW_RUNS = (
    "fewer than two runs a rate: in simulations with one, the 95% interval held the optimum in 93% of the fits called "
    "ok at a noise of .07 of the curvature, in 87% at .15, in 80% at .22; with two in 94, 92 and 89%"
)
TIE = 1.1  # distances from the best rate within which two are equal except for the rounding of the rates


@dataclass(frozen=True, eq=False)
class _Polynomial:
    """loss = Σ coefficients[k] · (ln lr - center)^k for ln lr between `low` and `high`."""

    center: float
    coefficients: Array
    inverse: Array  # (X'X)^-1
    noise: float
    dof: int
    low: float
    high: float

    @property
    def covariance(self) -> Array:
        return self.noise**2 * self.inverse

    @property
    def minimum(self) -> tuple[float, float]:
        """The abscissa of the minimum relative to `center`, and the second derivative there; NaN without one."""
        _, c1, c2, c3 = np.append(self.coefficients, 0.0)[:4]
        root = c2 * c2 - 3 * c1 * c3
        if root <= 0 or (c3 == 0 and c2 <= 0):
            return math.nan, math.nan
        root = math.sqrt(root)
        # Two forms of the same root; the first is steady for a vanishing cubic term.
        x = -c1 / (c2 + root) if c2 > 0 else (root - c2) / (3 * c3)
        return float(x), 2 * root

    @property
    def error(self) -> float:
        """The standard error of the minimum's abscissa by the delta method, at a noise of one."""
        at, curvature = self.minimum
        slope = np.array([k * at ** max(k - 1, 0) for k in range(self.coefficients.size)]) / curvature
        return math.sqrt(max(float(slope @ self.inverse @ slope), 0.0))

    def __call__(self, x: Array) -> Array:
        """Evaluate at ln lr; beyond the rates fitted continue along the tangent."""
        inside = np.clip(x, self.low, self.high)
        u = inside - self.center
        value = np.polynomial.polynomial.polyval(u, self.coefficients)
        slope = np.polynomial.polynomial.polyval(u, np.polynomial.polynomial.polyder(self.coefficients))
        return np.asarray(value + slope * (x - inside))


@dataclass(frozen=True, eq=False)
class LrCurve(Law):
    """A U-curve: the best learning rate with its 95% interval `low` to `high`.

    `loss` is the fitted loss at `lr` (nats per token), `curvature` its second derivative in ln lr, `noise`
    the residual sd in nats, `degree` that of the polynomial. With status `edge`, `lr` is the best rate
    tried and the interval is NaN.
    """

    lr: float
    low: float
    high: float
    loss: float
    curvature: float
    noise: float
    degree: int
    _curve: _Polynomial | None = field(repr=False)

    def regret(self, lr: float) -> float:
        """Return the loss at `lr` above that at the optimum, nats per token.

        Beyond the fitted rates it continues along the tangent, a lower estimate. ValueError for a rate that
        is not positive and finite, and where the status leaves no curve.
        """
        x = math.log(positive("lr", lr))
        if self._curve is None or not math.isfinite(self.curvature):
            raise self.refusal("There is no curve")
        return max(float(self._curve(np.array(x))) - self.loss, 0.0)

    @property
    def dof(self) -> int:
        """Runs that the fit has to spare; 0 where nothing was fitted."""
        return self._curve.dof if self._curve is not None else 0

    @property
    def errors(self) -> tuple[float, float]:
        """The standard error of ln lr over the noise (delta method); and half of what a quadratic may be off by.

        NaN without an optimum.
        """
        if self._curve is None or not math.isfinite(self.curvature):
            return math.nan, math.nan
        return self._curve.error, _bias(self._curve) / 2

    def table(self) -> pl.DataFrame:
        """Return one row: `lr, low, high, loss, curvature, noise, half, double, status, left_out`.

        `half` and `double` are the regrets at half and at twice the best rate, nats per token; `left_out` names the
        rates that are not fitted, and why.
        """
        known = self._curve is not None and math.isfinite(self.curvature)
        return pl.DataFrame(
            {
                "lr": self.lr,
                "low": self.low,
                "high": self.high,
                "loss": self.loss,
                "curvature": self.curvature,
                "noise": self.noise,
                "half": self.regret(self.lr / 2) if known else math.nan,
                "double": self.regret(self.lr * 2) if known else math.nan,
                "status": self.status,
                "left_out": left_out(self.sample),
            }
        )

    def shape(self) -> tuple[Array, Array] | None:
        """Return rates between the lowest and highest fitted, and the curve there; None where nothing was fitted."""
        if self._curve is None:
            return None
        x = np.linspace(self._curve.low, self._curve.high, 200)
        return np.exp(x), self._curve(x)

    def residuals(self) -> tuple[Array, Array, Mask] | None:
        if self._curve is None:
            return None
        x, y = np.log(self.sample["lr"]), self.sample["loss"]
        inside = (x >= self._curve.low) & (x <= self._curve.high)
        design = np.vander(x - self._curve.center, self.degree + 1, increasing=True)
        inverse = np.linalg.pinv(design[inside].T @ design[inside])
        leverage = np.einsum("ij,jk,ik->i", design, inverse, design)
        residual = y - self._curve(x)
        marks = np.zeros(x.size, dtype=bool)
        marks[inside] = uncertainty.studentized_outliers(residual[inside], leverage[inside], self.degree + 1)
        return self._curve(x), residual, marks

    def drawing(self) -> tuple[Panel, ...]:
        """Losses against the learning rate, the curve, the optimum with its 95% interval; crosses are diverged runs."""
        fitted = pl.col("fitted").is_not_null()
        done = self.rows.filter(fitted if self._curve is not None else drawn.FINITE_LOSS)
        series: list[Series] = [Points(done["lr"], done["loss"], name="runs")]
        if (shape := self.shape()) is not None:
            series.append(Line(*shape, name=f"degree {self.degree}"))
            lost = self.sample.columns["lr"][self.sample.diverged]
            series += [Points(lost, None, style="diverged", name="diverged")] if lost.size else []
            series += drawn.outliers(self.rows, "lr", "loss")
        title = f"best lr {self.lr:.3g}"
        if math.isfinite(self.low):
            series.append(Mark(self.lr, interval=(self.low, self.high), span="95% interval"))
            title += f"  [{self.low:.3g}, {self.high:.3g}]"
        x_axis, y_axis = Axis("peak learning rate", base=10), Axis("loss (nats per token)")
        return (Panel(x_axis, y_axis, tuple(series), title),)


def lr_curve(frame: pl.DataFrame | pl.LazyFrame) -> LrCurve:
    """Fit the U-curve of one shape: columns `lr` and `loss` (nats per token); several seeds are several rows.

    A cubic in ln lr within ±1.05 of the best rate, a quadratic where only four or five rows fall there; on grids
    too wide for that, a quadratic through the four or more rates nearest to the best, with a wider interval.
    Diverged runs, and losses 0.5 nats above the best, bound the grid but are not fitted. Status `edge` if
    the best rate is the lowest or highest tried, `flat` if the 95% interval is wider than ±0.7 in ln lr or the
    losses are noise, `not_convex` without a minimum, `too_few_points` below four rates. With fewer than two runs a rate
    in the fit the 95% interval of one called ok holds less than that, and the reasons say how much (`FEW_RUNS`). Raises
    as `froude.laws.stats.frames.read` does.
    """
    sample = read(frame, ["lr"], loss=True, setting="lr")
    sample = sample.without(too_high(sample["loss"]))
    x, y = np.log(sample["lr"]), sample["loss"]
    rates, means = mean_by_rate(x, y)
    best = float(rates[means.argmin()]) if rates.size else math.nan

    def nothing(status: Status, reason: str, curve: _Polynomial | None = None) -> LrCurve:
        lr = math.exp(best) if rates.size else math.nan
        degree = curve.coefficients.size - 1 if curve else 0
        noise = curve.noise if curve else math.nan
        return LrCurve(
            lr, *(math.nan,) * 4, noise, degree, curve, status=status, reasons=(reason,), sample=sample
        )

    if rates.size < MIN_RATES:
        without = f" (left out: {found})" if (found := left_out(sample)) else ""
        return nothing("too_few_points", f"{rates.size} rates that can be fitted; needs {MIN_RATES}{without}")
    if np.ptp(y) <= 1e-9 * y.max():
        return nothing("flat", "all losses are equal")
    tried = np.log(np.concatenate([sample["lr"], sample.columns["lr"][sample.diverged]]))
    if best in (tried.min(), tried.max()):
        side = "lowest" if best == tried.min() else "highest"
        return nothing(
            "edge", f"the best rate, {math.exp(best):.3g}, is the {side} tried", _fit(x, y, best, 2)
        )
    away = np.abs(x - best)
    window = away <= WINDOW + 1e-9
    wide = bool(window.sum() < MIN_RATES or np.unique(x[window]).size < 3)
    if wide:
        window = away <= np.sort(np.abs(rates - best))[MIN_RATES - 1] * TIE
    # Over a wider window a cubic is no better known to hold than a quadratic, and its interval would not say so.
    cubic = bool(not wide and window.sum() >= CUBIC_POINTS and np.unique(x[window]).size >= 5)
    reach = (max(tried.min(), rates[0] - HALF_OCTAVE), min(tried.max(), rates[-1] + HALF_OCTAVE))
    curve = _fit(x[window], y[window], best, 3 if cubic else 2)
    if cubic and not _inside(curve, reach):
        curve = _fit(x[window], y[window], best, 2)
    at, curvature = curve.minimum
    if not math.isfinite(at):
        if is_noise(x, y):
            return nothing("flat", "the losses do not depend on the rate, as far as their noise shows", curve)
        return nothing("not_convex", "the fitted curve has no minimum", curve)
    if not _inside(curve, reach):
        return nothing(
            "edge", f"the fitted optimum {math.exp(best + at):.3g} lies outside the rates tried", curve
        )
    low, high = _interval(curve)
    flat = max(high - best - at, best + at - low) > FLAT
    degree = curve.coefficients.size - 1
    reasons = ["the 95% interval is wider than a factor of 2 either way"] if flat else []
    if window.sum() < 2 * np.unique(x[window]).size:
        reasons.append(FEW_RUNS)
    return LrCurve(
        lr=math.exp(best + at),
        low=uncertainty.bounded_exp(low),
        high=uncertainty.bounded_exp(high),
        loss=float(curve(np.array(best + at))),
        curvature=curvature,
        noise=curve.noise,
        degree=degree,
        status="flat" if flat else "ok",
        reasons=tuple(reasons),
        sample=sample,
        _curve=curve,
    )


def too_high(loss: Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Mark losses so far above the best that they count as diverged."""
    return np.asarray(loss > loss.min(initial=math.inf) + DIVERGED_GAP)


def left_out(sample: Sample, over: str = "lr", size: float | None = None) -> str:
    """Name the rates of a curve (at one size, if given) without a fitted run, each with the reason; "" if none."""
    lr, loss, used = sample.columns["lr"], sample.columns["loss"], sample.used
    here = np.isfinite(lr) if size is None else np.isfinite(lr) & (sample.columns[over] == size)
    best = loss[here & used].min(initial=math.inf)
    missing = np.flatnonzero(here & ~np.isin(lr, lr[here & used]))
    named = []
    for rate, first in zip(*np.unique(lr[missing], return_index=True), strict=True):
        row = int(missing[first])
        gap = float(loss[row]) - float(best)
        high = f"{gap:.2f} nats above the best" if DIVERGED_GAP < gap < math.inf else "diverged"
        why = high if sample.diverged[row] else sample.frame["status"][row] or "no status"
        named.append(f"{rate:.3g} ({why})")
    return ", ".join(named)


def mean_by_rate(x: Array, y: Array) -> tuple[Array, Array]:
    """Return the distinct rates, ascending, and the mean loss at each."""
    rates, index = np.unique(x, return_inverse=True)
    return rates, np.bincount(index, y, rates.size) / np.bincount(index, minlength=rates.size)


def is_noise(x: Array, y: Array, error: float = 0.05) -> bool:
    """Whether a parabola in ln lr explains the losses no better than their mean does (F test)."""
    dof = y.size - 3
    if dof < 1:
        return False
    design = np.vander(x - x.mean(), 3)
    left = float(np.sum((y - design @ np.linalg.lstsq(design, y)[0]) ** 2))
    gained = float(np.sum((y - y.mean()) ** 2)) - left
    return not uncertainty.beyond_noise(gained, 2, left / dof, dof, error)


def _inside(curve: _Polynomial, reach: tuple[float, float]) -> bool:
    at = curve.center + curve.minimum[0]
    return reach[0] < at < reach[1]


def _fit(x: Array, y: Array, center: float, degree: int) -> _Polynomial:
    design = np.vander(x - center, degree + 1, increasing=True)
    q, r = np.linalg.qr(design)
    coefficients = np.linalg.solve(r, q.T @ y)
    dof = y.size - degree - 1
    residual = y - design @ coefficients
    noise = math.sqrt(float(residual @ residual) / dof) if dof > 0 else math.nan
    return _Polynomial(
        center, coefficients, np.linalg.inv(r.T @ r), noise, dof, float(x.min()), float(x.max())
    )


def _bias(curve: _Polynomial) -> float:
    """What a quadratic may be off by, as a half-width in ln lr: it grows as the square of the window."""
    wide = max(curve.center - curve.low, curve.high - curve.center, WINDOW) / WINDOW
    return QUADRATIC_BIAS * wide**2 if curve.coefficients.size == 3 else 0.0


def _interval(curve: _Polynomial) -> tuple[float, float]:
    """Return the 95% interval of the optimum in ln lr: where a slope of zero is not rejected by Student's t (Fieller).

    Where the noise is small it is the delta method's. Where it is not, the fitted curvature is inflated by chance, and
    the delta method and a residual bootstrap call noise an optimum. Nor is this one safe from that where few degrees of
    freedom make the noise look small: narrow enough for status ok are then too many of the wrong ones (`FEW_RUNS`). It
    ends at SEARCH at most.
    """
    (at, _), degree = curve.minimum, curve.coefficients.size - 1
    bound = uncertainty.t_quantile(uncertainty.LEVEL, curve.dof)
    bias = _bias(curve)

    def excess(x: Array) -> Array:
        slope = np.stack([k * np.power(x, max(k - 1, 0)) for k in range(degree + 1)], axis=-1)
        variance = np.einsum("...i,ij,...j->...", slope, curve.covariance, slope)
        return np.asarray(np.abs(slope @ curve.coefficients) - bound * np.sqrt(np.maximum(variance, 0.0)))

    ends = []
    for side in (-1.0, 1.0):
        steps = at + side * np.linspace(0, SEARCH, 151)
        # The first point beyond, among steps of .01, then twice among 200 parts of the step before it.
        for _ in range(3):
            beyond = np.flatnonzero(excess(steps) > 0)
            if not beyond.size:
                break
            steps = np.linspace(steps[max(beyond[0] - 1, 0)], steps[beyond[0]], 201)
        end = float(steps[-1])
        ends.append(end + side * bias)
    return curve.center + ends[0], curve.center + ends[1]
