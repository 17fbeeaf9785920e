"""What the target's precision costs where its proxies have another: measured by pairs of runs, never assumed.

Rows are those of stages of the role precision: runs that differ in nothing but precision, of at least MIN_SEEDS seeds
at MIN_SIZES sizes or more. No law is fitted to them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy import stats

from froude.config import Run

MIN_SEEDS, MIN_SIZES = 3, 2
DRIFTS = 0.95  # level at which the smallest and the largest size must not differ
#: What makes two runs a pair, besides their seed.
ALIKE = (
    *(
        "params",
        "width",
        "depth",
        "head_dim",
        "context",
        "vocab",
        "tokens",
        "batch",
        "lr",
        "warmup_tokens",
        "beta2",
    ),
    *(
        "weight_decay",
        "optimizer",
        "schedule",
        "decay_fraction",
        "parametrization",
        "model",
        "corpus",
        "data_options",
    ),
)


@dataclass(frozen=True)
class Cost:
    """How far the loss in `precision` is above that in `against`, nats per token, with its standard error.

    The mean over `pairs` pairs of `sizes` sizes, taken to be the same at the target's size, unless `drift` says that
    it changes: then no forecast is certified.
    """

    precision: str
    against: str
    loss: float
    se: float
    pairs: int
    sizes: int
    drift: str = ""

    def half(self, level: float) -> float:
        """Half of its interval, by Student's t."""
        return float(stats.t.ppf(0.5 + level / 2, self.pairs - 1)) * self.se

    def moved(self, loss: float, low: float, high: float, level: float) -> tuple[float, float, float]:
        """A forecast of the proxies' precision as one of the target's: shifted, and wider by an independent error."""
        half = self.half(level)
        middle = loss + self.loss
        return middle, middle - math.hypot(loss - low, half), middle + math.hypot(high - loss, half)

    def __str__(self) -> str:
        low, high = (self.loss + way * self.half(0.9) for way in (-1, 1))
        return (
            f"{self.precision} costs {self.loss:+.4f} [{low:+.4f}, {high:+.4f}] nats against {self.against}, in "
            f"{self.pairs} pairs of {self.sizes} sizes"
        )


def paired(rows: pl.DataFrame, precision: str, against: str) -> pl.DataFrame:
    """The pairs of finished rows, a row a size and seed: `params`, `seed`, `cost`; of sizes with MIN_SEEDS or more."""
    done = rows.filter(pl.col("status") == "finished")
    key = [name for name in (*ALIKE, "seed") if name in done.columns]
    both = done.filter(pl.col("precision") == precision).join(
        done.filter(pl.col("precision") == against), on=key, nulls_equal=True
    )
    found = both.group_by("params", "seed").agg(cost=(pl.col("loss") - pl.col("loss_right")).mean())
    return found.filter(pl.len().over("params") >= MIN_SEEDS).sort("params", "seed")


def cost(rows: pl.DataFrame, target: Run, proxies: pl.DataFrame) -> Cost | None:
    """What the target's precision costs; None if `proxies` have it too, have several, or too few pairs tell."""
    have = proxies["precision"].drop_nulls().unique().to_list() if proxies.height else []
    if not rows.height or len(have) != 1 or have[0] == target.precision:
        return None
    pairs = paired(rows, target.precision, have[0])
    sizes = [own["cost"].to_numpy() for _, own in pairs.group_by("params", maintain_order=True)]
    if len(sizes) < MIN_SIZES:
        return None
    costs = pairs["cost"].to_numpy()
    se = float(costs.std(ddof=1)) / math.sqrt(len(costs))
    drift = _drift(target.precision, sizes[0], sizes[-1])
    return Cost(target.precision, have[0], float(costs.mean()), se, len(costs), len(sizes), drift)


def _drift(precision: str, small: np.ndarray, large: np.ndarray) -> str:
    dof = len(small) + len(large) - 2
    se = math.sqrt(float(small.var(ddof=1)) / len(small) + float(large.var(ddof=1)) / len(large))
    change = float(large.mean() - small.mean())
    if abs(change) <= float(stats.t.ppf(0.5 + DRIFTS / 2, dof)) * se:
        return ""
    return (
        f"{precision} costs {small.mean():+.4f} nats at the smallest of the sizes compared, and {large.mean():+.4f} at "
        "the largest: what it costs the target is not known (add larger sizes)"
    )
