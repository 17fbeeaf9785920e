"""One exponent: how the best value of a setting follows a size, with all else held."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import polars as pl

from froude.laws.drawing.panel import Panel
from froude.laws.law import Law
from froude.laws.lr.exponent_panels import optimum_panel, setting_panel
from froude.laws.lr.levels import Curve, Slope, by_line, curves, slope
from froude.laws.lr.published import Published, published
from froude.laws.stats.frames import Array, Mask, read
from froude.laws.stats.results import NO_ESTIMATE, Estimate, Status, table_of

MIN_SIZES = 3  # distinct values of what moves, without which an exponent is the prior's
NORMAL = 1.6449  # half-width of a normal 90% interval in standard deviations
#: Why a curve has no optimum, in the order in which an exponent's status names it.
LOST: dict[Status, str] = {
    "edge": "the best lies at an edge of the grid",
    "flat": "the curve does not place it within a factor of 2",
    "not_convex": "the curve has no minimum",
    "too_few_points": "too few runs finished",
}


@dataclass(frozen=True, eq=False)
class Exponent(Law):
    """best `setting` ∝ `over`^exponent, with all else held.

    `measured` is what the runs alone say, `posterior` that and the prior (normal: mean, sd) together, both at 90%;
    without a measurement the posterior is the prior. `sizes` counts the values of `over` at which an optimum was
    placed, `levels` has one row for each curve.
    """

    setting: str
    over: str
    measured: Estimate
    posterior: Estimate
    prior: tuple[float, float]
    sizes: int
    levels: pl.DataFrame
    _curves: tuple[Curve, ...] = field(repr=False)
    _slope: Slope | None = field(repr=False)

    @property
    def source(self) -> Literal["measured", "prior"]:
        """What an exponent to go by would rest on: the runs, where the status is ok, else the prior."""
        return "measured" if self.status == "ok" else "prior"

    @property
    def published(self) -> tuple[Published, ...]:
        """Published exponents of the same setting over the same size."""
        return published(self.setting, self.over)

    @property
    def lines(self) -> pl.DataFrame:
        """The exponent of each line (what is held) by itself: `line, sizes, exponent, se`."""
        return by_line(self._slope)

    def table(self) -> pl.DataFrame:
        """Return `parameter, value, se, low, high` at 90%: measured, posterior, prior."""
        mean, sd = self.prior
        prior = Estimate(mean, sd, mean - NORMAL * sd, mean + NORMAL * sd)
        return table_of({"measured": self.measured, "posterior": self.posterior, "prior": prior})

    def residuals(self) -> tuple[Array, Array, Mask] | None:
        """Each row against its curve; the floor of its seed counts as residual."""
        if not self._curves:
            return None
        fitted, marks = (
            np.full(self.sample.frame.height, np.nan),
            np.zeros(self.sample.frame.height, dtype=bool),
        )
        for curve in self._curves:
            rows = curve.fit.rows.filter(pl.col("fitted").is_not_null())
            index = rows["_row"].to_numpy()
            fitted[index], marks[index] = rows["fitted"].to_numpy(), rows["outlier"].to_numpy()
        used = self.sample.used
        return fitted[used], self.sample["loss"] - fitted[used], marks[used]

    def drawing(self) -> tuple[Panel, ...]:
        """The curves of one line; and the optima with 90% intervals, the fit, and the published exponents."""
        return (
            setting_panel(self._curves, self.setting, self.over),
            optimum_panel(self._curves, self._slope, self.setting, self.over, self.published),
        )


def exponent(
    frame: pl.DataFrame | pl.LazyFrame,
    setting: str = "lr",
    over: str = "tokens",
    *,
    held: Sequence[str] = (),
    tuned: Sequence[str] = (),
    prior: tuple[float, float] = (0.0, 0.25),
) -> Exponent:
    """Fit best `setting` ∝ `over`^exponent: columns of both, `loss` (nats per token), and those in `held` and `tuned`.

    Rows alike in `held` are a line, and all lines have one exponent; rows alike in `over` and `tuned` as well are a
    curve. Each curve's optimum is `froude.laws.lr_curve`'s, a cubic in ln of the setting, with its standard error by
    the delta method; what a seed adds to a whole curve is taken off first. The exponent is their weighted regression,
    with one noise for all. `prior` is a normal's mean and standard deviation, shown apart.

    Fewer than three sizes with an optimum give the status of the first curve without one (`edge`, `flat`, `not_convex`,
    `too_few_points`), or `prior_driven` if all have one, as where the runs say less than the prior. Raises as
    `froude.laws.stats.frames.read` does.
    """
    sample = read(frame, [setting, over], loss=True)
    found = curves(sample, setting, over, held, tuned)
    fit = slope(found)
    measured, sizes = NO_ESTIMATE, 0
    if fit is not None:
        measured = Estimate(fit.exponent, fit.error, *fit.interval)
        sizes = len({round(math.log(curve.size), 2) for curve in fit.curves})
    status, reasons = _verdict(found, fit, over, sizes, prior)
    return Exponent(
        status=status,
        reasons=reasons,
        sample=sample,
        setting=setting,
        over=over,
        measured=measured,
        posterior=_posterior(measured, prior),
        prior=prior,
        sizes=sizes,
        levels=_levels(found, setting, over),
        _curves=found,
        _slope=fit,
    )


def _verdict(
    found: Sequence[Curve], fit: Slope | None, over: str, sizes: int, prior: tuple[float, float]
) -> tuple[Status, tuple[str, ...]]:
    lost = {
        status: [f"{curve.size:,.0f}" for curve in found if curve.fit.status == status]
        for status in LOST
        if any(curve.fit.status == status for curve in found)
    }
    reasons = [
        f"no optimum at {over} {', '.join(dict.fromkeys(at))}: {LOST[status]}" for status, at in lost.items()
    ]
    if fit is not None and fit.misfit:
        reasons.append(
            "the optima scatter about a power law by more than their errors, and the interval allows for it"
        )
    if sizes < MIN_SIZES:
        reasons.append(f"{sizes} values of {over} have an optimum; needs {MIN_SIZES}")
        return next(iter(lost), "prior_driven" if sizes else "too_few_points"), tuple(reasons)
    assert fit is not None
    low, high = fit.interval
    if (high - low) / (2 * NORMAL) > prior[1]:
        return "prior_driven", (*reasons, "the runs say less than the prior")
    return "ok", tuple(reasons)


def _posterior(measured: Estimate, prior: tuple[float, float]) -> Estimate:
    """Return the product of two normals: the prior, and one with the interval that was measured."""
    mean, sd = prior
    precision, weighted = sd**-2, mean * sd**-2
    if math.isfinite(measured.high - measured.low):
        own = (max(measured.high - measured.low, 1e-9) / (2 * NORMAL)) ** -2
        precision, weighted = precision + own, weighted + own * measured.value
    value, error = weighted / precision, precision**-0.5
    return Estimate(value, error, value - NORMAL * error, value + NORMAL * error)


def _levels(found: Sequence[Curve], setting: str, over: str) -> pl.DataFrame:
    """A row a curve: its line, the size, the best value with its 95% interval, and how that was found."""
    rows = [
        (c.line, c.size, c.fit.lr, c.fit.low, c.fit.high, c.fit.loss, c.fit.degree, c.seeds, c.fit.status)
        for c in found
    ]
    floats = dict.fromkeys((over, setting, "low", "high", "loss"), pl.Float64)
    schema = {"line": pl.Int64, **floats, "degree": pl.Int64, "seeds": pl.Int64, "status": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")
