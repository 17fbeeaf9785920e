"""What the losses of a campaign's runs say of a recipe, and how much of that another seed would change."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

ROOT = 2**0.5
FACTORS = {"rate 1/2": 0.5, "rate 1/√2": 1 / ROOT, "recipe": 1.0, "rate √2": ROOT, "rate 2": 2.0}
DRAWS = 4000
LEVEL = (0.05, 0.95)
#: A loss (nats per token) for one that diverged on a seed that scores: bytes guessed at random.
GUESSED = math.log(256)
#: Final losses (nats per token) by run's name, on the seed that chooses, then on those that score. Infinite: diverged;
#: NaN: not trained.
Losses = Mapping[str, tuple[float, ...]]


class Bottom(NamedTuple):
    """What a rate costs against the lowest point of a curve over rates, nats, with 90%; `noise` is a run's sd."""

    cost: float
    low: float
    high: float
    noise: float


@dataclass(frozen=True)
class Regret:
    """What the recipe costs against the best of some runs, nats, and the sd that seeds give to that.

    `best` is its name, empty for a mean over several; `drawn` how often the recipe would be it if all were equal.
    """

    best: str
    nats: float
    sd: float
    drawn: float


def diverged(own: Losses) -> list[str]:
    """The runs that diverged on one of the seeds."""
    return sorted(name for name, of in own.items() if math.inf in of)


def noise(studies: Iterable[Losses]) -> float:
    """Sd of a run's loss by its seed, nats per token, from what two seeds differ by over the five rates of each study.

    What a seed does to all runs alike is not in it, as runs are compared on one seed. From the median absolute
    deviation (1.4826 of it is a normal's sd): a rate at the edge of divergence must not excuse the others. Of the
    rates alone, since which of the others has a second seed is chosen by its first.
    """
    found: list[float] = []
    for own in studies:
        pairs = np.array([own[name][:2] for name in FACTORS if name not in diverged(own)])
        if len(pairs) > 1:
            between = pairs[:, 1] - pairs[:, 0]
            found += list((between - between.mean()) * math.sqrt(between.size / (between.size - 1)))
    return float(1.4826 * np.median(np.abs(found)) / ROOT)


def near(own: Iterable[str], *settings: str) -> list[str]:
    """The neighbours that differ in one of these settings."""
    return [name for name in own if name.startswith(settings)]


def best_of(own: Losses, names: Iterable[str]) -> str:
    """The best of the recipe and these, by the seed that chooses."""
    return min(["recipe", *names], key=lambda name: own[name][0])


def regret(own: Losses, names: Sequence[str], sd: float) -> Regret:
    """What the recipe costs against the best of itself and these; `sd` is of one run's loss by its seed.

    On average over the seeds for scoring that both have; infinite where the recipe diverged on one.
    """
    best, mine = best_of(own, names), own["recipe"][1:]
    pairs = [pair for pair in zip(mine, own[best][1:], strict=True) if not any(map(math.isnan, pair))]
    nats = math.inf if math.inf in mine else float(np.mean([a - b for a, b in pairs]))
    return Regret(best, nats, sd * ROOT / math.sqrt(len(pairs)), 1 / (1 + len(names)))


def searched(own: Losses, cost: int, sd: float) -> Regret:
    """What the recipe costs against a search of `cost` runs, on the first seed for scoring.

    The search's loss is the mean over all subsets of that many draws, of the loss that the best by the first seed has
    on the second: the draw that `i` others beat is the best of C(n − 1 − i, cost − 1) of C(n, cost).
    """
    names = sorted(near(own, "search "), key=lambda name: own[name][0])
    n = len(names)
    weights = np.array([math.comb(n - 1 - i, cost - 1) / math.comb(n, cost) for i in range(n)])
    scores = np.minimum([own[name][1] for name in names], GUESSED)
    return Regret("", own["recipe"][1] - float(weights @ scores), sd * math.sqrt(1 + weights @ weights), 0.0)


def bottom(own: Losses, seed: int) -> Bottom | None:
    """The cubic in ln rate through the rates that did not diverge, on two seeds; None with fewer than four of them.

    None, too, where the recipe's own rate diverged. The lowest point is looked for between the rates that are left.
    Where the cost is 0 the estimate is above it, as the lowest of what noise bends; the interval is not: its lower end
    is what the rate costs against the rate at the lowest point, its upper end against the lowest point of each draw.
    """
    names = [name for name in FACTORS if name not in diverged(own)]
    if len(names) < 4 or "recipe" not in names:
        return None
    x = np.log(np.repeat([FACTORS[name] for name in names], 2))
    y = np.array([own[name][:2] for name in names]).ravel()
    first = np.tile([1.0, 0.0], len(names))
    design = np.column_stack([first, 1 - first, x, x**2, x**3])
    fine = np.linspace(x.min(), x.max(), 201)
    curve = np.column_stack([fine, fine**2, fine**3])
    theta, *_ = np.linalg.lstsq(design, y, rcond=None)
    free = y.size - theta.size
    sd = math.sqrt(float(((y - design @ theta) ** 2).sum()) / free)
    rng = np.random.default_rng(seed)
    errors = rng.multivariate_normal(np.zeros(theta.size), sd**2 * np.linalg.inv(design.T @ design), DRAWS)
    drawn = (theta + errors * np.sqrt(free / rng.chisquare(free, (DRAWS, 1))))[
        :, 2:
    ]  # Student's t: sd is estimated
    lowest = curve[(curve @ theta[2:]).argmin()]
    low = float(np.quantile(-(drawn @ lowest), LEVEL[0]))
    high = float(np.quantile(-(drawn @ curve.T).min(axis=1), LEVEL[1]))
    return Bottom(-float(lowest @ theta[2:]), low, high, sd)


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
