"""Numerical core of the loss law L = E + A/N^alpha + B/D^beta: objective, gradient and multi-start search.

The work is done in theta = (ln A', ln B', ln E, alpha, beta) with N and D divided by their geometric means,
where A' and B' are the two terms at those means. Without this centring A and alpha are almost perfectly
correlated, and a quasi-Newton method stops early (Besiroglu et al. 2404.10102 found the published
Chinchilla fit to be such a case).
"""

import math
import warnings
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, minimize, nnls

from froude.laws.stats import robust
from froude.laws.stats.frames import Array

EXPONENTS = (0.005, 3.0)  # bounds of alpha and beta; a fit that reaches one has status at_bound
VANISHED = 1e-5  # lower bound of E and of both terms at the mean size and horizon, over the smallest loss
TERM_REACH = 2.0  # upper bound of both terms there, in ln over the largest loss
EXACT = 1e-25  # an objective so small is rounding: the rows follow the law exactly
SEARCH_ROWS = 2_000  # starts are searched on at most this many rows
AGREEING = 8  # starts that must end in the same best point before the search stops early
POLISH_ROWS = 50_000  # above, the polish (an SVD of rows × 5 per step) would cost more than it gains


@dataclass(frozen=True, eq=False)
class Problem:
    """Rows of a loss law in centred logs: `n` = ln N - mean, `d` = ln D - mean, `loss` in nats, `weights` per row.

    `delta` is the Huber threshold on ln L; None means least squares of L in nats. `tied` sets alpha = beta.
    """

    n: Array
    d: Array
    loss: Array
    weights: Array
    n_mean: float
    d_mean: float
    delta: float | None
    tied: bool

    @classmethod
    def of(
        cls, params: Array, tokens: Array, loss: Array, weights: Array, delta: float | None, tied: bool
    ) -> "Problem":
        n, d = np.log(params), np.log(tokens)
        return cls(n - n.mean(), d - d.mean(), loss, weights, float(n.mean()), float(d.mean()), delta, tied)

    @cached_property
    def log_loss(self) -> Array:
        return np.asarray(np.log(self.loss))

    def take(self, rows: NDArray[np.intp]) -> "Problem":
        """Return the problem on some rows, in the same coordinates."""
        return replace(self, n=self.n[rows], d=self.d[rows], loss=self.loss[rows], weights=self.weights[rows])

    def weighted(self, weights: Array) -> "Problem":
        """Return the problem with other weights, without the rows of weight zero."""
        return replace(self, weights=weights).take(np.flatnonzero(weights > 0))

    def bounds(self) -> list[tuple[float, float]]:
        low, high = float(np.log(self.loss.min())), float(np.log(self.loss.max()))
        term = (low + math.log(VANISHED), high + TERM_REACH)
        return [term, term, (low + math.log(VANISHED), low), EXPONENTS, EXPONENTS]

    def terms(self, theta: Array) -> tuple[Array, Array, float]:
        """Return A/N^alpha and B/D^beta per row, and E."""
        a, b, e, alpha, beta = theta
        return np.exp(a - alpha * self.n), np.exp(b - beta * self.d), float(np.exp(e))

    def fitted(self, theta: Array) -> Array:
        """Return the law's loss of each row, nats per token."""
        size, data, floor = self.terms(theta)
        return size + data + floor

    def residual(self, theta: Array) -> Array:
        """Return ln(fitted) - ln(loss), or fitted - loss where `delta` is None."""
        fitted = self.fitted(theta)
        return fitted - self.loss if self.delta is None else np.log(fitted) - self.log_loss

    def objective(self, theta: Array) -> float:
        """Return the weighted sum of Huber terms (half squares where `delta` is None)."""
        return self.value_and_gradient(theta)[0]

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        size, data, floor = self.terms(theta)
        fitted = size + data + floor
        if self.delta is None:
            r = fitted - self.loss
            psi, scale = r, self.weights
        else:
            r = np.log(fitted) - self.log_loss
            psi = np.minimum(
                np.maximum(r, -self.delta), self.delta
            )  # np.clip takes three times as long on few rows
            scale = self.weights / fitted
        value = float((self.weights * psi) @ (r - 0.5 * psi))
        g = scale * psi
        g_size, g_data = g * size, g * data
        slopes = (-float(self.n @ g_size), -float(self.d @ g_data))
        return value, np.array([g_size.sum(), g_data.sum(), floor * g.sum(), *slopes])

    def jacobian(self, theta: Array) -> Array:
        """Return d residual / d theta, rows × 5."""
        size, data, floor = self.terms(theta)
        columns = np.stack([size, data, np.full_like(size, floor), -self.n * size, -self.d * data], axis=1)
        return columns if self.delta is None else columns / (size + data + floor)[:, None]

    def unpack(self, theta: Array) -> tuple[float, float, float, float, float]:
        """Return E, A, B, alpha, beta in the units of the frame."""
        a, b, e, alpha, beta = (float(v) for v in theta)
        with np.errstate(over="ignore"):
            big_a, big_b = float(np.exp(a + alpha * self.n_mean)), float(np.exp(b + beta * self.d_mean))
        return float(np.exp(e)), big_a, big_b, alpha, beta

    # Tied fits search (ln A', ln B', ln E, alpha); `free` and `full` translate.
    def free(self, theta: Array) -> Array:
        return theta[:4] if self.tied else theta

    def full(self, free: Array) -> Array:
        return np.append(free, free[3]) if self.tied else free


def solve(problem: Problem, *, seed: int = 0) -> tuple[Array, float]:
    """Return the best theta of a multi-start search and its objective."""
    rng = np.random.default_rng(seed)
    small = problem
    if problem.loss.size > SEARCH_ROWS:
        small = problem.take(rng.choice(problem.loss.size, SEARCH_ROWS, replace=False))
    best, least, agree = np.empty(0), np.inf, 0
    for start in starts(small, rng):
        theta, value = descend(small, start)
        agree = agree + 1 if abs(value - least) <= 1e-7 * least else 1 if value < least else agree
        if value < least:
            best, least = theta, value
        # Starts alternate between the grid and chance; once this many ended in the best point, the rest would
        # too.
        if agree >= AGREEING or least < EXACT:
            break
    best = _polish(small, best)
    if small is not problem:
        best = descend(problem, best)[0]
        best = _polish(problem, best)
    return best, problem.objective(best)


def starts(problem: Problem, rng: np.random.Generator, *, best: int = 6, random: int = 18) -> list[Array]:
    """Return start points: the best of a variable-projection grid over the exponents, and random ones.

    For fixed exponents the law is linear in (E, A', B') >= 0, so each grid point is one non-negative least
    squares problem on relative errors (the idea of 2603.22339).
    """
    grid = np.arange(0.05, 1.51, 0.05 if problem.tied else 0.1)
    low = float(np.log(problem.loss.min()))
    root = np.sqrt(problem.weights)
    sizes = {g: root * np.exp(-g * problem.n) / problem.loss for g in grid}
    datas = {g: root * np.exp(-g * problem.d) / problem.loss for g in grid}
    pairs = [(g, g) for g in grid] if problem.tied else [(g, h) for g in grid for h in grid]
    scored: list[tuple[float, Array]] = []
    for alpha, beta in pairs:
        design = np.stack([sizes[alpha], datas[beta], root / problem.loss], axis=1)
        # QR first: the active-set solver then works on a 3 × 3 system whatever the number of rows.
        q, r = np.linalg.qr(design)
        x, _ = nnls(r, q.T @ root)
        error = float(np.sum((design @ x - root) ** 2))
        logs = np.log(np.maximum(x, np.exp(low - 12)))
        scored.append((error, np.array([*logs, alpha, beta])))
    scored.sort(key=lambda pair: pair[0])
    share = rng.dirichlet(np.ones(3), random)
    exponents = rng.uniform(0.05, 1.5, (random, 2))
    drawn = [np.array([*(np.log(s + 1e-3) + low), *x]) for s, x in zip(share, exponents, strict=True)]
    grid_starts = [theta for _, theta in scored[:best]]
    mixed = [theta for pair in zip(grid_starts, drawn, strict=False) for theta in pair]
    return mixed + drawn[len(grid_starts) :]


def descend(problem: Problem, start: Array) -> tuple[Array, float]:
    """Run SLSQP with the analytic gradient to tight tolerances, rescaled until it gains nothing more.

    It moves E, A' and B' themselves: in logs, a term that wants to vanish has no gradient left and the search
    crawls. SLSQP needs fewer evaluations here than L-BFGS-B, and no threaded BLAS on its 5 × 5 systems: where
    other processes use the cores, waking those threads made L-BFGS-B ten times slower.
    """
    low, high = np.array(problem.bounds()[:4] if problem.tied else problem.bounds()).T
    theta = problem.full(np.clip(problem.free(start), low, high))
    value = problem.objective(theta)
    for _ in range(4):
        if value < EXACT:
            break
        scale = 10.0 / value

        def scaled(x: Array, scale: float = scale) -> tuple[float, Array]:
            f, g = problem.value_and_gradient(problem.full(logs(x)))
            if problem.tied:
                g = np.array([g[0], g[1], g[2], g[3] + g[4]])
            g[:3] /= x[:3]
            return scale * f, scale * g

        with warnings.catch_warnings():
            # SLSQP may step out of bounds by one unit in the last place; scipy clips it and says so.
            warnings.filterwarnings("ignore", "Values in x were outside bounds", RuntimeWarning)
            result = minimize(
                scaled,
                exponentials(problem.free(theta)),
                jac=True,
                method="SLSQP",
                bounds=np.stack([exponentials(low), exponentials(high)], axis=1),
                options={"ftol": 1e-14, "maxiter": 300},
            )
        new = float(result.fun) / scale
        gained = value - new
        if new < value:
            found = logs(np.asarray(result.x, dtype=np.float64))
            theta, value = problem.full(np.clip(found, low, high)), new
        # Far from the solution the scale was set by the start, so tolerances were loose: once more from here.
        if not gained > 1e-9 * value:
            break
    return theta, value


def logs(x: Array) -> Array:
    """Return thetas (the last axis) from (A', B', E, alpha, beta)."""
    return np.concatenate([np.log(x[..., :3]), x[..., 3:]], axis=-1)


def exponentials(theta: Array) -> Array:
    """Return (A', B', E, alpha, beta) from thetas (the last axis)."""
    return np.concatenate([np.exp(theta[..., :3]), theta[..., 3:]], axis=-1)


def _polish(problem: Problem, theta: Array) -> Array:
    """Finish with scipy's robust Gauss-Newton, which converges quadratically where L-BFGS only creeps."""
    if problem.loss.size > POLISH_ROWS:
        return theta
    low, high = np.array(problem.bounds()[:4] if problem.tied else problem.bounds()).T
    inside = np.clip(problem.free(theta), low + 1e-9, high - 1e-9)

    def jacobian(x: Array) -> Array:
        full = problem.jacobian(problem.full(x))
        return np.column_stack([full[:, :3], full[:, 3] + full[:, 4]]) if problem.tied else full

    def huber(z: Array) -> Array:
        outer = np.sqrt(np.maximum(z, 1.0))
        rho = np.stack(
            [np.where(z <= 1, z, 2 * outer - 1), 1 / outer, np.where(z <= 1, 0.0, -0.5 / outer**3)]
        )
        return np.asarray(problem.weights * rho)

    def squares(z: Array) -> Array:
        return np.asarray(problem.weights * np.stack([z, np.ones_like(z), np.zeros_like(z)]))

    result = least_squares(
        lambda x: problem.residual(problem.full(x)),
        inside,
        jacobian,
        bounds=(low, high),
        loss=squares if problem.delta is None else huber,
        f_scale=1.0 if problem.delta is None else problem.delta,
        x_scale="jac",
        ftol=1e-15,
        xtol=1e-15,
        gtol=1e-15,
        max_nfev=100,
    )
    polished = problem.full(np.asarray(result.x, dtype=np.float64))
    return polished if problem.objective(polished) < problem.objective(theta) else theta


def hits_bound(problem: Problem, theta: Array) -> list[str]:
    """Name what the fit could not place inside its bounds: an exponent, E, or a term that vanished."""
    size, data, floor = problem.terms(theta)
    fitted = size + data + floor
    least = float(problem.loss.min())
    found = []
    for name, value in (("alpha", theta[3]), ("beta", theta[4])):
        if value < EXPONENTS[0] * 1.05 or value > EXPONENTS[1] * 0.995:
            found.append(f"{name} ran to its bound {value:.3g}")
    if floor < 1e-3 * least:
        found.append("E ran to zero")
    if floor > (1 - 1e-6) * least:
        found.append("E ran to the smallest loss")
    if float((size / fitted).max()) < 1e-3:
        found.append("A ran to zero")
    if float((data / fitted).max()) < 1e-3:
        found.append("B ran to zero")
    return found


def lone_arm(problem: Problem, groups: NDArray[np.intp]) -> str | None:
    """Name a size or horizon whose only run decides an exponent: three values of an axis determine its two parameters.

    A law passes through such a run whatever its noise, so neither residuals nor resamples show that noise.
    """
    if problem.tied:
        return None
    for name, values, mean in (("params", problem.n, problem.n_mean), ("tokens", problem.d, problem.d_mean)):
        found, of = np.unique(np.round(values, 3), return_inverse=True)  # a tenth of a percent is a rounding
        runs = [np.unique(groups[of == i]).size for i in range(found.size)] if found.size <= 3 else [2]
        if min(runs) == 1:
            return f"{name} {math.exp(found[int(np.argmin(runs))] + mean):.3g}"
    return None


def undetermined(problem: Problem, theta: Array) -> bool:
    """Return whether some combination of the parameters leaves every fitted loss unchanged."""
    jacobian = problem.jacobian(theta) * np.sqrt(problem.weights)[:, None]
    if problem.tied:
        jacobian = np.column_stack([jacobian[:, :3], jacobian[:, 3] + jacobian[:, 4]])
    return robust.undetermined(jacobian)
