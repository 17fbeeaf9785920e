"""What makes a run's loss miss the loss law: its own noise, its trunk's, and a law that only nearly holds.

A run's ln loss is that of the law plus
- noise of seed and data order, of standard deviation sigma at the largest compute fitted and, by a power of compute,
  more below it: small runs scatter more, and are further from the law;
- of which a part is shared by all rows of one group, such as branches off one trunk, less the further apart they are;
- a drift of both exponents with ln params and ln tokens, small within the rows, larger the further the reach;
- beyond the rows, what a law of this form misses by how far it reaches, however well they tell its parameters;
- at the target, the noise of a run of its own.
What evaluations on the same windows have in common moves E alone. None of it is plugged in: sigma has a half-t prior,
the others are averaged over a few values, and the rows weigh them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, stats

from froude.laws.stats.frames import Array

#: Half-t prior on sigma, relative: between seeds of proxies of 1e5 to 1e9 parameters it is .03 to 2%
#: (modded-nanogpt .035%, byte-level proxies of 26·width² parameters 1.4%), and heavier tails do no harm.
SCALE, DOF = 0.01, 3.0
#: Powers of compute by which noise falls: 0 for runs as the law has it, .2 and .4 for ladders whose small end is off.
FALLS = {0.0: 2 / 3, 0.2: 1 / 6, 0.4: 1 / 6}  # and how likely each is beforehand
#: Parts of the variance that rows of one group share, where groups have several: branches off a trunk share most of
#: it, checkpoints of one run nearly all.
SHARED = (0.5, 0.8, 0.95, 0.99)
FORGETS = 0.1  # power of the ratio of their tokens by which two rows of a group share less
#: Prior sd of an exponent's relative change per e-fold of params or tokens: on the published runs .03 to .15 make
#: forecasts of the same error, and without any the intervals beyond ten times the compute are a fifth too short.
DRIFT = 0.07
#: Standard deviation of what a law of this form misses in ln loss per e-fold of compute beyond the largest run. Where
#: runs are many and quiet it is most of what is not known: without it certified intervals on four sources that nobody
#: had looked at held 67% within ten times the compute (benchmarks/unseen_first_look.md, docs/decisions/0039).
MISSED = 0.007


@dataclass(frozen=True)
class Shape:
    """How noise is spread over the rows, in units of sigma: `falls` by a power of compute, `shared` within groups.

    `belief` is the ln of how likely that is beforehand, up to a constant.
    """

    falls: float
    shared: float
    belief: float = 0.0

    def root(self, compute: Array, tokens: Array, groups: NDArray[np.intp], weights: Array) -> Array:
        """Return the Cholesky factor of the rows' covariance, or its diagonal where no two rows share a group.

        `compute` and `tokens` are in logs; a row's variance is divided by its weight.
        """
        sd = np.exp(-self.falls * (compute - compute.max())) / np.sqrt(weights)
        if not self.shared:
            return np.asarray(sd)
        root = np.zeros((sd.size, sd.size))
        # Rows of different groups share nothing, so each group has a factor of its own.
        for rows in blocks(groups):
            apart = np.abs(tokens[rows][:, None] - tokens[rows][None, :])
            covariance = self.shared * np.exp(-FORGETS * apart) + (1 - self.shared) * np.eye(rows.size)
            root[np.ix_(rows, rows)] = np.linalg.cholesky(covariance * np.outer(sd[rows], sd[rows]))
        return root


def blocks(groups: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Return the rows of each group, in their order."""
    order = np.argsort(groups, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)


def shapes(groups: NDArray[np.intp], *, coarse: bool) -> list[Shape]:
    """The shapes that are averaged over; one where it is to be quick."""
    several = bool((np.bincount(groups) > 1).any())
    falls, shared = ([0.2], SHARED[1:2]) if coarse else (list(FALLS), SHARED)
    return [
        Shape(fall, share, math.log(FALLS[fall]))
        for fall in falls
        for share in (shared if several else (0.0,))
    ]


def whitened(root: Array, columns: Array) -> Array:
    """Return the columns (rows × any) with the noise of `root` made white."""
    if root.ndim == 1:
        return np.asarray(columns / root[:, None])
    return np.asarray(linalg.solve_triangular(root, columns, lower=True, check_finite=False))


def log_prior(sigma: Array) -> Array:
    """Return the half-t log density of sigma on a grid even in ln sigma, up to a constant."""
    return np.asarray(stats.t.logpdf(sigma / SCALE, DOF) + np.log(sigma))
