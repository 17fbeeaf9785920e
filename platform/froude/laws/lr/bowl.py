"""Where a search places its best settings: loss = floor · exp(Σ ½ κ (ln setting - ln best)²), by a sampler.

A few trials of a search say something of each setting at once; what they leave open, a prior does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from froude.laws.stats.frames import Array

STARTS, WALKERS, STEPS, BURN_IN, THIN = 1_000, 120, 250, 70, 4
STRETCH = 2.0
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

    def cheapest(self, index: int) -> float:
        """The ln value of a setting that is expected to cost least."""
        return float(np.average(self.best[:, index], weights=self.bend[:, index]))


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

    # Walkers start about the mode, with the curvature there.
    first = mean + spread * rng.standard_normal((STARTS, 2 * k))
    top = first[int(np.argmax(log_posterior(first)))]
    scaled = minimize(lambda z: -float(log_posterior((mean + spread * z)[None])[0]), (top - mean) / spread)
    root = np.linalg.cholesky(scaled.hess_inv + 1e-6 * np.eye(2 * k))
    walkers = mean + spread * (scaled.x + rng.standard_normal((WALKERS, 2 * k)) @ root.T)
    # Affine-invariant ensemble (Goodman & Weare 2010): bowls that are open to one side, or narrow, need no tuning.
    now, half, kept = log_posterior(walkers), WALKERS // 2, []
    for step in range(STEPS):
        for mine, others in ((slice(0, half), slice(half, None)), (slice(half, None), slice(0, half))):
            stretch = ((STRETCH - 1) * rng.random(half) + 1) ** 2 / STRETCH
            partner = walkers[others][rng.integers(0, half, half)]
            moved = partner + stretch[:, None] * (walkers[mine] - partner)
            new = log_posterior(moved)
            taken = np.log(rng.random(half)) < (2 * k - 1) * np.log(stretch) + new - now[mine]
            walkers[mine] = np.where(taken[:, None], moved, walkers[mine])
            now[mine] = np.where(taken, new, now[mine])
        if step >= BURN_IN and step % THIN == 0:
            kept.append(walkers.copy())
    drawn = np.concatenate(kept)
    return Bowl(drawn[:, :k], np.exp(drawn[:, k:]))
