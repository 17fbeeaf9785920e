"""Posterior of the loss law under a prior on its exponents and the noise of `froude.laws.loss.noise`.

Given the exponents and the noise, the relative residuals 1 - f / loss are linear in E, A', B' and in the two drifts:
what is left is a linear regression in closed form for each point of a grid over alpha, beta, sigma and the noise's
shapes. The grid closes in on where the density is before it is drawn from; draws in which E, A' or B' is not positive
are thrown away, which is the posterior under flat priors on positive terms. Where hardly any draw is left, the rows
contradict such a law: each draw is moved to the nearest that has none below zero, and no forecast is certified.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from froude.laws.loss import noise
from froude.laws.loss.draws import ExponentPrior, Posterior, Span, bends
from froude.laws.loss.fit import EXPONENTS, Problem
from froude.laws.stats import uncertainty
from froude.laws.stats.frames import Array

DRAWS = 4_000
PROPOSED = 4  # draws before those with terms below zero are thrown away, per draw kept
REACH = 4.0  # standard deviations of the exponents' prior that the grid spans
ZOOMS = 4  # rounds, at most, in which it closes in
SIGMA = (1e-4, 0.06)  # where it begins; relative
RIDGE = 1e-10  # of each of a design's squares: terms that the rows cannot tell apart
FEWEST = 100  # effective draws with positive terms: with fewer the rows contradict the law
LEAST_MASS = -12.0  # in ln: how unlikely positive terms may be under a point of the grid before all are alike
ROWS = 800  # of more, some of the groups are enough


def posterior(
    problem: Problem,
    prior: ExponentPrior,
    groups: NDArray[np.intp],
    *,
    draws: int = DRAWS,
    quick: bool = False,
    seed: int = 0,
) -> Posterior:
    """Return the posterior given the rows of `problem` (whose `delta` is not used: residuals are relative).

    Rows of one group share noise. `quick` takes a coarser grid: for splits, of which there are many.
    """
    rng = np.random.default_rng(seed)
    problem, groups = thinned(problem, groups, rng, ROWS)
    grid = _Grid.first(prior, problem.tied)
    for _ in range(ZOOMS):
        found = _Cells.of(problem, prior, groups, grid, None, coarse=True)
        closer = grid.closer(found, np.unique(groups).size)
        settled = closer.same(grid)
        grid = closer
        if settled:
            break
    bent = _Cells.of(problem, prior, groups, grid, None, coarse=True).draw(200, rng, None).theta
    cells = _Cells.of(
        problem, prior, groups, grid.of(11 if quick else 21, 7 if quick else 11), bent, coarse=quick
    )
    return cells.draw(draws, rng, bent)


def thinned(
    problem: Problem, groups: NDArray[np.intp], rng: np.random.Generator, rows: int
) -> tuple[Problem, NDArray[np.intp]]:
    """Return all rows, or `rows` of more, drawn at random: few long runs stay as many runs, with fewer checkpoints.

    Which are drawn does not depend on their order.
    """
    if problem.loss.size <= rows:
        return problem, groups
    order = np.lexsort((groups, problem.loss, problem.d, problem.n))
    kept = np.sort(order[rng.permutation(problem.loss.size)[:rows]])
    return problem.take(kept), np.unique(groups[kept], return_inverse=True)[1]


@dataclass(frozen=True, eq=False)
class _Grid:
    """Points of alpha, beta and sigma; `tied` keeps to alpha = beta."""

    alpha: Array
    beta: Array
    sigma: Array
    tied: bool

    @classmethod
    def first(cls, prior: ExponentPrior, tied: bool) -> "_Grid":
        ends = [_within(mean - REACH * sd, mean + REACH * sd) for mean, sd in (prior.alpha, prior.beta)]
        if tied:
            ends = [(max(low for low, _ in ends), min(high for _, high in ends))] * 2
        alpha, beta = (np.linspace(*end, 11) for end in ends)
        return cls(alpha, beta, np.geomspace(*SIGMA, 9), tied)

    def closer(self, cells: "_Cells", groups: int) -> "_Grid":
        """The grid about where the density is: four standard deviations of it to each side."""
        ends = []
        for axis, points in enumerate((self.alpha, self.beta)):
            weight = cells.density.sum(axis=tuple(i for i in range(4) if i != axis + 2))
            mean = float(weight @ points)
            step = float(points[1] - points[0])
            sd = math.sqrt(float(weight @ (points - mean) ** 2) + step**2 / 12)
            ends.append((max(mean - 4 * sd, points[0]), min(mean + 4 * sd, points[-1])))
        weight = cells.density.sum(axis=(0, 2, 3))
        log_sigma = np.log(self.sigma)
        middle, step = float(weight @ log_sigma), float(log_sigma[1] - log_sigma[0])
        half = 3 * math.sqrt(float(weight @ (log_sigma - middle) ** 2) + step**2 / 12 + 0.5 / max(groups, 1))
        low, high = max(middle - half, math.log(1e-5)), min(middle + half, math.log(0.3))
        alpha, beta = (np.linspace(*end, 11) for end in ends)
        return _Grid(alpha, beta, np.exp(np.linspace(low, high, 9)), self.tied)

    def same(self, other: "_Grid") -> bool:
        """Whether closing in once more would gain less than a fifth of the range."""
        pairs = ((self.alpha, other.alpha), (self.beta, other.beta))
        return all(np.ptp(mine) > 0.8 * np.ptp(its) for mine, its in pairs)

    def of(self, exponents: int, sigmas: int) -> "_Grid":
        """The same range with other numbers of points."""
        alpha, beta = (np.linspace(x[0], x[-1], exponents) for x in (self.alpha, self.beta))
        return _Grid(alpha, beta, np.geomspace(self.sigma[0], self.sigma[-1], sigmas), self.tied)


@dataclass(frozen=True, eq=False)
class _Cells:
    """The linear regressions at all points of a grid: `shapes` × sigmas × alphas × betas.

    `density` is the probability of each cell, whatever the signs of its terms, times `mass`, that of positive ones;
    `mean` and `covariance` are those of (A', B', E, drifts).
    """

    grid: _Grid
    shapes: list[noise.Shape]
    span: Span
    density: Array
    mass: Array
    mean: Array
    covariance: Array

    @classmethod
    def of(
        cls,
        problem: Problem,
        prior: ExponentPrior,
        groups: NDArray[np.intp],
        grid: _Grid,
        bent: Array | None,
        *,
        coarse: bool,
    ) -> "_Cells":
        """Solve all cells; the law drifts only where `bent` says where its drifts are linearised."""
        n, d, loss = problem.n, problem.d, problem.loss
        span = Span.of(n, d)
        columns = [
            np.exp(-np.outer(n, grid.alpha)) / loss[:, None],
            np.exp(-np.outer(d, grid.beta)) / loss[:, None],
        ]
        shared = [
            1 / loss,
            *(bends(bent, n, d, span.middle).T if bent is not None else ()),
            np.ones_like(loss),
        ]
        design = np.column_stack([*columns, *shared])
        weights = problem.weights / problem.weights.mean()
        sizes = grid.alpha.size, grid.beta.size
        terms = len(shared) + 1
        stiff = np.zeros(terms)
        stiff[3:] = 1 / noise.DRIFT**2
        belief = -0.5 * ((grid.alpha - prior.alpha[0]) / prior.alpha[1]) ** 2
        belief = belief[:, None] - 0.5 * ((grid.beta - prior.beta[0]) / prior.beta[1]) ** 2
        if grid.tied:
            belief = np.where(np.eye(*sizes, dtype=bool), belief, -np.inf)
        logs, means, covariances = [], [], []
        shapes = noise.shapes(groups, coarse=coarse)
        for shape in shapes:
            root = shape.root(n + d, d, groups, weights)
            volume = float(np.log(root if root.ndim == 1 else np.diag(root)).sum())
            white = noise.whitened(root, design)
            gram = white.T @ white
            normal, right = _normal(gram, *sizes)
            for sigma, believed in zip(grid.sigma, noise.log_prior(grid.sigma), strict=True):
                precision = normal / sigma**2
                ridge = RIDGE * np.einsum("...ii->...i", precision)  # to each its own: a loss has any unit
                precision = precision + np.eye(terms) * (ridge[..., None, :] + stiff)
                covariance = np.linalg.inv(precision)
                mean = (covariance @ (right / sigma**2)[..., None])[..., 0]
                squares = gram[-1, -1] / sigma**2 - (mean * right).sum(axis=-1) / sigma**2
                spread = np.linalg.slogdet(covariance)[1] + np.log(stiff[3:]).sum()
                logs.append(
                    shape.belief
                    + belief
                    + believed
                    - 0.5 * squares
                    + 0.5 * spread
                    - volume
                    - loss.size * math.log(sigma)
                )
                means.append(mean)
                covariances.append(covariance)
        axes = (-1, grid.sigma.size, *sizes)
        mean = np.array(means).reshape(*axes, terms)
        covariance = np.array(covariances).reshape(*axes, terms, terms)
        deviation = np.sqrt(np.maximum(np.einsum("...ii->...i", covariance)[..., :3], 1e-300))
        mass = np.maximum(stats.norm.logcdf(mean[..., :3] / deviation).sum(axis=-1), LEAST_MASS)
        density = np.array(logs).reshape(axes) + mass
        density = np.exp(density - density.max())
        return cls(grid, shapes, span, density / density.sum(), mass, mean, covariance)

    def draw(self, count: int, rng: np.random.Generator, bent: Array | None) -> Posterior:
        """Draw from all cells, and keep what has positive terms."""
        proposed = PROPOSED * count
        cell = rng.choice(self.density.size, proposed, p=self.density.ravel())
        terms = self.mean.shape[-1]
        root = np.linalg.cholesky(self.covariance.reshape(-1, terms, terms)[cell])
        found = (
            self.mean.reshape(-1, terms)[cell] + (root @ rng.standard_normal((proposed, terms, 1)))[..., 0]
        )
        positive = (found[:, :3] > 0).all(axis=1)
        weight = np.where(positive, np.exp(-self.mass.ravel()[cell]), 0.0)
        contradicted = float(weight.sum()) ** 2 < FEWEST * float((weight**2).sum()) or not positive.any()
        if contradicted:
            spread = self.covariance.reshape(-1, terms, terms)[cell]
            found, weight = _nearest(found, spread), np.ones(proposed)
        kept = rng.choice(proposed, count, p=weight / weight.sum())
        shape, sigma, alpha, beta = np.unravel_index(cell[kept], self.density.shape)
        found = found[kept]
        drift = found[:, 3:] if bent is not None else np.zeros((count, 2))
        alphas, betas = self.grid.alpha[alpha], self.grid.beta[beta]
        logs = np.log(np.maximum(found[:, :3].mean(axis=0), 1e-300))
        theta = np.array([*logs, alphas.mean(), betas.mean()])
        return Posterior(
            theta=theta,
            floor=found[:, 2],
            size=found[:, 0],
            data=found[:, 1],
            alpha=alphas,
            beta=betas,
            drift=drift,
            beyond=noise.DRIFT * rng.standard_normal((count, 2)),
            missed=noise.MISSED * rng.standard_normal(count),
            sigma=self.grid.sigma[sigma],
            falls=np.array([each.falls for each in self.shapes])[shape],
            bent=bent if bent is not None else theta,
            span=self.span,
            contradicted=contradicted,
        )


def _nearest(found: Array, spread: Array) -> Array:
    """Move draws (× terms, of covariance `spread`) to where E, A' and B' are not below zero, the others along."""
    for term in (0, 1, 2, 0, 1, 2):
        short = np.minimum(found[:, term], 0.0) / spread[:, term, term]
        found = found - short[:, None] * spread[:, :, term]
    return np.column_stack([np.maximum(found[:, :3], 1e-12), found[:, 3:]])


def _normal(gram: Array, alphas: int, betas: int) -> tuple[Array, Array]:
    """Pick each cell's normal equations, cells × terms², and right sides out of the products of all columns."""
    a, b = np.arange(alphas), alphas + np.arange(betas)
    rest = np.arange(alphas + betas, gram.shape[0] - 1)
    terms = 2 + rest.size
    normal = np.empty((alphas, betas, terms, terms))
    normal[..., 0, 0], normal[..., 1, 1] = gram[a, a][:, None], gram[b, b][None, :]
    normal[..., 0, 1] = normal[..., 1, 0] = gram[np.ix_(a, b)]
    normal[..., 0, 2:] = normal[..., 2:, 0] = gram[np.ix_(a, rest)][:, None]
    normal[..., 1, 2:] = normal[..., 2:, 1] = gram[np.ix_(b, rest)][None, :]
    normal[..., 2:, 2:] = gram[np.ix_(rest, rest)]
    right = np.empty((alphas, betas, terms))
    right[..., 0], right[..., 1] = gram[a, -1][:, None], gram[b, -1][None, :]
    right[..., 2:] = gram[rest, -1]
    return normal, right


def _within(low: float, high: float) -> tuple[float, float]:
    return max(low, EXPONENTS[0]), min(high, EXPONENTS[1])


def modes(
    problem: Problem, prior: ExponentPrior, groups: NDArray[np.intp], n: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Return the posterior's means given each of `n` resamples of the groups, and its objective."""
    problem, groups = thinned(problem, groups, rng, ROWS)
    thetas, values = [], []
    for _ in range(n):
        weights = problem.weights * uncertainty.resample(groups, rng)
        drawn, left = problem.weighted(weights), np.unique(groups[weights > 0], return_inverse=True)[1]
        thetas.append(posterior(drawn, prior, left, draws=200, quick=True).theta)
        values.append(drawn.objective(thetas[-1]))
    return np.array(thetas), np.array(values)
