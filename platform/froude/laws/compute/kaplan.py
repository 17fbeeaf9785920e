"""Kaplan's law of the loss, L = ((N_c/N)^(alpha_N/alpha_D) + D_c/D)^alpha_D (2001.08361, eq. 1.5): to compare with."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from scipy.special import expit

from froude.laws.drawing import rows as drawn
from froude.laws.drawing.panel import Panel
from froude.laws.law import Law
from froude.laws.loss.law import ONE_RATIO
from froude.laws.stats import robust, uncertainty
from froude.laws.stats.frames import Array, Mask, plausible, read
from froude.laws.stats.results import NO_ESTIMATE, Estimate, Status, open_unit, positive
from froude.laws.stats.robust import Rows

MIN_ROWS, MIN_DISTINCT = 7, 3
EXPONENTS = (0.005, 3.0)
STARTS = [(a, b, shift) for a in (0.05, 0.15, 0.4) for b in (0.05, 0.15, 0.4) for shift in (-0.5, 0.0, 0.5)]


@dataclass(frozen=True, eq=False)
class KaplanLaw(Law):
    """A fitted Kaplan law: `N_c`, `D_c` (counts), `alpha_N` and `alpha_D`, all at 95%; it has no floor.

    `objective` is the sum of Huber terms of ln(fitted) - ln(loss), to be compared with a `LossLaw`'s on the same
    rows: that has one parameter more.
    """

    N_c: Estimate
    D_c: Estimate
    alpha_N: Estimate
    alpha_D: Estimate
    objective: float
    delta: float
    _fit: "_Fit | None" = field(repr=False)

    def predict(self, *, params: float, tokens: float, level: float = 0.9) -> Estimate:
        """Predict the loss of one new run, nats per token, with the fit's uncertainty and one row's scatter.

        ValueError for an argument that is not positive and finite, a level outside (0, 1), or no fit.
        """
        n, d = math.log(positive("params", params)), math.log(positive("tokens", tokens))
        level = open_unit("level", level)
        if self._fit is None:
            raise self.refusal()
        return self._fit.predict(n, d, level)

    def residuals(self) -> tuple[Array, Array, Mask] | None:
        if self._fit is None:
            return None
        logs = self._fit.log_loss(np.log(self.sample["params"]), np.log(self.sample["tokens"]))
        loss = self.sample["loss"]
        return np.exp(logs), loss - np.exp(logs), uncertainty.outliers(np.log(loss) - logs)

    def drawing(self) -> tuple[Panel, ...]:
        """Losses against tokens with the law's curve for each size, and the residuals."""
        rows = drawn.thinned(self.rows.filter(drawn.SIZED))
        fit = self._fit
        if fit is None:
            return drawn.loss_panel(
                rows, drawn.losses(rows, None, drawn.around(rows)), ""
            ), drawn.residual_panel(rows)

        def curve(params: float, tokens: Array) -> Array:
            return np.exp(fit.log_loss(np.log(np.full(tokens.size, params)), np.log(tokens)))

        text = f"alpha_N {self.alpha_N.value:.3f}, alpha_D {self.alpha_D.value:.3f}"
        series = drawn.losses(rows, curve, drawn.around(rows))
        return drawn.loss_panel(rows, series, text), drawn.residual_panel(rows)


@dataclass(frozen=True, eq=False)
class _Fit:
    """theta = (u, v, alpha_N, alpha_D); u and v are ln of what size and data alone leave at the geometric means."""

    theta: Array
    covariance: Array
    scatter: float
    dof: int
    n_mean: float
    d_mean: float

    def log_loss(self, n: Array, d: Array) -> Array:
        return _terms(self.theta, n - self.n_mean, d - self.d_mean)[0]

    def predict(self, n: float, d: float, level: float) -> Estimate:
        at = np.array([n - self.n_mean]), np.array([d - self.d_mean])
        slope = _jacobian(self.theta, *at)[0]
        variance = max(float(slope @ self.covariance @ slope), 0.0) + self.scatter**2
        mean = float(_terms(self.theta, *at)[0][0])
        return uncertainty.log_interval(mean, math.sqrt(variance), self.dof, level)


def kaplan(
    frame: pl.DataFrame | pl.LazyFrame,
    delta: float = 1e-3,
    *,
    weights: str | None = None,
    groups: str | Sequence[str] | None = None,
) -> KaplanLaw:
    """Fit Kaplan's law to the columns `params, tokens, loss` with the objective of `loss_law`: a comparison.

    Standard errors are robust to what rows of one of the `groups` share. Status `too_few_points` below 7 rows, 3
    sizes or 3 horizons, `flat` where the losses are equal or do not determine the parameters (as those of one ratio of
    tokens to parameters), `at_bound` where an exponent ran to its limit. Of more than 50,000 rows, 2,000 drawn at
    random say where to look for the least objective, that of all rows. Raises as `froude.laws.stats.frames.read` does.
    """
    delta = positive("delta", delta)
    sample = read(frame, ["params", "tokens"], loss=True, weights=weights, groups=groups)
    plausible(sample, ["params", "tokens", "loss"])
    n, d, loss = np.log(sample["params"]), np.log(sample["tokens"]), sample["loss"]

    def nothing(status: Status, reason: str) -> KaplanLaw:
        none = (NO_ESTIMATE,) * 4
        return KaplanLaw(*none, math.nan, delta, None, status=status, reasons=(reason,), sample=sample)

    sizes, horizons = np.unique(n).size, np.unique(d).size
    if sample.size < MIN_ROWS or min(sizes, horizons) < MIN_DISTINCT:
        have = f"{sample.size} rows, {sizes} sizes, {horizons} horizons"
        return nothing("too_few_points", f"{have}; needs {MIN_ROWS}, {MIN_DISTINCT}, {MIN_DISTINCT}")
    if np.ptp(loss) <= 1e-12 * loss.max():
        return nothing("flat", "all losses are equal")
    means, y = (float(n.mean()), float(d.mean())), np.log(loss)
    x = (n - means[0], d - means[1])
    middle = float(y.mean())
    starts = [
        np.array([middle + s - b * math.log(2), middle - s - b * math.log(2), a, b]) for a, b, s in STARTS
    ]
    low = np.array([y.min() - 20, y.min() - 20, EXPONENTS[0], EXPONENTS[0]])
    high = np.array([y.max() + 1, y.max() + 1, EXPONENTS[1], EXPONENTS[1]])

    def residuals(t: Array, rows: Rows) -> Array:
        return _terms(t, x[0][rows], x[1][rows])[0] - y[rows]

    def slopes(t: Array, rows: Rows) -> Array:
        return _jacobian(t, x[0][rows], x[1][rows])

    theta, objective = robust.minimise_rows(residuals, slopes, starts, (low, high), sample.weights, delta)
    jacobian, residual = _jacobian(theta, *x), _terms(theta, *x)[0] - y
    if robust.undetermined(jacobian):
        return nothing("flat", "the rows do not determine all four parameters")
    dof = max(min(sample.size, sample.n_groups) - 4, 1)
    scatter = math.sqrt(
        float(sample.weights @ residual**2) / (max(sample.size - 4, 1) * float(sample.weights.mean()))
    )
    covariance = robust.covariance(jacobian, residual, sample.weights, sample.groups, delta)
    # N_c = exp(u / alpha_N) at the mean size, D_c likewise.
    constants = []
    for i, center in enumerate(means):
        turn = np.zeros(4)
        turn[i], turn[i + 2] = 1 / theta[i + 2], -theta[i] / theta[i + 2] ** 2
        error = math.sqrt(max(float(turn @ covariance @ turn), 0.0))
        constants.append(uncertainty.log_interval(float(theta[i] / theta[i + 2]) + center, error, dof))
    errors = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    exponents = [uncertainty.interval(float(theta[i]), float(errors[i]), dof) for i in (2, 3)]
    ends = zip(("alpha_N", "alpha_D"), theta[2:], strict=True)
    found = [f"{name} ran to its bound {v:.3g}" for name, v in ends if not 0.00525 < v < 2.985]
    status: Status = "at_bound" if found else "ok"
    if not found and np.ptp(n - d) < ONE_RATIO:
        status = "flat"
        found = ["tokens per parameter are one ratio: either term may stand for the other; add others"]
    fit = _Fit(theta, covariance, scatter, dof, *means)
    (n_c, d_c), (alpha_n, alpha_d) = constants, exponents
    return KaplanLaw(
        n_c, d_c, alpha_n, alpha_d, objective, delta, fit, status=status, reasons=tuple(found), sample=sample
    )


def _terms(theta: Array, n: Array, d: Array) -> tuple[Array, Array]:
    """Return ln L, and the share of size in it."""
    u, v, alpha_n, alpha_d = theta
    size, data = (u - alpha_n * n) / alpha_d, v / alpha_d - d
    return np.asarray(alpha_d * np.logaddexp(size, data)), np.asarray(expit(size - data))


def _jacobian(theta: Array, n: Array, d: Array) -> Array:
    u, v, alpha_n, alpha_d = theta
    log_loss, share = _terms(theta, n, d)
    bend = log_loss - share * (u - alpha_n * n) - (1 - share) * v
    return np.column_stack([share, 1 - share, -share * n, bend / alpha_d])
