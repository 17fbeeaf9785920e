"""Bounded least squares with Huber's loss, and the covariance of what it finds: shared by the laws of losses."""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from froude.laws.stats.frames import Array

DELTA = 1e-3  # Huber's threshold on ln loss (Hoffmann et al. 2203.15556, eq. 5)
REFINED = 3  # starting points whose least squares are refined
BANDWIDTH = 0.75  # in sds of the residuals: that of Hall and Sheather (1988) for a median of 40 rows


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
    reach = max(delta, BANDWIDTH * 1.4826 * float(np.median(spread)))
    inside = float(np.mean(spread <= reach)) * delta / reach
    count = int(groups.max()) + 1
    scores = np.zeros((count, parameters))
    np.add.at(scores, groups, unit * (weights * np.clip(residual, -delta, delta))[:, None])
    inverse = np.linalg.pinv(inside * (unit.T @ (unit * weights[:, None])), rcond=1e-12, hermitian=True)
    few = (rows - 1) / max(rows - parameters, 1) * count / max(count - 1, 1)
    return np.asarray(inverse @ (scores.T @ scores) @ inverse * few / np.outer(norms, norms))


def undetermined(jacobian: Array) -> bool:
    """Return whether some combination of the parameters leaves every fitted value unchanged."""
    norms = np.linalg.norm(jacobian, axis=0)
    if not np.all(norms > 0):
        return True
    singular = np.linalg.svd(np.linalg.qr(jacobian / norms)[1], compute_uv=False)
    return bool(singular[-1] < 1e-7 * singular[0])
