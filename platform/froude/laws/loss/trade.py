"""What a batch costs in loss at a fixed number of tokens, which are worth tokens / (1 + batch / critical batch).

So many tokens would reach the same loss at a batch far below the critical one (McCandlish et al. 1812.06162, their
equation 2.11 for the data). A run that ramps its batch is worth the sum of its phases.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from froude.laws.loss.law import LossLaw
from froude.laws.stats.frames import Array


class Part(NamedTuple):
    """Tokens of a run that are trained on in batches of so many."""

    tokens: float
    batch: float


@dataclass(frozen=True, eq=False)
class Trade:
    """Draws of the loss of a run of `params` parameters by its batch, given draws of its critical batch.

    The loss law's own rows were trained at the batch `law_batch`: its losses at so many tokens are those at that batch.
    """

    law: LossLaw
    params: float
    law_batch: float
    critical: Array

    def worth(self, parts: Sequence[Part]) -> Array:
        """Tokens at the law's own batch that are worth as much as these parts of a run, a draw each."""
        small = sum(part.tokens / (1 + part.batch / self.critical) for part in parts)
        return np.asarray(small * (1 + self.law_batch / self.critical))

    def losses(self, parts: Sequence[Part]) -> Array:
        """Draws of the loss, nats per token, without the noise of a run; those of two batches belong together."""
        problem, _ = self.law._fit
        n = np.full(self.critical.size, math.log(self.params) - problem.n_mean)
        d = np.log(self.worth(parts)) - problem.d_mean
        return self.law._posterior.paired(n, d)
