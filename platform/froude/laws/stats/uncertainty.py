"""Intervals and outliers: the parts of inference that several laws share."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from froude.laws.stats.frames import Array, Mask
from froude.laws.stats.results import NO_ESTIMATE, Estimate

LEVEL = 0.95  # of every Estimate that is not asked for at another level
UNLIKELY = 0.01  # level of the tests whether the runs contradict a law


def t_quantile(level: float, dof: int) -> float:
    """Return the two-sided Student t quantile at `level` with `dof` degrees of freedom (inf without any)."""
    return float(stats.t.ppf(0.5 + level / 2, dof)) if dof > 0 else math.inf


def interval(value: float, se: float, dof: int, level: float = LEVEL) -> Estimate:
    """Return the symmetric t interval around `value`."""
    if not (math.isfinite(value) and math.isfinite(se)):
        return NO_ESTIMATE
    half = t_quantile(level, dof) * se if se > 0 else 0.0
    return Estimate(value, se, value - half, value + half)


def log_interval(log_value: float, log_se: float, dof: int, level: float = LEVEL) -> Estimate:
    """Return the t interval of exp(x) for an x with the given standard error; the se is first order."""
    inner = interval(log_value, log_se, dof, level)
    value = bounded_exp(inner.value)
    return Estimate(value, value * inner.se, bounded_exp(inner.low), bounded_exp(inner.high))


def bounded_exp(x: float) -> float:
    """Return exp(x), with inf instead of OverflowError."""
    return math.exp(x) if x < 709 else (math.inf if x == x else x)


def beyond_noise(gained: float, extra: int, variance: float, dof: int, error: float = UNLIKELY) -> bool:
    """Whether `extra` more parameters take off a larger sum of squares, `gained`, than noise would let them (F test).

    `variance` is the noise's, with `dof` degrees of freedom; `error` is the test's level. False where either is none.
    """
    if extra < 1 or dof < 1:
        return False
    return gained / extra > float(stats.f.isf(error, extra, dof)) * variance


def quantiles(draws: Array, level: float) -> tuple[float, float]:
    """Return the central interval of `draws` at `level`."""
    low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2])
    return float(low), float(high)


def standard_deviation(draws: Array) -> float:
    """Return the sample standard deviation, NaN for fewer than two draws."""
    return float(np.std(draws, ddof=1)) if draws.size > 1 else math.nan


def resample(groups: NDArray[np.intp], rng: np.random.Generator) -> Array:
    """Draw groups with replacement and return how often each row was drawn; all rows of a group move together."""
    n = int(groups.max()) + 1
    counts = np.bincount(rng.integers(0, n, n), minlength=n)
    return counts[groups].astype(np.float64)


def outliers(left_out: Array, error: float = 0.01) -> Mask:
    """Mark residuals, each from a fit without its own group, that a normal core would not produce.

    The scale is 1.4826 times the median absolute value, which outliers hardly move; the bound is the normal
    quantile with Bonferroni's correction, so that a clean frame has any mark with probability of about
    `error`.
    """
    if left_out.size < 4:
        return np.zeros(left_out.size, dtype=bool)
    size = np.abs(left_out)
    # t with few degrees of freedom stands in for the uncertainty of the scale itself.
    bound = float(stats.t.isf(error / (2 * left_out.size), max(left_out.size - 3, 1)))
    scale = 1.4826 * float(np.median(size))
    return np.asarray(size > max(bound * scale, 1e-9), dtype=bool)


def studentized_outliers(residual: Array, leverage: Array, parameters: int, error: float = 0.01) -> Mask:
    """Mark rows of a linear fit whose residual is too large for the scatter of the others, by Student's t.

    Both the prediction and the scatter are those of the fit without the row (closed forms), with Bonferroni's
    correction. A row that alone determines a parameter has nothing to be compared with and is not marked.
    """
    dof = residual.size - parameters - 1
    if dof < 1:
        return np.zeros(residual.size, dtype=bool)
    left = np.maximum(1 - leverage, 1e-9)
    rest = np.maximum(float(residual @ residual) - residual**2 / left, 0.0) / dof
    bound = float(stats.t.isf(error / (2 * residual.size), dof))
    # Rounding is no scatter: rows that follow the law exactly are compared with 1e-9.
    floor = 1e-9 * np.sqrt(left)
    return np.asarray(
        (np.abs(residual) > np.maximum(bound * np.sqrt(rest * left), floor)) & (leverage < 1 - 1e-6)
    )
