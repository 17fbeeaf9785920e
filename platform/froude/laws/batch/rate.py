"""The best learning rate at each batch, lr = lr_max / (1 + noise_scale / batch) (1812.06162, eq. 2.6)."""

import math
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from scipy.optimize import least_squares
from scipy.special import expit

from froude.laws.batch.critical import BEYOND, MIN_BATCHES, VAGUE
from froude.laws.drawing import rows as drawn
from froude.laws.drawing.numbers import short
from froude.laws.drawing.panel import Axis, Line, Mark, Panel, Points, Series
from froude.laws.law import Law
from froude.laws.stats import uncertainty
from froude.laws.stats.frames import Array, Mask, plausible, read
from froude.laws.stats.results import NO_ESTIMATE, Estimate, Status, positive

SPAN = 12.0  # a noise scale exp(12) times outside the batches tried leaves no bend in them


@dataclass(frozen=True, eq=False)
class BatchLrLaw(Law):
    """A fitted saturation of the best learning rate, batch in tokens (or whatever unit the frame used).

    `lr_max` is the rate that ever larger batches approach, `noise_scale` the batch at which half of it is
    best; both with standard errors and 95% intervals, NaN without a fit. `noise` is the residual sd in lr;
    residuals are lr - fitted.
    """

    lr_max: Estimate
    noise_scale: Estimate
    noise: float

    def lr(self, batch: float) -> float:
        """Return the fitted best learning rate at `batch`; ValueError where nothing was fitted."""
        size = positive("batch", batch)
        if not math.isfinite(self.lr_max.value):
            raise self.refusal()
        return float(self.lr_max.value * _share(np.log(size), math.log(self.noise_scale.value)))

    def residuals(self) -> tuple[Array, Array, Mask] | None:
        if not math.isfinite(self.lr_max.value):
            return None
        share = _share(np.log(self.sample["batch"]), math.log(self.noise_scale.value))
        top = self.lr_max.value
        design = np.column_stack([share, -share * (1 - share)])
        leverage = np.einsum("ij,ji->i", design, np.linalg.pinv(design))
        residual = self.sample["lr"] - top * share
        marks = uncertainty.studentized_outliers(residual / top, leverage, 2)
        return top * share, residual, marks

    def drawing(self) -> tuple[Panel, ...]:
        """The best learning rate against batch, the curve, the rate that it approaches and the noise scale."""
        known = math.isfinite(self.lr_max.value)
        done = self.rows.filter(pl.col("fitted").is_not_null()) if known else self.rows
        series: list[Series] = [Points(done["batch"], done["lr"], name="best rates")]
        title = ""
        if known and done.height:
            batch, top, scale = self.sample["batch"], self.lr_max.value, self.noise_scale
            x = np.geomspace(batch.min() / 1.5, batch.max() * 1.5, 150)
            series += [
                Line(x, [self.lr(float(b)) for b in x], name="lr_max / (1 + B_noise/B)"),
                Mark(top, axis="y", style="limit", name=f"lr_max = {top:.3g}"),
                Mark(scale.value, name=f"B_noise = {short(scale.value)}", interval=(scale.low, scale.high)),
                *drawn.outliers(done, "batch", "lr"),
            ]
            title = f"noise scale {short(scale.value)}  [{short(scale.low)}, {short(scale.high)}]"
        x_axis = Axis("batch (tokens)", base=10)
        return (Panel(x_axis, Axis("best peak learning rate"), tuple(series), title),)


def batch_lr_law(frame: pl.DataFrame | pl.LazyFrame) -> BatchLrLaw:
    """Fit lr = lr_max / (1 + noise_scale / batch) by unweighted least squares in lr: columns `batch` and `lr`.

    Standard errors are those of least squares; the intervals also hold for a scatter in proportion to the rate.
    One row per batch: the best learning rate there, found by the caller (for instance with `lr_curve`).
    Status `too_few_points` below three batches, `at_bound` if the rates do not bend (they do not rise with
    batch, or rise in proportion throughout), `edge` if the noise scale lies more than a factor of 2 outside
    the batches tried, `flat` if its interval spans more than a factor of 10 either way. Raises as
    `froude.laws.stats.frames.read` does.
    """
    sample = read(frame, ["batch", "lr"])
    plausible(sample, ["batch", "lr"])
    log_b, lr = np.log(sample["batch"]), sample["lr"]
    distinct = np.unique(log_b).size

    def law(
        status: Status, reasons: tuple[str, ...], top: Estimate, scale: Estimate, noise: float
    ) -> BatchLrLaw:
        return BatchLrLaw(top, scale, noise, status=status, reasons=reasons, sample=sample)

    if distinct < MIN_BATCHES:
        few = (f"{distinct} batch sizes; needs {MIN_BATCHES}",)
        return law("too_few_points", few, NO_ESTIMATE, NO_ESTIMATE, math.nan)
    center, high = float(log_b.mean()), float(lr.max())
    theta, se, reach, noise = _fit(log_b - center, lr / high)
    ends = [
        uncertainty.log_interval(float(theta[i]) + shift, float(reach[i]), lr.size - 2)
        for i, shift in enumerate((math.log(high), center))
    ]
    top, scale = (replace(end, se=end.value * float(error)) for end, error in zip(ends, se, strict=True))
    status, reasons = _verdict(theta, log_b - center, scale)
    return law(status, reasons, top, scale, noise * high)


def _share(log_b: Array, log_scale: float) -> Array:
    return np.asarray(expit(log_b - log_scale))


def _fit(log_b: Array, lr: Array) -> tuple[Array, Array, Array, float]:
    """Return (ln lr_max, ln noise_scale), their standard errors, those of their intervals, and the residual sd in lr.

    The latter hold also where the scatter differs from batch to batch: HC3 of MacKinnon and White (1985) where it
    is the larger.
    """
    low, high = float(log_b.min()) - SPAN, float(log_b.max()) + SPAN

    def residual(t: Array) -> Array:
        return np.asarray(np.exp(t[0]) * _share(log_b, t[1]) - lr)

    def jacobian(t: Array) -> Array:
        share = _share(log_b, t[1])
        return np.asarray(np.exp(t[0]) * np.column_stack([share, -share * (1 - share)]))

    # lr_max follows linearly from the noise scale: the best point of a grid over that alone is the start.
    scales = np.linspace(low, high, 200)
    shares = expit(log_b[None, :] - scales[:, None])
    tops = (shares @ lr) / (shares**2).sum(axis=1)
    best = int(((tops[:, None] * shares - lr) ** 2).sum(axis=1).argmin())
    lower = np.array([math.log(float(tops.min())) - 1, low])
    upper = np.array([math.log(float(tops.max())) + 1, high])
    start = np.clip([math.log(float(tops[best])), scales[best]], lower + 1e-6, upper - 1e-6)
    found = least_squares(
        residual,
        start,
        jacobian,
        bounds=(lower, upper),
        x_scale="jac",
        ftol=1e-15,
        xtol=1e-15,
        gtol=1e-15,
        max_nfev=500,
    )
    theta = np.asarray(found.x, dtype=np.float64)
    j = jacobian(theta)
    noise = math.sqrt(2 * float(found.cost) / (lr.size - 2))
    inverse = np.linalg.pinv(j.T @ j)
    pull = j @ inverse
    left = np.maximum(1 - np.einsum("ij,ij->i", pull, j), 1e-9)
    se = noise * np.sqrt(np.diag(inverse))
    return theta, se, np.maximum(se, np.sqrt(((residual(theta) / left) ** 2) @ pull**2)), noise


def _verdict(theta: Array, log_b: Array, scale: Estimate) -> tuple[Status, tuple[str, ...]]:
    low, high = float(log_b.min() - theta[1]), float(log_b.max() - theta[1])
    if low > SPAN / 2:
        return "at_bound", (
            "the best rate does not rise with batch: the noise scale ran to zero; add smaller batches",
        )
    if high < -SPAN / 2:
        return "at_bound", ("the best rate rises in proportion to batch: lr_max ran off; add larger batches",)
    if low > math.log(BEYOND) or high < -math.log(BEYOND):
        side = "smallest" if low > 0 else "largest"
        return "edge", (f"the noise scale {scale.value:.4g} lies beyond the {side} batch tried",)
    if not math.log(scale.high) - math.log(scale.value) <= VAGUE:
        return "flat", ("the 95% interval of the noise scale spans more than a factor of 10 either way",)
    return "ok", ()
