"""Calibrated intervals of the loss law: what it says about larger runs is widened by what it got wrong about them.

Nominal 95% bootstrap intervals cover 65 to 70% of held-out larger runs: they know of the runs' noise, not of a law
that is only nearly true, of mistuned runs or of a bad size. Here the law is fitted to the runs up to a compute c, the
runs up to ten times larger are predicted, and so on for growing c (rolling leave-largest-out). Each error over its
expected size is a score, and the interval of a new run is as many expected errors wide as a conformal quantile of the
scores asks for (split conformal prediction: Lei et al. 1604.04173).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from froude.laws.loss import many_fits
from froude.laws.loss.fit import Problem, starts
from froude.laws.stats import uncertainty
from froude.laws.stats.frames import Array, Mask

Groups = NDArray[np.intp]

SPLITS = 10  # at most this many values of c, evenly spaced in the number of rows below them
SPLIT_REPLICATES = 60  # of the bootstrap of each split
WINDOW = 10.0  # a split predicts runs up to this many times its largest compute
#: Prior sd of the relative change of alpha and of beta from one end of the fitted range to the other. A law with
#: constant exponents is an approximation (2606.29158 finds curvature) whose error grows with the square of the reach:
#: scores taken within a decade say too little about two. On 72 synthetic worlds (others than those of
#: benchmarks/calibration.md) 0.05 to 0.2 differ by 0.5% in coverage and by a third in width; without it, exponents that
#: drift were covered in 78% of cases.
DRIFT = 0.1
ROUNDING = 1e-6  # no error in ln loss is expected to be smaller
ROWS = 2_000  # with more rows, some of the groups are enough to calibrate on
SLACK = 0.1  # held-out coverage may fall short of the level by up to this


@dataclass(frozen=True, eq=False)
class ExpectedError:
    """The error of a fit in ln loss as expected from its own rows: parameters, scatter of runs, drift of exponents."""

    theta: Array
    replicates: Array  # fits × 5
    scatter: float
    drift: Array  # second moment of the exponents' relative drift, 2 × 2
    absorbed: Array  # 5 × 2: what the parameters take up of the drifts' effects
    middle: tuple[float, float]  # of ln params and ln tokens, centred as in Problem
    width: tuple[float, float]

    @classmethod
    def of(
        cls, problem: Problem, theta: Array, replicates: Array, groups: int, least: float = ROUNDING
    ) -> "ExpectedError":
        """Return the expected error of `theta`, fitted to all rows of `problem`, which stem from this many groups.

        The scatter of runs is at least `least`.
        """
        middle = ((problem.n.max() + problem.n.min()) / 2, (problem.d.max() + problem.d.min()) / 2)
        width = (float(np.ptp(problem.n)), float(np.ptp(problem.d)))
        rows, used = problem.loss.size, 4 if problem.tied else 5
        slopes, bends = _effects(theta, problem.n, problem.d, middle, width)
        if problem.tied:
            slopes = np.column_stack([slopes[:, :3], slopes[:, 3] + slopes[:, 4]])
        residual = problem.log_loss - log_losses(theta[None, :], problem.n, problem.d)[0]
        scale = problem.weights / problem.weights.mean()
        scatter = math.sqrt(float(scale @ residual**2) / max(rows - used, 1))
        scatter = max(scatter, least)
        # The prior on the drifts meets what the residuals say of them; rows of one group say little more than one.
        root = np.sqrt(scale)[:, None]
        left, *_ = np.linalg.lstsq(slopes * root, np.column_stack([bends, residual]) * root, rcond=1e-10)
        free = (np.column_stack([bends, residual]) - slopes @ left) * root
        known = groups / rows / scatter**2
        covariance = np.linalg.inv(free[:, :2].T @ free[:, :2] * known + np.eye(2) / DRIFT**2)
        mean = covariance @ (free[:, :2].T @ free[:, 2]) * known
        absorbed = left[:, :2]
        if problem.tied:
            absorbed = absorbed[[0, 1, 2, 3, 3]]
        second = covariance + np.outer(mean, mean)
        return cls(theta, replicates, scatter, second, absorbed, middle, width)

    def predict(self, n: Array, d: Array) -> tuple[Array, Array]:
        """Return ln loss at centred ln params and ln tokens, and the sd of its expected error for one new run."""
        low, high = np.quantile(log_losses(self.replicates, n, d), [0.16, 0.84], axis=0)
        slopes, bends = _effects(self.theta, n, d, self.middle, self.width)
        off = bends - slopes @ self.absorbed
        drift = np.einsum("ij,jk,ik->i", off, self.drift, off)
        variance = ((high - low) / 2) ** 2 + self.scatter**2 + np.maximum(drift, 0.0)
        return log_losses(self.theta[None, :], n, d)[0], np.sqrt(variance)


@dataclass(frozen=True, eq=False)
class Calibration:
    """Scores of held-out larger runs, split by split, and the expected error of the fit to all rows.

    `count` has the distinct groups that were held out: several scores of one run are not several pieces of evidence.
    """

    error: ExpectedError
    scores: tuple[Array, ...]
    count: int
    dof: int

    def interval(self, n: float, d: float, level: float) -> tuple[float, float, float]:
        """Return ln loss of one new run at a centred (ln params, ln tokens), and the ends of its interval."""
        middle, sd = (float(v[0]) for v in self.error.predict(np.array([n]), np.array([d])))
        half = self.factor(level) * sd
        return middle, middle - half, middle + half

    def factor(self, level: float) -> float:
        """Return the interval's half width in expected errors."""
        normal = uncertainty.t_quantile(level, self.dof)
        if not self.scores:
            return normal
        factor = _quantile(np.concatenate(self.scores), self.count, level)
        return factor if self._enough(level) else max(factor, normal)

    def coverage(self, level: float) -> float:
        """Return the share of scores inside the quantile of the other splits' scores; NaN for fewer than two."""
        if len(self.scores) < 2:
            return math.nan
        inside = 0
        for i, own in enumerate(self.scores):
            rest = np.concatenate([s for j, s in enumerate(self.scores) if j != i])
            inside += int((own <= _quantile(rest, self.count, level)).sum())
        return inside / sum(s.size for s in self.scores)

    def refusals(self, level: float) -> list[str]:
        """Say why an interval at this level is not certified; nothing if it is."""
        if len(self.scores) < 2:
            have = len(self.scores)
            return [
                f"the interval was not calibrated: {have} rolling splits of held-out larger runs; needs 2"
            ]
        found = []
        if not self._enough(level):
            wanted = f"needs {needed(level)} at level {level:g}"
            found.append(f"{self.count} held-out larger runs were scored; {wanted}")
        if self.coverage(level) < level - SLACK:
            found.append(
                f"splits predict each other's held-out runs in {self.coverage(level):.0%} of cases at level {level:g}"
            )
        return found

    def _enough(self, level: float) -> bool:
        return self.count >= needed(level)


def calibrate(
    problem: Problem, theta: Array, groups: Groups, need: tuple[int, int], replicates: int
) -> Calibration:
    """Score rolling splits of the rows that `theta` was fitted to.

    `need` has the rows, and the distinct sizes and horizons, that a split is fitted to at least.
    """
    rng = np.random.default_rng(0)
    problem, groups = _some(problem, groups, rng)
    drawn, _ = many_fits.bootstrap(problem, groups, theta, replicates, rng, quick=True)
    whole = ExpectedError.of(problem, theta, drawn, int(groups.max()) + 1)
    scores, scored = [], np.zeros(groups.size, dtype=bool)
    splits = [(inside, outside) for _, inside, outside in _splits(problem, groups, need)]
    for inside, outside, fit, drawn in _fits(problem, groups, theta, splits, rng):
        rows = np.flatnonzero(inside)
        # The scatter that all runs show counts in every split: else the first runs, before a bad size or a mistuned one
        # came, would make the errors that those caused look impossible, and widen twice for them.
        known = np.unique(groups[rows]).size
        error = ExpectedError.of(problem.take(rows), fit, drawn, known, whole.scatter)
        middle, sd = error.predict(problem.n[outside], problem.d[outside])
        scores.append(np.abs(problem.log_loss[outside] - middle) / sd)
        scored |= outside
    used = 4 if problem.tied else 5
    count = int(np.unique(groups[scored]).size)
    return Calibration(whole, tuple(scores), count, max(problem.loss.size - used, 1))


class HeldOut(NamedTuple):
    """Larger runs that a certificate may be calibrated on: how many there are and are needed.

    A run of more than `beyond_flops` (6·params·tokens) would be one more; NaN while there are too few below.
    """

    runs: int
    needed: int
    beyond_flops: float


def held_out(problem: Problem, groups: Groups, need: tuple[int, int], level: float) -> HeldOut:
    """Return what rolling splits hold out for a certificate at this level; `need` as in `calibrate`."""
    problem, groups = _some(problem, groups, np.random.default_rng(0))
    splits = _splits(problem, groups, need)
    if not splits:
        return HeldOut(0, needed(level), math.nan)
    scored = np.any([outside for _, _, outside in splits], axis=0)
    beyond = min(c for c, _, _ in splits) + problem.n_mean + problem.d_mean
    return HeldOut(int(np.unique(groups[scored]).size), needed(level), 6 * math.exp(beyond))


def log_losses(thetas: Array, n: Array, d: Array) -> Array:
    """Return the law's ln loss, fits × points, at centred ln params and ln tokens."""
    a, b, e, alpha, beta = (thetas[:, i, None] for i in range(5))
    return np.asarray(np.logaddexp(np.logaddexp(a - alpha * n, b - beta * d), e))


def _effects(
    theta: Array, n: Array, d: Array, middle: tuple[float, float], width: tuple[float, float]
) -> tuple[Array, Array]:
    """Return d ln loss by theta (points × 5) and by the exponents' relative drifts over the range (points × 2).

    With a drift b the exponent at n is alpha (1 + b (n - middle) / width), so ln of its term loses
    alpha b (n - middle)² / (2 width).
    """
    a, b, e, alpha, beta = theta
    total = log_losses(theta[None, :], n, d)[0]
    size, data = np.exp(a - alpha * n - total), np.exp(b - beta * d - total)
    slopes = np.stack([size, data, np.exp(e - total), -n * size, -d * data], axis=1)
    bends = [
        -0.5 * exponent * (x - at) ** 2 / span * share
        for x, exponent, share, at, span in zip(
            (n, d), (alpha, beta), (size, data), middle, width, strict=True
        )
    ]
    return slopes, np.stack(bends, axis=1)


def _splits(problem: Problem, groups: Groups, need: tuple[int, int]) -> list[tuple[float, Mask, Mask]]:
    """For each c return ln c, centred, and masks of rows fitted and predicted; a group counts as its largest run."""
    compute = problem.n + problem.d
    top = np.full(int(groups.max()) + 1, -np.inf)
    np.maximum.at(top, groups, compute)
    found = []
    for c in np.unique(np.round(top, 2))[:-1] + 0.005:  # runs at one budget differ by a rounded step
        inside = (top <= c)[groups]
        outside = ~inside & (compute > c) & (compute <= c + math.log(WINDOW))
        enough = min(np.unique(problem.n[inside]).size, np.unique(problem.d[inside]).size) >= need[1]
        if enough and inside.sum() >= need[0] and outside.any():
            found.append((float(c), inside, outside))
    if len(found) > SPLITS:
        found = [found[i] for i in np.unique(np.round(np.linspace(0, len(found) - 1, SPLITS)).astype(int))]
    return found


def _fits(
    problem: Problem, groups: Groups, theta: Array, splits: list[tuple[Mask, Mask]], rng: np.random.Generator
) -> Iterator[tuple[Mask, Mask, Array, Array]]:
    """Yield the splits with a fit to the rows of each, and with its replicates × 5 from resamples of the groups."""
    if not splits:
        return
    seeds = np.array([theta, *starts(problem, rng, best=2, random=6)])
    weights = np.repeat(np.array([rows for rows, _ in splits]) * problem.weights, len(seeds), axis=0)
    thetas, values = many_fits.descend_many(problem, weights, np.tile(seeds, (len(splits), 1)))
    best = values.reshape(len(splits), -1).argmin(axis=1)
    fits = thetas.reshape(len(splits), -1, 5)[np.arange(len(splits)), best]
    drawn = np.zeros((len(splits), SPLIT_REPLICATES, problem.loss.size))
    for of_split, (rows, _) in zip(drawn, splits, strict=True):
        codes = np.unique(groups[rows], return_inverse=True)[1]
        for replicate in of_split:
            replicate[rows] = uncertainty.resample(codes, rng)
    drawn = drawn.reshape(-1, problem.loss.size) * problem.weights
    seeds = np.repeat(fits, SPLIT_REPLICATES, axis=0)
    replicates, _ = many_fits.refit_many(problem, drawn, seeds, quick=True)
    for split, fit, found in zip(splits, fits, replicates.reshape(len(splits), -1, 5), strict=True):
        yield *split, fit, found


def _some(problem: Problem, groups: Groups, rng: np.random.Generator) -> tuple[Problem, Groups]:
    """Return all rows, or ROWS of more, drawn at random: few long runs stay as many runs, with fewer checkpoints."""
    if problem.loss.size <= ROWS:
        return problem, groups
    rows = np.sort(rng.permutation(problem.loss.size)[:ROWS])
    return problem.take(rows), np.unique(groups[rows], return_inverse=True)[1]


def _quantile(scores: Array, count: int, level: float) -> float:
    """Return the conformal quantile: of n scores the ⌈(n + 1) level⌉-th smallest, the largest if there are too few.

    With several scores of each of `count` runs it is the quantile of that order: (count + 1) level / count of them.
    """
    rank = math.ceil((count + 1) * level / count * scores.size - 1e-9)
    rank = min(rank, scores.size)
    return float(np.sort(scores)[rank - 1])


def needed(level: float) -> int:
    """Return how many held-out larger runs a certificate at this level asks for: their quantile must be among them."""
    return math.ceil(level / (1 - level) - 1e-9)
