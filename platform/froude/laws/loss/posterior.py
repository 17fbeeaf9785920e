"""Posterior of the loss law under a prior on its exponents, for proxies too few or too small to determine them.

alpha and beta are normal, E is uniform between 0 and the smallest loss, and for each (alpha, beta, E) the
terms A, B >= 0 follow linearly from the relative residuals; the residual variance has a scaled inverse
chi-square prior.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from froude.laws.loss.fit import EXPONENTS, Problem
from froude.laws.stats import uncertainty
from froude.laws.stats.frames import Array

# Relative sd of the final loss between seeds of a small proxy, and the weight of that belief in degrees of
# freedom: measured on byte-level proxies of 26·width² parameters (widths 32 to 96), 1.4% between seeds.
NOISE = 0.015
NOISE_DOF = 8
DRAWS = 8_000
EXPONENT_POINTS, FLOOR_POINTS, REACH = 41, 64, 4.0


@dataclass(frozen=True)
class ExponentPrior:
    """Normal beliefs about alpha and beta: (mean, standard deviation) each."""

    alpha: tuple[float, float]
    beta: tuple[float, float]

    @classmethod
    def of(cls, prior: object) -> "ExponentPrior":
        """Read {"alpha": (mean, sd), "beta": (mean, sd)}; ValueError if anything else is given."""
        rule = 'prior must be {"alpha": (mean, sd), "beta": (mean, sd)} with positive numbers'
        if isinstance(prior, ExponentPrior):
            return prior
        if not isinstance(prior, Mapping) or set(prior) != {"alpha", "beta"}:
            raise ValueError(f"{rule}, but got {prior!r}.")
        pairs = []
        for name in ("alpha", "beta"):
            try:
                mean, sd = (float(v) for v in prior[name])
            except (TypeError, ValueError):
                raise ValueError(f"{rule}, but {name} is {prior[name]!r}.") from None
            if not (math.isfinite(mean) and math.isfinite(sd) and mean > 0 and sd > 0):
                raise ValueError(f"{rule}, but {name} is {prior[name]!r}.")
            pairs.append((mean, sd))
        return cls(*pairs)


@dataclass(frozen=True, eq=False)
class Posterior:
    """Draws of (E, A', B', alpha, beta, relative noise sd), centred as in `Problem`, and the mode as a theta."""

    theta: Array
    floor: Array
    size: Array
    data: Array
    alpha: Array
    beta: Array
    noise: Array

    def losses(self, n: float, d: float, rng: np.random.Generator) -> Array:
        """Return draws of the loss of one new run at a centred (ln params, ln tokens), its noise included."""
        with np.errstate(over="ignore"):
            mean = self.floor + self.size * np.exp(-self.alpha * n) + self.data * np.exp(-self.beta * d)
        return np.asarray(mean * (1 + self.noise * rng.standard_normal(mean.size)))


def posterior(problem: Problem, prior: ExponentPrior, *, draws: int = DRAWS, seed: int = 0) -> Posterior:
    """Return the posterior given the rows of `problem` (whose `delta` is not used: residuals are relative)."""
    alpha, beta = _exponent_grid(prior.alpha), _exponent_grid(prior.beta)
    least = float(problem.loss.min())
    floor = least * (np.arange(FLOOR_POINTS) + 0.5) / FLOOR_POINTS
    size, data, error = _project(problem, alpha, beta, floor)
    n = float(problem.weights.sum())
    belief = _log_prior(alpha, prior.alpha)[:, None, None] + _log_prior(beta, prior.beta)[None, :, None]
    log_density = belief - 0.5 * (NOISE_DOF + n) * np.log(NOISE_DOF * NOISE**2 + error)
    density = np.exp(log_density - log_density.max())
    rng = np.random.default_rng(seed)
    picked = rng.choice(density.size, draws, p=(density / density.sum()).ravel())
    i, j, k = np.unravel_index(picked, density.shape)
    noise = np.sqrt((NOISE_DOF * NOISE**2 + error[i, j, k]) / rng.chisquare(NOISE_DOF + n, draws))
    theta = _mode(problem, prior, tuple(int(v) for v in np.unravel_index(density.argmax(), density.shape)))
    return Posterior(theta, floor[k], size[i, j, k], data[i, j, k], alpha[i], beta[j], noise)


def modes(
    problem: Problem, prior: ExponentPrior, groups: NDArray[np.intp], n: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Return the posterior mode given each of `n` resamples of the groups, and its objective."""
    thetas, values = [], []
    for _ in range(n):
        drawn = problem.weighted(problem.weights * uncertainty.resample(groups, rng))
        thetas.append(posterior(drawn, prior, draws=1).theta)
        values.append(drawn.objective(thetas[-1]))
    return np.array(thetas), np.array(values)


def _exponent_grid(belief: tuple[float, float]) -> Array:
    mean, sd = belief
    return np.linspace(max(mean - REACH * sd, EXPONENTS[0]), mean + REACH * sd, EXPONENT_POINTS)


def _log_prior(values: Array, belief: tuple[float, float]) -> Array:
    return np.asarray(-0.5 * ((values - belief[0]) / belief[1]) ** 2)


def _project(problem: Problem, alpha: Array, beta: Array, floor: Array) -> tuple[Array, Array, Array]:
    """Solve min over A', B' >= 0 of sum w (1 - (E + A' n^-alpha + B' d^-beta) / L)² on the grid; also its minimum."""
    w, loss = problem.weights, problem.loss
    xs = np.exp(-np.outer(alpha, problem.n)) / loss
    xd = np.exp(-np.outer(beta, problem.d)) / loss
    ss, dd, sd = (w * xs**2).sum(1), (w * xd**2).sum(1), (xs * w) @ xd.T
    # The target 1 - E/L is linear in E, so its products with the columns are too.
    sy = (xs @ w)[:, None] - np.outer(xs @ (w / loss), floor)
    dy = (xd @ w)[:, None] - np.outer(xd @ (w / loss), floor)
    yy = ((1 - np.outer(floor, 1 / loss)) ** 2) @ w
    ss, dd, sd = ss[:, None, None], dd[None, :, None], sd[:, :, None]
    sy, dy = sy[:, None, :], dy[None, :, :]
    det = np.maximum(ss * dd - sd**2, 1e-12 * ss * dd)
    size, data = (dd * sy - sd * dy) / det, (ss * dy - sd * sy) / det
    only_size, only_data = np.maximum(sy / ss, 0.0), np.maximum(dy / dd, 0.0)
    size_wins = only_size * sy >= only_data * dy
    inside = (size >= 0) & (data >= 0)
    size = np.where(inside, size, np.where(size_wins, only_size, 0.0))
    data = np.where(inside, data, np.where(size_wins, 0.0, only_data))
    error = yy - 2 * (size * sy + data * dy) + ss * size**2 + dd * data**2 + 2 * sd * size * data
    return size, data, np.maximum(error, 0.0)


def _mode(problem: Problem, prior: ExponentPrior, cell: tuple[int, ...]) -> Array:
    """Return the theta of highest density, refined from the best cell of the grid."""
    alpha, beta = _exponent_grid(prior.alpha), _exponent_grid(prior.beta)
    least = float(problem.loss.min())
    n = float(problem.weights.sum())
    start = [alpha[cell[0]], beta[cell[1]], (cell[2] + 0.5) / FLOOR_POINTS]

    def cost(x: Array) -> float:
        error = _project(problem, x[:1], x[1:2], least * x[2:])[2]
        belief = _log_prior(x[:1], prior.alpha) + _log_prior(x[1:2], prior.beta)
        return float(0.5 * (NOISE_DOF + n) * np.log(NOISE_DOF * NOISE**2 + error.item()) - belief.item())

    limits = [(alpha[0], alpha[-1]), (beta[0], beta[-1]), (1e-6, 1.0)]
    found = minimize(
        cost, start, method="Nelder-Mead", bounds=limits, options={"xatol": 1e-7, "fatol": 1e-10}
    )
    x = np.asarray(found.x, dtype=np.float64)
    size, data, _ = _project(problem, x[:1], x[1:2], least * x[2:])
    terms = np.maximum([size.item(), data.item(), least * x[2]], least * 1e-7)
    return np.array([*np.log(terms), x[0], x[1]])
