"""What a forecast is compared with: a law whose exponents were fixed before any run here, and a line in compute.

L = E + A/N^.34 + B/D^.28 has the exponents of Hoffmann et al. 2203.15556 (approach 3); three numbers are left to fit,
which few runs determine. It is frozen: a forecast that errs more has gained nothing from exponents of its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy.optimize import nnls
from scipy.stats import t as student_t

from froude.laws.drawing import rows as drawn
from froude.laws.drawing.panel import Panel
from froude.laws.law import Law
from froude.laws.stats import uncertainty
from froude.laws.stats.frames import Array, Mask, Sample, plausible, read
from froude.laws.stats.results import NO_ESTIMATE, Estimate, Status, positive

ALPHA, BETA = 0.34, 0.28
MIN_ROWS = 4
LEVEL = 0.95
LEAST_SPAN = 3.0  # in compute: less of it says nothing of a slope


@dataclass(frozen=True, eq=False)
class Comparator(Law):
    """E (nats per token), A and B, none below zero; their standard errors hold while none of them is zero.

    `slope` and `at_one` are of the line ln L = at_one + slope ln C through the runs that no cheaper one beats, C = 6ND.
    """

    E: Estimate
    A: Estimate
    B: Estimate
    slope: float = math.nan
    at_one: float = math.nan

    def predict(self, *, params: float, tokens: float) -> float:
        """Return the loss of a run, nats per token; ValueError without a fit, or for a size that is not positive."""
        n, d = positive("params", params), positive("tokens", tokens)
        if not math.isfinite(self.E.value):
            raise self.refusal()
        return float(self._losses(np.array([n]), np.array([d]))[0])

    def by_compute(self, *, flops: float) -> float:
        """Return the loss on the line in compute, nats per token; NaN where its runs span less than 3 times."""
        return self._on_line(math.log(positive("flops", flops)))

    def losses(self, *, params: float, tokens: float) -> tuple[float, float]:
        """Return `predict`'s loss of a run and that of the line in compute, NaN where there is none."""
        known = math.isfinite(self.E.value)
        return (
            self.predict(params=params, tokens=tokens) if known else math.nan,
            self._on_line(math.log(6.0) + math.log(params) + math.log(tokens)),
        )

    def residuals(self) -> tuple[Array, Array, Mask] | None:
        if not math.isfinite(self.E.value):
            return None
        fitted, loss = self._losses(self.sample["params"], self.sample["tokens"]), self.sample["loss"]
        return fitted, loss - fitted, uncertainty.outliers(np.log(loss / fitted))

    def drawing(self) -> tuple[Panel, ...]:
        """Losses against tokens with the law's curve for each size, and the residuals."""
        rows = drawn.thinned(self.rows.filter(drawn.SIZED))
        fitted = math.isfinite(self.E.value)

        def curve(params: float, tokens: Array) -> Array:
            return self._losses(np.full(tokens.size, params), tokens)

        series = drawn.losses(rows, curve if fitted else None, drawn.around(rows))
        text = f"exponents {ALPHA} and {BETA}, fixed" if fitted else ""
        return drawn.loss_panel(rows, series, text), drawn.residual_panel(rows)

    def _on_line(self, log_flops: float) -> float:
        return uncertainty.bounded_exp(self.at_one + self.slope * log_flops)

    def _losses(self, params: Array, tokens: Array) -> Array:
        return np.asarray(_terms(params, tokens) @ [self.E.value, self.A.value, self.B.value])


def comparator(
    frame: pl.DataFrame | pl.LazyFrame,
    *,
    weights: str | None = None,
    groups: str | Sequence[str] | None = None,
) -> Comparator:
    """Fit E, A, B >= 0 to `params, tokens, loss` by least squares of the relative error; exponents stay as published.

    Status `too_few_points` below 4 rows or without two sizes and two horizons, `at_bound` where a term vanished. Raises
    as `froude.laws.stats.frames.read` does.
    """
    sample = read(frame, ["params", "tokens"], loss=True, weights=weights, groups=groups)
    plausible(sample, ["params", "tokens", "loss"])
    return comparator_of(sample)


def comparator_of(sample: Sample) -> Comparator:
    """Fit it to rows that were read for another law."""
    params, tokens, loss = sample["params"], sample["tokens"], sample["loss"]
    sizes, horizons = np.unique(params).size, np.unique(tokens).size
    if sample.size < MIN_ROWS or min(sizes, horizons) < 2:
        have = f"{sample.size} rows, {sizes} sizes, {horizons} horizons; needs {MIN_ROWS}, 2, 2"
        none = NO_ESTIMATE
        return Comparator(none, none, none, status="too_few_points", reasons=(have,), sample=sample)
    root = np.sqrt(sample.weights)
    design = _terms(params, tokens) / loss[:, None] * root[:, None]
    scale = np.linalg.norm(design, axis=0)
    found, _ = nnls(design / scale, root)
    theta = found / scale
    errors, dof = _errors(design / scale, found, root, scale)
    reach = float(student_t.ppf((1 + LEVEL) / 2, dof))
    estimates = [
        Estimate(float(v), float(e), max(float(v - reach * e), 0.0), float(v + reach * e))
        for v, e in zip(theta, errors, strict=True)
    ]
    gone = [f"{name} is 0" for name, value in zip("EAB", theta, strict=True) if value == 0]
    status: Status = "at_bound" if gone else "ok"
    slope, at_one = _line(6.0 * params * tokens, loss)
    e, a, b = estimates
    return Comparator(e, a, b, slope, at_one, status=status, reasons=tuple(gone), sample=sample)


def _terms(params: Array, tokens: Array) -> Array:
    return np.column_stack([np.ones(params.size), params**-ALPHA, tokens**-BETA])


def _errors(design: Array, theta: Array, target: Array, scale: Array) -> tuple[Array, int]:
    """Standard errors of least squares over the terms that did not vanish, NaN for the others; degrees of freedom."""
    kept = theta > 0
    dof = max(design.shape[0] - int(kept.sum()), 1)
    scatter = float(np.sum((design @ theta - target) ** 2)) / dof
    errors = np.full(theta.size, math.nan)
    errors[kept] = np.sqrt(scatter * np.diag(np.linalg.pinv(design[:, kept].T @ design[:, kept])))
    return errors / scale, dof


def _line(flops: Array, loss: Array) -> tuple[float, float]:
    """Slope and value at one FLOP of ln L over ln C, through the runs whose loss no cheaper run reaches."""
    order = np.lexsort((loss, flops))
    best = np.minimum.accumulate(loss[order])
    front = order[loss[order] < np.concatenate([[math.inf], best[:-1]])]
    if flops[front].max() < LEAST_SPAN * flops[front].min():
        return math.nan, math.nan
    slope, at_one = np.polyfit(np.log(flops[front]), np.log(loss[front]), 1)
    return float(slope), float(at_one)
