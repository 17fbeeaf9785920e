"""Which runs to do next so that the forecast of one target run becomes certain: Bayesian c-optimal design.

Draws of the law's posterior (`froude.laws.loss.posterior`) give the covariance c of the ln losses at all candidates and
at the target: what the rows leave open of the law, and its drift with reach, which neither a heap of small runs nor of
repeats of one run takes away. One more run at x lowers the variance at the target x* by c(x*, x)² / (c(x, x) + noise):
a rank-one update in closed form. To choose by it is c-optimality (Chaloner and Verdinelli 1995); per unit of cost, with
laws whose parameters are uncertain, it reaches nearly the whole grid's accuracy at a tenth of its cost (2604.22753).

A design that trusts its law buys a few runs at the ends, which show nothing of what the law misses between them. So
the covariance also holds a smooth misfit of law and runs (Kennedy and O'Hagan 2001), which the rows near a point tell:
then runs are spread, and those that are like the target are worth more.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from froude.laws.loss.law import LossLaw
from froude.laws.stats.frames import Array, read
from froude.laws.stats.results import positive

POWERS = (1.0, 0.5, 0.0)  # of the cost, by which greedy sets are tried
MOST = 50  # runs of a set
#: The misfit's standard deviation, relative, and the distance in ln params and ln tokens over which runs share it.
#: Without a misfit, forecasts of published runs erred more than after a uniform grid at twice the cost; where the law
#: is right, a misfit of .02 made them err more (docs/log.md, 2026-11-24).
MISFIT, ALIKE = 0.02, 2.0
MOST_ROWS = 800  # that tell a misfit: of more, some drawn at random
WORTH = 1e-3  # a run that narrows the interval by less, as a proportion of itself, has no place in a set


@dataclass(frozen=True, eq=False)
class Design:
    """What a law's posterior says of candidates and a target.

    `covariance`, (candidates + 1)², is that of their ln losses without the noise of a run, the target last; `noise` is
    the variance of one run's, for each of them; `candidates` the frame of `params, tokens` with its other columns;
    `drift` is the part of the target's variance, noise apart, that comes of the law's drift with reach and its misfit.
    """

    candidates: pl.DataFrame
    covariance: Array
    noise: Array
    drift: float

    @property
    def deviation(self) -> float:
        """The relative standard deviation of the target's loss, misfit and the noise of its own run included."""
        return math.sqrt(float(self.covariance[-1, -1] + self.noise[-1]))

    @property
    def shares(self) -> Mapping[str, float]:
        """Parts of the target's variance: law (what rows leave open), reach (drift and misfit), noise (the run's)."""
        noise = float(self.noise[-1]) / self.deviation**2
        return {"law": (1 - noise) * (1 - self.drift), "reach": (1 - noise) * self.drift, "noise": noise}

    def less_known(self, deviation: float) -> "Design":
        """Return the design of a target of whose ln loss no run tells a part, of this standard deviation."""
        noise = self.noise.copy()
        noise[-1] += deviation**2
        return replace(self, noise=noise)

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

    def greedy(
        self,
        cost: Array,
        budget: float,
        *,
        once: bool = False,
        enough: float = 0.0,
        taken: Sequence[int] = (),
    ) -> list[int]:
        """Return the best set of candidates within a budget that picking one after the other finds.

        Each is the one of most shrinkage, given those before it, per power of its cost: 1 makes sets of many cheap
        runs, 0 sets of few expensive ones, and the set is returned that shrinks the interval most, or, of those whose
        deviation is at most `enough`, the cheapest. A candidate may come again, as another seed, unless `once`, when
        those `taken` do not come either; one that shrinks it by less than WORTH is left out.
        """
        sets = [self._greedy(cost, budget, power, once, enough, taken) for power in POWERS]
        return min(sets, key=lambda found: (max(found[1], enough), float(cost[found[0]].sum())))[0]

    def _greedy(
        self, cost: Array, budget: float, power: float, once: bool, enough: float, taken: Sequence[int]
    ) -> tuple[list[int], float]:
        chosen: list[int] = []
        left, now = budget, self
        allowed = np.ones(cost.size, dtype=bool)
        allowed[list(taken)] = not once
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
    rows = np.log(np.column_stack([law.sample["params"], law.sample["tokens"]]))
    rows = np.random.default_rng(0).permutation(rows[np.lexsort(rows.T)])[:MOST_ROWS]
    missed = misfit(np.column_stack([n, d]), rows, float(noise[-1]))
    known, missing = float(covariance[-1, -1]), float(missed[-1, -1])
    return Design(wanted.frame, covariance + missed, noise, (drift * known + missing) / (known + missing))


def misfit(points: Array, rows: Array, noise: float) -> Array:
    """Return the covariance at `points` of what the law misses, given `rows` of one run's variance `noise`.

    Both are × 2: ln params and ln tokens.
    """

    def alike(one: Array, other: Array) -> Array:
        away = ((one[:, None] - other[None]) ** 2).sum(axis=2)
        return np.asarray(MISFIT**2 * np.exp(-away / (2 * ALIKE**2)))

    known = alike(points, rows)
    told = np.linalg.solve(alike(rows, rows) + noise * np.eye(len(rows)), known.T)
    return np.asarray(alike(points, points) - known @ told)
