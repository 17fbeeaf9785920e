"""What the losses of a campaign's runs say of a recipe, and how much of that another seed would change."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

ROOT = 2**0.5
FACTORS = {"rate 1/2": 0.5, "rate 1/√2": 1 / ROOT, "recipe": 1.0, "rate √2": ROOT, "rate 2": 2.0}
DRAWS = 4000
LEVEL = (0.05, 0.95)
#: Final losses (nats per token) by run's name, on the seed that chooses and the one that scores; infinite: diverged.
Pairs = Mapping[str, tuple[float, float]]


class Bottom(NamedTuple):
    """What a rate costs against the lowest point of a curve over rates, nats, with 90%; `noise` is a run's sd."""

    cost: float
    low: float
    high: float
    noise: float


@dataclass(frozen=True)
class Regret:
    """What the recipe costs against the best of some runs, nats, and the sd that seeds give a difference of two runs.

    `drawn` is how often the recipe would be the best one if all had the same loss.
    """

    best: str
    nats: float
    sd: float
    drawn: float


def minus(a: float, b: float) -> float:
    """The difference a − b; 0 for two runs that both diverged."""
    return 0.0 if a == b else a - b


def diverged(own: Pairs) -> list[str]:
    """The runs that have no loss on one of the seeds."""
    return [name for name, pair in own.items() if not all(map(math.isfinite, pair))]


def noise(own: Pairs) -> float:
    """Sd of a run's loss by its seed, nats per token, from the differences between the two seeds over runs.

    What a seed does to all runs alike is not in it, as runs are compared on one seed. From the median absolute
    deviation (1.4826 of it is a normal's sd): a run at the edge of divergence must not excuse the others.
    """
    pairs = np.array([own[name] for name in own if name not in diverged(own)])
    between = pairs[:, 1] - pairs[:, 0]
    return float(1.4826 * np.median(np.abs(between - np.median(between))) / ROOT)


def regret(own: Pairs, names: Sequence[str], sd: float, *, among: bool = True) -> Regret:
    """What the recipe costs on the second seed against the run that is best on the first; `sd` is of one run's loss.

    The recipe is one of the runs that may be best, unless `among` is false.
    """
    tried = [*(["recipe"] if among else []), *names]
    best = min(tried, key=lambda name: own[name][0])
    return Regret(best, minus(own["recipe"][1], own[best][1]), ROOT * sd, among / len(tried))


def bottom(own: Pairs, seed: int) -> Bottom | None:
    """The cubic in ln rate through the rates that did not diverge, on both seeds; None with fewer than four of them.

    None, too, where the recipe's own rate diverged. The lowest point is looked for between the rates that are left.
    """
    names = [name for name in FACTORS if name not in diverged(own)]
    if len(names) < 4 or "recipe" not in names:
        return None
    x = np.log(np.repeat([FACTORS[name] for name in names], 2))
    y = np.array([own[name] for name in names]).ravel()
    first = np.tile([1.0, 0.0], len(names))
    design = np.column_stack([first, 1 - first, x, x**2, x**3])
    fine = np.linspace(x.min(), x.max(), 201)
    curve = np.column_stack([fine, fine**2, fine**3])
    theta, *_ = np.linalg.lstsq(design, y, rcond=None)
    sd = math.sqrt(float(((y - design @ theta) ** 2).sum()) / (y.size - 5))
    rng = np.random.default_rng(seed)
    drawn = rng.multivariate_normal(theta, sd**2 * np.linalg.inv(design.T @ design), DRAWS)
    low, high = np.quantile(-(drawn[:, 2:] @ curve.T).min(axis=1), LEVEL)
    return Bottom(-float((curve @ theta[2:]).min()), float(low), float(high), sd)


def compute(nats: Any, efold: float) -> Any:
    """Nats as a proportion of compute, params and tokens growing alike; `efold` is what an e-fold of it is worth."""
    return np.expm1(np.asarray(nats) / efold)


@dataclass(frozen=True)
class Verdict:
    """Something that is asked, what was measured, and two intervals at 90%.

    `interval` is what another seed for scoring would change. `equal` is what would be measured if all runs of a study
    had one and the same loss but for their seeds, and `missed` how often that would then not be what is asked.
    """

    asked: str
    measured: float
    interval: tuple[float, float]
    equal: tuple[float, float]
    missed: float
    holds: bool
    words: Callable[[float], str]

    def row(self, open_: str = "") -> str:
        """A row of a table; `open_` stands in the place of a verdict that can't be given yet."""
        (low, high), (least, most) = (map(self.words, each) for each in (self.interval, self.equal))
        said = open_ or ("yes" if self.holds else "NO")
        return (
            f"| {self.asked} | {self.words(self.measured)} | {low} to {high} | {least} to {most}; {self.missed:.0%} | "
            f"{said} |"
        )


def verdict(
    asked: str,
    found: Sequence[Regret],
    of: Callable[[Any], Any],
    holds: Callable[[Any], Any],
    words: Callable[[float], str],
) -> Verdict:
    """Judge what `of` makes of regrets in nats, an array whose last axis is the studies'."""
    rng = np.random.default_rng(0)
    nats, sd = np.array([each.nats for each in found]), np.array([each.sd for each in found])
    noise_of = sd * rng.standard_normal((DRAWS, len(found)))
    own_best = rng.random((DRAWS, len(found))) < np.array([each.drawn for each in found])
    again = of(nats + np.where([each.best == "recipe" for each in found], 0.0, noise_of))
    equal = of(np.where(own_best, 0.0, noise_of))
    value = float(of(nats))
    missed = 1 - float(np.mean(holds(equal)))
    return Verdict(asked, value, _ends(again), _ends(equal), missed, bool(holds(value)), words)


def _ends(drawn: Any) -> tuple[float, float]:
    """90% of draws, some of which may be infinite."""
    low, high = np.quantile(drawn, LEVEL, method="nearest")
    return float(low), float(high)
