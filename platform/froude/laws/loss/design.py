"""Which runs to do next so that the forecast of one target run becomes certain: Bayesian c-optimal design.

Draws of the law's posterior (`froude.laws.loss.posterior`) give the covariance c of the ln losses at all candidates and
at the target: what the rows leave open of the law, and its drift with reach, which neither a heap of small runs nor of
repeats of one run takes away. One more run at x lowers the variance at the target x* by c(x*, x)² / (c(x, x) + noise):
a rank-one update in closed form. To choose by it is c-optimality (Chaloner and Verdinelli 1995); per unit of cost, with
laws whose parameters are uncertain, it reaches nearly the whole grid's accuracy at a tenth of its cost (2604.22753).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from froude.laws.loss.law import LossLaw
from froude.laws.stats.frames import Array, read
from froude.laws.stats.results import positive

POWERS = (1.0, 0.5, 0.0)  # of the cost, by which greedy sets are tried
MOST = 50  # runs of a set
WORTH = 1e-3  # a run that narrows the interval by less, as a proportion of itself, has no place in a set


@dataclass(frozen=True, eq=False)
class Design:
    """What a law's posterior says of candidates and a target.

    `covariance`, (candidates + 1)², is that of their ln losses without the noise of a run, the target last; `noise` is
    the variance of one run's, for each of them; `candidates` the frame of `params, tokens` with its other columns;
    `drift` is the part of the target's variance, noise apart, that comes of the law's drift with reach.
    """

    candidates: pl.DataFrame
    covariance: Array
    noise: Array
    drift: float

    @property
    def deviation(self) -> float:
        """The relative standard deviation of the target's loss, noise of its own run included."""
        return math.sqrt(float(self.covariance[-1, -1] + self.noise[-1]))

    @property
    def shares(self) -> Mapping[str, float]:
        """Parts of the target's variance: law (what rows leave open), reach (the law's drift), noise (the run's)."""
        noise = float(self.noise[-1]) / self.deviation**2
        return {"law": (1 - noise) * (1 - self.drift), "reach": (1 - noise) * self.drift, "noise": noise}

    def shrinkage(self) -> Array:
        """Return the proportion by which the forecast's interval is expected to shrink, per candidate."""
        own = np.diagonal(self.covariance)[:-1] + self.noise[:-1]
        gained = self.covariance[-1, :-1] ** 2 / own / self.deviation**2
        return np.asarray(1 - np.sqrt(np.maximum(1 - gained, 0.0)))

    def after(self, candidate: int) -> "Design":
        """Return the design when this candidate (its index) has been run, whatever its loss turns out to be."""
        column = self.covariance[:, candidate]
        scale = column[candidate] + self.noise[candidate]
        return replace(self, covariance=self.covariance - np.outer(column, column) / scale)

    def greedy(self, cost: Array, budget: float, *, once: bool = False, enough: float = 0.0) -> list[int]:
        """Return the best set of candidates within a budget that picking one after the other finds.

        Each is the one of most shrinkage, given those before it, per power of its cost: 1 makes sets of many cheap
        runs, 0 sets of few expensive ones, and the set is returned that shrinks the interval most, or, of those whose
        deviation is at most `enough`, the cheapest. A candidate may come again, as another seed, unless `once`; one
        that shrinks it by less than WORTH is left out.
        """
        sets = [self._greedy(cost, budget, power, once, enough) for power in POWERS]
        return min(sets, key=lambda found: (max(found[1], enough), float(cost[found[0]].sum())))[0]

    def _greedy(
        self, cost: Array, budget: float, power: float, once: bool, enough: float
    ) -> tuple[list[int], float]:
        chosen: list[int] = []
        left, now = budget, self
        allowed = np.ones(cost.size, dtype=bool)
        while len(chosen) < MOST and now.deviation > enough:
            shrink = now.shrinkage()
            worth = allowed & (cost <= left) & (shrink >= WORTH)
            if not worth.any():
                break
            best = int(np.where(worth, shrink / cost**power, -1.0).argmax())
            chosen.append(best)
            left, now = left - float(cost[best]), now.after(best)
            allowed[best] = not once
        return chosen, now.deviation


def forecast_design(law: LossLaw, candidates: pl.DataFrame, *, params: float, tokens: float) -> Design:
    """Return the design for the loss of a run of `params` and `tokens`.

    `candidates` has the columns `params, tokens`; candidates are runs of their own. ValueError where nothing could be
    fitted, or as `froude.laws.stats.frames.read` says.
    """
    target = (positive("params", params), positive("tokens", tokens))
    wanted = read(candidates, ["params", "tokens"])
    n, d = (
        np.log(np.append(wanted[name], value))
        for name, value in zip(("params", "tokens"), target, strict=True)
    )
    covariance, noise, drift = law.covariance(n, d)
    return Design(wanted.frame, covariance, noise, drift)
