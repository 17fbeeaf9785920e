"""Bounded least squares with Huber's loss, and the covariance of what it finds: shared by the laws of losses."""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from froude.laws.stats.frames import Array

DELTA = 1e-3  # Huber's threshold on ln loss (Hoffmann et al. 2203.15556, eq. 5)
REFINED = 3  # starting points whose least squares are refined
MANY = 50_000  # rows; of more, the search from the starts sees only SEARCHED of them, drawn at random
SEARCHED = 2_000
SETTLED = 1e-12  # a step on many rows that gains a smaller share of the objective is the last
STEPS, SHARES = 60, (1.0, 0.25, 0.06, 0.015, 0.004)  # the first share of a step that gains anything is taken
BANDWIDTH = 0.75  # in sds of the residuals: that of Hall and Sheather (1988) for a median of 40 rows

Rows = NDArray[np.intp] | slice


def objective(residual: Array, weights: Array, delta: float) -> float:
    """Return the weighted sum of Huber's terms."""
    psi = np.clip(residual, -delta, delta)
    return float((weights * psi) @ (residual - 0.5 * psi))


def minimise(
    residual: Callable[[Array], Array],
    jacobian: Callable[[Array], Array],
    starts: Iterable[Array],
    bounds: tuple[Array, Array],
    weights: Array,
    delta: float,
) -> tuple[Array, float]:
    """Return the best local minimum of the weighted sum of Huber's terms, and its value.

    Plain least squares leads from each start to a valley; the best few of those points are refined.
    """
    low, high = bounds
    margin = 1e-9 * np.maximum(np.minimum(high - low, 1.0), 1e-6)

    def huber(z: Array) -> Array:
        outer = np.sqrt(np.maximum(z, 1.0))
        terms = (np.where(z <= 1, z, 2 * outer - 1), 1 / outer, np.where(z <= 1, 0.0, -0.5 / outer**3))
        return np.asarray(weights * np.stack(terms))

    def squares(z: Array) -> Array:
        return np.asarray(weights * np.stack([z, np.ones_like(z), np.zeros_like(z)]))

    def descend(start: Array, loss: Callable[[Array], Array], tolerance: float, most: int) -> Array:
        inside = np.clip(start, low + margin, high - margin)
        options = {"x_scale": "jac", "f_scale": delta, "loss": loss, "max_nfev": most}
        tight = dict.fromkeys(("ftol", "xtol", "gtol"), tolerance)
        found = least_squares(residual, inside, jacobian, bounds=bounds, **options, **tight)
        return np.asarray(found.x, dtype=np.float64)

    def value(x: Array) -> float:
        return objective(residual(x), weights, delta)

    valleys = sorted((descend(start, squares, 1e-8, 50) for start in starts), key=value)[:REFINED]
    best = min((descend(x, huber, 1e-14, 200) for x in valleys), key=value)
    return min((best, valleys[0]), key=value), min(value(best), value(valleys[0]))


def minimise_rows(
    residual: Callable[[Array, Rows], Array],
    jacobian: Callable[[Array, Rows], Array],
    starts: Iterable[Array],
    bounds: tuple[Array, Array],
    weights: Array,
    delta: float,
) -> tuple[Array, float]:
    """As `minimise`, of functions of parameters and rows.

    Of more than MANY rows, the search sees SEARCHED of them; from where it ends, Newton steps on all rows go on.
    """

    def search(rows: Rows) -> tuple[Array, float]:
        return minimise(
            lambda t: residual(t, rows), lambda t: jacobian(t, rows), starts, bounds, weights[rows], delta
        )

    every = slice(None)
    if weights.size <= MANY:
        return search(every)
    x = search(drawn(weights.size, SEARCHED))[0]
    left = residual(x, every)
    value = objective(left, weights, delta)
    for _ in range(STEPS):
        step, promise = _newton(jacobian(x, every), left, weights, delta, x, bounds)
        before = value
        for share in SHARES if promise > SETTLED * value else ():
            moved = np.clip(x + share * step, *bounds)
            there = residual(moved, every)
            if (new := objective(there, weights, delta)) < value:
                x, left, value = moved, there, new
                break
        if before - value <= SETTLED * before:
            break
    return x, value


def _newton(
    jacobian: Array, residual: Array, weights: Array, delta: float, x: Array, bounds: tuple[Array, Array]
) -> tuple[Array, float]:
    """Return the step to the minimum of many rows, and what it should gain; no parameter leaves its bound outwards.

    Huber's terms are curved within `delta` only. So many errors have the curvature of their density (see `covariance`).
    """
    gradient = jacobian.T @ (weights * np.clip(residual, -delta, delta))
    free = ~(((x <= bounds[0]) & (gradient > 0)) | ((x >= bounds[1]) & (gradient < 0)))
    part = jacobian[:, free]
    curved = _inside(np.abs(residual), delta) * (part.T @ (part * weights[:, None]))
    step = np.zeros_like(x)
    step[free] = -np.linalg.pinv(curved, rcond=1e-14, hermitian=True) @ gradient[free]
    return step, float(-0.5 * gradient @ step)


def drawn(size: int, most: int) -> Rows:
    """Return `most` of `size` rows, drawn at random with one seed and in order, or all if they are no more."""
    return np.sort(np.random.default_rng(0).choice(size, most, replace=False)) if size > most else slice(None)


def covariance(
    jacobian: Array, residual: Array, weights: Array, groups: NDArray[np.intp], delta: float
) -> Array:
    """Return the cluster-robust covariance of a Huber fit: parameters × parameters.

    Residuals within a group may depend on each other in any way (White 1980 with groups, for M-estimators); errors
    are taken to have one density, whose mass within `delta` is the slope of the mean score (Huber 1964). Where `delta`
    lies below the noise that mass is an average over BANDWIDTH, as for quantile regressions (Hendricks and Koenker
    1992). Combinations of parameters that no row determines get none.
    """
    norms = np.linalg.norm(jacobian * np.sqrt(weights)[:, None], axis=0)
    norms = np.where(norms > 0, norms, 1.0)
    unit = jacobian / norms
    rows, parameters = jacobian.shape
    # This many residuals nearly vanish because the fit made them do so: they say nothing about the errors' density.
    spread = np.sort(np.abs(residual))[min(parameters, rows - 1) :]
    inside = _inside(spread, delta)
    count = int(groups.max()) + 1
    scores = np.zeros((count, parameters))
    np.add.at(scores, groups, unit * (weights * np.clip(residual, -delta, delta))[:, None])
    inverse = np.linalg.pinv(inside * (unit.T @ (unit * weights[:, None])), rcond=1e-12, hermitian=True)
    few = (rows - 1) / max(rows - parameters, 1) * count / max(count - 1, 1)
    return np.asarray(inverse @ (scores.T @ scores) @ inverse * few / np.outer(norms, norms))


def _inside(spread: Array, delta: float) -> float:
    """Return the mass of the errors' density within `delta`, from absolute residuals."""
    reach = max(delta, BANDWIDTH * 1.4826 * float(np.median(spread)))
    return float(np.mean(spread <= reach)) * delta / reach


def undetermined(jacobian: Array) -> bool:
    """Return whether some combination of the parameters leaves every fitted value unchanged."""
    norms = np.linalg.norm(jacobian, axis=0)
    if not np.all(norms > 0):
        return True
    singular = np.linalg.svd(np.linalg.qr(jacobian / norms)[1], compute_uv=False)
    return bool(singular[-1] < 1e-7 * singular[0])
