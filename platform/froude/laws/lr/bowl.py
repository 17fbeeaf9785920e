"""Where a search places its best settings: loss = floor · exp(Σ ½ κ (ln setting - ln best)²), by importance sampling.

A few trials of a search say something of each setting at once; what they leave open, a prior does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lgamma
from typing import NamedTuple

import numpy as np

from froude.laws.stats.frames import Array

DRAWS, ROUNDS = 6_000, 5
#: Degrees of freedom and standard deviation (relative, of a loss) that count as the noise's prior.
NOISE = (4.0, 0.004)


class Belief(NamedTuple):
    """Beforehand, of one setting: ln best ~ N(`best`), ln κ ~ N(`bend`), each mean and standard deviation."""

    best: tuple[float, float]
    bend: tuple[float, float]


@dataclass(frozen=True, eq=False)
class Bowl:
    """Draws × settings of ln best and of κ (of the relative loss)."""

    best: Array
    bend: Array

    def regret(self, index: int, value: float) -> float:
        """The expected cost, as a proportion of the loss, of a setting at ln `value`."""
        return float(np.mean(0.5 * self.bend[:, index] * (value - self.best[:, index]) ** 2))


def bowl(
    settings: Array, losses: Array, groups: Sequence[int], beliefs: Sequence[Belief], seed: int = 0
) -> Bowl:
    """Draw from the posterior: `settings` is trials × settings in ln, `losses` in nats per token.

    Trials alike in `groups` have a floor of their own, so that what else was searched does not count.
    """
    rng, k = np.random.default_rng(seed), len(beliefs)
    mean = np.array([b.best[0] for b in beliefs] + [b.bend[0] for b in beliefs])
    spread = np.array([b.best[1] for b in beliefs] + [b.bend[1] for b in beliefs])
    y, same = np.log(losses), np.asarray(groups)
    centred = np.equal.outer(same, same) / np.bincount(same)[same][:, None]
    dof, least = NOISE
    spare = y.size - np.unique(same).size

    def log_posterior(theta: Array) -> Array:
        away = settings[None] - theta[:, None, :k]
        left = y - 0.5 * (away**2 * np.exp(theta[:, None, k:])).sum(axis=2)
        left = left - left @ centred.T
        fit = -0.5 * (spare + dof) * np.log(dof * least**2 + (left**2).sum(axis=1))
        return np.asarray(fit - 0.5 * (((theta - mean) / spread) ** 2).sum(axis=1))

    # Rounds of proposals, each a Student t about what the rounds before have found, and a part from the prior: a
    # bowl that is open to one side keeps its tail.
    centre, root = mean, np.diag(spread)
    for _ in range(ROUNDS):
        from_prior = rng.random(DRAWS) < 0.2
        wide = np.sqrt(5 / rng.chisquare(5, DRAWS))[:, None]
        z = rng.standard_normal((DRAWS, 2 * k))
        theta = np.where(from_prior[:, None], mean + spread * z, centre + wide * z @ root.T)
        prior = np.exp(-0.5 * (((theta - mean) / spread) ** 2).sum(axis=1)) / spread.prod()
        u = np.linalg.solve(root, (theta - centre).T).T
        # The t's density over the normal's constant: Γ((5 + d)/2) / Γ(5/2) (2/5)^(d/2).
        d = 2 * k
        scale = np.exp(lgamma((5 + d) / 2) - lgamma(2.5) + d / 2 * np.log(2 / 5)) / abs(np.linalg.det(root))
        student = scale * (1 + (u**2).sum(axis=1) / 5) ** (-(5 + d) / 2)
        log_weight = log_posterior(theta) - np.log(0.2 * prior + 0.8 * student)
        weight = np.exp(log_weight - log_weight.max())
        weight /= weight.sum()
        centre = weight @ theta
        covariance = (theta - centre).T @ ((theta - centre) * weight[:, None])
        root = np.linalg.cholesky(covariance + np.diag((0.05 * spread) ** 2))
    kept = theta[rng.choice(DRAWS, DRAWS // 2, p=weight)]
    return Bowl(kept[:, :k], np.exp(kept[:, k:]))
