"""What is believed of a loss law: about its exponents beforehand, and draws of all of it given rows."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from froude.laws.stats.frames import Array

MOST_EXPONENT = 2.5  # that a prior may be about: the laws here have exponents below 3


@dataclass(frozen=True)
class ExponentPrior:
    """Normal beliefs about alpha and beta: (mean, standard deviation) each."""

    alpha: tuple[float, float]
    beta: tuple[float, float]

    @classmethod
    def of(cls, prior: object) -> "ExponentPrior":
        """Read {"alpha": (mean, sd), "beta": (mean, sd)}; ValueError if anything else is given."""
        rule = 'prior must be {"alpha": (mean, sd), "beta": (mean, sd)} with positive numbers'
        if isinstance(prior, ExponentPrior):
            return prior
        if not isinstance(prior, Mapping) or set(prior) != {"alpha", "beta"}:
            raise ValueError(f"{rule}, but got {prior!r}.")
        pairs = []
        for name in ("alpha", "beta"):
            try:
                mean, sd = (float(v) for v in prior[name])
            except (TypeError, ValueError):
                raise ValueError(f"{rule}, but {name} is {prior[name]!r}.") from None
            if not (math.isfinite(mean) and math.isfinite(sd) and mean > 0 and sd > 0):
                raise ValueError(f"{rule}, but {name} is {prior[name]!r}.")
            if mean > MOST_EXPONENT:
                raise ValueError(
                    f"{rule}, the mean at most {MOST_EXPONENT:g}, but {name} is {prior[name]!r}."
                )
            pairs.append((mean, sd))
        return cls(*pairs)


#: What a forecast believes where nobody says otherwise. Published exponents lie between .15 and .7; on other people's
#: runs a standard deviation of .2 errs less than .1 or .15, whose centre then counts for too much.
WEAK = ExponentPrior((0.4, 0.2), (0.4, 0.2))


class Span(NamedTuple):
    """Where rows lie, in centred logs: middle and largest of params and tokens, and the largest compute."""

    middle: tuple[float, float]
    edge: tuple[float, float]
    top: float

    @classmethod
    def of(cls, n: Array, d: Array) -> "Span":
        ends = [(float(x.min()), float(x.max())) for x in (n, d)]
        (low_n, high_n), (low_d, high_d) = ends
        return cls(((low_n + high_n) / 2, (low_d + high_d) / 2), (high_n, high_d), float((n + d).max()))


@dataclass(frozen=True, eq=False)
class Posterior:
    """Draws of (E, A', B', alpha, beta, drifts, noise), centred as in `Problem`, and their means as a theta.

    `bent` is the law (a theta) at which the drifts' effects are linearised, `drift` is zero in the middle of the rows;
    beyond them the exponents drift anew, by `beyond`, of which the rows say nothing, and ln loss is off by `missed` per
    e-fold of compute. Noise has the standard deviation
    `sigma` from the largest compute on, and below it more, by the power `falls`. `contradicted`: hardly any draw of the
    rows' own had positive terms.
    """

    theta: Array
    floor: Array
    size: Array
    data: Array
    alpha: Array
    beta: Array
    drift: Array
    beyond: Array
    missed: Array
    sigma: Array
    falls: Array
    bent: Array
    span: Span
    contradicted: bool = False

    def log_means(self, n: Array, d: Array) -> Array:
        """Return draws × points of ln loss without a run's noise, at centred ln params and ln tokens."""
        with np.errstate(over="ignore"):
            size = self.size[:, None] * np.exp(-np.outer(self.alpha, n))
            data = self.data[:, None] * np.exp(-np.outer(self.beta, d))
        law = np.log(self.floor[:, None] + size + data)
        return np.asarray(law + self.drifts(n, d))

    def paired(self, n: Array, d: Array) -> Array:
        """Return the loss, without a run's noise, of one draw at each point; where draws are few they come again."""
        pick = np.arange(n.size) % self.floor.size
        size = self.size[pick] * np.exp(-self.alpha[pick] * n)
        data = self.data[pick] * np.exp(-self.beta[pick] * d)
        known, new = self._bends(n, d)
        drift = (self.drift[pick] * known + self.beyond[pick] * new).sum(axis=1)
        drift += self.missed[pick] * self._past(n, d)
        return np.asarray((self.floor[pick] + size + data) * np.exp(drift))

    def drifts(self, n: Array, d: Array) -> Array:
        """Return draws × points of what drift, and what the law misses beyond the rows, do to ln loss."""
        known, new = self._bends(n, d)
        return np.asarray(
            self.drift @ known.T + self.beyond @ new.T + np.outer(self.missed, self._past(n, d))
        )

    def _past(self, n: Array, d: Array) -> Array:
        """How many e-folds of compute the points lie beyond the largest run."""
        return np.maximum(n + d - self.span.top, 0.0)

    def _bends(self, n: Array, d: Array) -> tuple[Array, Array]:
        """Points × exponents: what a unit of drift does to ln loss within the rows, and what one beyond them does."""
        outside = np.stack([n, d], axis=1) > self.span.edge
        known, new = (bends(self.bent, n, d, at) for at in (self.span.middle, self.span.edge))
        return known, new * outside

    def log_losses(self, n: Array, d: Array, rng: np.random.Generator) -> Array:
        """Return draws × points of the ln loss of one new run each, its own noise included."""
        means = self.log_means(n, d)
        return np.asarray(means + self.noises(n, d) * rng.standard_normal(means.shape))

    def noises(self, n: Array, d: Array) -> Array:
        """Return draws × points of the standard deviation of one run's ln loss."""
        below = np.minimum(n + d - self.span.top, 0.0)
        return np.asarray(self.sigma[:, None] * np.exp(-np.outer(self.falls, below)))


def bends(theta: Array, n: Array, d: Array, middle: tuple[float, float]) -> Array:
    """Return d ln loss by the relative change of each exponent per e-fold, points × 2.

    With a drift b the exponent at n is alpha (1 + b (n - middle)), so ln of its term loses alpha b (n - middle)² / 2.
    """
    a, b, e, alpha, beta = theta
    size, data = a - alpha * n, b - beta * d
    total = np.logaddexp(np.logaddexp(size, data), e)
    return np.stack(
        [
            -0.5 * exponent * (x - at) ** 2 * np.exp(term - total)
            for x, exponent, term, at in zip((n, d), (alpha, beta), (size, data), middle, strict=True)
        ],
        axis=1,
    )
