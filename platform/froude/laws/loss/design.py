"""Which runs to do next so that the forecast of one target run becomes certain: Bayesian c-optimal design.

Believed is ln L(x) = ln f(theta, x) + delta(x) + noise for a run x = (ln params, ln tokens). The law f is linearised at
theta, whose normal prior is weak, except for the exponents of a law that has one. delta, what the law misses, is a
Gaussian process: almost zero next to a row, growing with the distance from all rows, so neither a heap of small runs
nor of repeats of one run makes the target certain (Kennedy and O'Hagan 2001). With c the covariance given the rows, one
more run at x lowers the variance at the target x* by c(x*, x)² / (c(x, x) + noise): a rank-one update in closed form.
To choose by it is c-optimality (Chaloner and Verdinelli 1995), which with one target is V-optimality too. What is
lowered is averaged over draws of theta, because the law is not linear. Where a prior believes in more noise than the
rows show, each run also lowers that belief, as the posterior's interval does.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from froude.laws.loss.law import LossLaw
from froude.laws.loss.posterior import NOISE, NOISE_DOF
from froude.laws.stats.frames import Array, read
from froude.laws.stats.results import positive

DRAWS = 24  # of theta; twice as many move no shrinkage by more than a hundredth of itself
# Prior standard deviations of ln A', ln B', ln E, alpha, beta about the fit: a few rows outweigh them.
PRIOR_SD = (3.0, 3.0, 1.0, 0.5, 0.5)
# delta: correlation length in ln params and in ln tokens, and variance over that which the residuals show.
LENGTH, SHARE = math.log(10.0), 1.0
# Relative sd of a run's noise, at least: repeated runs of modded-nanogpt end 0.00114 nats apart at 3.28.
LEAST_NOISE = 5e-4
SHOWN_DOF = 1  # weight, in rows, of the posterior's belief in noise where the question is what the rows show
CELLS = 400  # rows at more points than this are merged: what matters is where they are, and how many
MOST_COMMON = 0.95  # of a group's noise is shared: a second row always adds something
POWERS = (1.0, 0.5, 0.0)  # of the cost, by which greedy sets are tried
MOST = 50  # runs of a set
WORTH = 1e-3  # a run that narrows the interval by less, as a proportion of itself, has no place in a set


@dataclass(frozen=True, eq=False)
class Design:
    """What a law and its rows say of candidates and a target: relative losses' covariance for each draw of theta.

    `covariance` is draws × (candidates + 1)², the target last; `noise` the variance of one run's relative loss;
    `candidates` the frame of `params, tokens` with its other columns. Where rows are quieter than a prior believes,
    `quiet` is the variance that they show and `weight` how many rows that belief is worth: each run more lowers the
    noise, and all that comes of it, by a little.
    """

    candidates: pl.DataFrame
    covariance: Array
    noise: float
    quiet: float
    weight: float

    @property
    def deviation(self) -> float:
        """The relative standard deviation of the target's loss, noise of its own run included, averaged over draws."""
        return float(np.sqrt(self.covariance[:, -1, -1] + self.noise).mean())

    @property
    def noise_share(self) -> float:
        """The part of the target's variance that is its own run's noise, which no proxy lowers."""
        return float((self.noise / (self.covariance[:, -1, -1] + self.noise)).mean())

    def shrinkage(self) -> Array:
        """Return the proportion by which the forecast's interval is expected to shrink, per candidate."""
        own = np.diagonal(self.covariance, axis1=1, axis2=2)[:, :-1]
        variance = self.covariance[:, -1, -1] + self.noise
        gained = self.covariance[:, -1, :-1] ** 2 / (own + self.noise) / variance[:, None]
        return np.asarray((1 - np.sqrt(np.maximum(1 - gained, 0.0) * self._settled)).mean(0))

    @property
    def _settled(self) -> float:
        """The factor by which one more run, whichever it is, lowers the noise."""
        return (self.quiet + (self.noise - self.quiet) * self.weight / (self.weight + 1)) / self.noise

    def after(self, candidate: int) -> "Design":
        """Return the design when this candidate (its index) has been run, whatever its loss turns out to be."""
        column = self.covariance[:, :, candidate]
        scale = column[:, candidate] + self.noise
        lowered = column[:, :, None] * column[:, None, :] / scale[:, None, None]
        return replace(
            self,
            covariance=(self.covariance - lowered) * self._settled,
            noise=self.noise * self._settled,
            weight=self.weight + 1,
        )

    def greedy(self, cost: Array, budget: float, *, once: bool = False) -> list[int]:
        """Return the best set of candidates within a budget that picking one after the other finds.

        Each is the one of most shrinkage, given those before it, per power of its cost: 1 makes sets of many cheap
        runs, 0 sets of few expensive ones, and the set is returned that shrinks the interval most. A candidate may come
        again, as another seed, unless `once`; one that shrinks it by less than WORTH is left out.
        """
        sets = [self._greedy(cost, budget, power, once) for power in POWERS]
        return min(sets, key=lambda found: found[1])[0]

    def _greedy(self, cost: Array, budget: float, power: float, once: bool) -> tuple[list[int], float]:
        chosen: list[int] = []
        left, now = budget, self
        allowed = np.ones(cost.size, dtype=bool)
        while len(chosen) < MOST:
            shrink = now.shrinkage()
            worth = allowed & (cost <= left) & (shrink >= WORTH)
            if not worth.any():
                break
            best = int(np.where(worth, shrink / cost**power, -1.0).argmax())
            chosen.append(best)
            left, now = left - float(cost[best]), now.after(best)
            allowed[best] = not once
        return chosen, now.deviation


def forecast_design(
    law: LossLaw,
    frame: pl.DataFrame | pl.LazyFrame,
    candidates: pl.DataFrame,
    *,
    params: float,
    tokens: float,
    groups: str | None = None,
) -> Design:
    """Return the design for the loss of a run of `params` and `tokens`, from the rows that `law` was fitted to.

    `frame` and `candidates` have the columns `params, tokens`, and `frame` also `loss`. Rows of one group, such as
    the checkpoints of one run, share part of their noise: as much as their residuals do. Candidates are runs of
    their own. ValueError where the law has no parameters, or as `froude.laws.stats.frames.read` says.
    """
    target = (math.log(positive("params", params)), math.log(positive("tokens", tokens)))
    numbers = (law.E, law.A, law.B, law.alpha, law.beta)
    if not all(math.isfinite(value) and value > 0 for value in numbers):
        raise ValueError(
            f"A design needs a fitted law, but its status is {law.status} ({'; '.join(law.reasons)}). "
            "Run more sizes and horizons first."
        )
    sample = read(frame, ["params", "tokens"], loss=True, groups=groups)
    wanted = read(candidates, ["params", "tokens"])
    logs = np.column_stack([np.log(sample["params"]), np.log(sample["tokens"])])
    centre = logs.mean(axis=0)
    theta = np.array(
        [
            math.log(law.A) - law.alpha * centre[0],
            math.log(law.B) - law.beta * centre[1],
            math.log(law.E),
            law.alpha,
            law.beta,
        ]
    )
    residual = np.log(sample["loss"]) - _fitted(theta, logs - centre)[0]
    noise, quiet, weight = _noise(law, residual)
    rows, members = _merged(logs - centre, sample.groups)
    points = np.concatenate(
        [
            rows,
            np.column_stack([np.log(wanted["params"]), np.log(wanted["tokens"])]) - centre,
            np.array([target]) - centre,
        ]
    )
    gaps = points[:, None, :] - points[None, :, :]
    delta = SHARE * quiet * np.exp(-0.5 * (gaps**2).sum(axis=2) / LENGTH**2)
    prior = _prior(law)
    n = len(rows)
    spread = delta[:n, :n] + noise * _shared(members, _common(residual, sample.groups))
    found = []
    for draw in _draws(theta, prior, _slopes(theta, rows), spread):
        slopes = _slopes(draw, points) * prior
        whole = slopes @ slopes.T + delta
        root = np.linalg.cholesky(whole[:n, :n] - delta[:n, :n] + spread)
        half = np.linalg.solve(root, whole[:n, n:])
        found.append(whole[n:, n:] - half.T @ half)
    return Design(wanted.frame, np.stack(found), noise, quiet, weight)


def _fitted(theta: Array, points: Array) -> tuple[Array, Array]:
    """Return ln f at the points, and the share of each term in f (points × 3)."""
    terms = np.stack(
        [
            theta[0] - theta[3] * points[:, 0],
            theta[1] - theta[4] * points[:, 1],
            np.full(len(points), theta[2]),
        ],
        axis=1,
    )
    log_loss = np.logaddexp.reduce(terms, axis=1)
    return log_loss, np.exp(terms - log_loss[:, None])


def _slopes(theta: Array, points: Array) -> Array:
    """Return d ln f / d theta, points × 5."""
    share = _fitted(theta, points)[1]
    return np.column_stack([share, -points[:, 0] * share[:, 0], -points[:, 1] * share[:, 1]])


def _noise(law: LossLaw, residual: Array) -> tuple[float, float, float]:
    """Variance of one run's relative loss as the law believes it, as its rows show it, and the belief's weight."""
    squares, spare = float(residual @ residual), max(residual.size - len(PRIOR_SD), 0)
    least = LEAST_NOISE**2
    if law.prior is None:
        shown = max(squares / max(spare, 1), least)
        return shown, shown, float(residual.size)
    weight = float(NOISE_DOF + residual.size)
    believed = max((NOISE_DOF * NOISE**2 + squares) / weight, least)
    # What few rows show is held near what is believed.
    shown = max((SHOWN_DOF * NOISE**2 + squares) / (SHOWN_DOF + spare), least)
    return believed, min(shown, believed), weight


def _prior(law: LossLaw) -> Array:
    """Standard deviations of theta about the fit."""
    sd = np.array(PRIOR_SD)
    if law.prior is not None:
        sd[3:] = law.prior.alpha[1], law.prior.beta[1]
    return sd


def _draws(theta: Array, prior: Array, slopes: Array, spread: Array) -> list[Array]:
    """Draws of theta about the fit given the rows, of the linearised law, held to where it still is a law."""
    root = np.linalg.cholesky(spread)
    whitened = np.linalg.solve(root, slopes * prior)
    precision = np.eye(theta.size) + whitened.T @ whitened
    half = np.linalg.cholesky(np.linalg.inv(precision))
    drawn = theta + (np.random.default_rng(0).standard_normal((DRAWS, theta.size)) @ half.T) * prior
    drawn = np.clip(drawn, theta - prior, theta + prior)
    drawn[:, 3:] = np.clip(drawn[:, 3:], 0.02, 2.0)
    return list(drawn)


def _merged(points: Array, groups: NDArray[np.intp]) -> tuple[Array, Array]:
    """Return different points, and which groups have a row at each (points × groups, one row's share of its point).

    Near points count as one where there are too many.
    """
    cell = 0.0
    keys = points
    while True:
        _, first, place = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        if first.size <= CELLS:
            members = np.zeros((first.size, int(groups.max()) + 1))
            members[place.ravel(), groups] = 1.0
            return points[first], members / members.sum(axis=1, keepdims=True)
        cell = max(2 * cell, 0.05)
        keys = np.round(points / cell)


def _common(residual: Array, groups: NDArray[np.intp]) -> float:
    """Share of the residuals' variance that a group has in common (intraclass correlation, one-way ANOVA)."""
    sizes = np.bincount(groups).astype(np.float64)
    spare = residual.size - sizes.size
    if sizes.size < 2 or spare < 1:
        return 0.0
    means = np.bincount(groups, residual) / sizes
    within = float(((residual - means[groups]) ** 2).sum()) / spare
    between = float((sizes * (means - residual.mean()) ** 2).sum()) / (sizes.size - 1)
    usual = (residual.size - float((sizes**2).sum()) / residual.size) / (sizes.size - 1)
    if not between > within:
        return 0.0
    return min((between - within) / (between + (usual - 1) * within), MOST_COMMON)


def _shared(members: Array, common: float) -> Array:
    """Covariance of the points' noise, in units of one run's variance."""
    own = (members**2).sum(axis=1)
    return np.asarray(common * members @ members.T + (1 - common) * np.diag(own))
