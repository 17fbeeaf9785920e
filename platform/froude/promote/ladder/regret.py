"""What a mis-set learning rate cost each run of the loss law, by the study's own U-curves.

A run at rate r ends ½·κ·(ln r - ln r*)² above one at its size's best rate r*, as a proportion of its loss: κ is the
curvature of the study's learning-rate transfer over the loss at its optima. The loss law is fitted to losses less that,
since the target run will have the best rate; less a part of it only where r* or κ are not known well (empirical Bayes).
docs/decisions/0021 has what this does to forecasts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from froude.laws import Exponents, LrTransfer
from froude.laws.lr.exponent import Exponent
from froude.parametrizations import PARAMETRIZATIONS, STANDARD
from froude.promote.ladder.rates import best_rate, middle

#: Octaves from the best rate beyond which the parabola is not followed: the grids that it is fitted to end there.
FARTHEST = 2.0
#: Mean and standard deviation of ln κ beforehand: .017 (sd .5) for the 117 U-curves of Step Law's runs (2503.04715)
#: that `laws.lr_curve` calls ok, .08 for byte-level proxies of 10⁵ parameters. Noise makes a fitted κ too large: curves
#: without a minimum are not kept.
CURVATURE = (math.log(0.02), 0.8)
LEAST = 1e-4  # of a loss: less than any noise, and no correction
#: A best rate is known for runs that have these in common with some run of the curves.
SAME = ("batch", "depth", "optimizer", "schedule")


@dataclass(frozen=True)
class Corrected:
    """How many finished rows of the loss law were corrected, of how many, and the largest correction in nats."""

    rows: int
    of: int
    most: float

    @classmethod
    def count(cls, rows: pl.DataFrame) -> Corrected:
        """Count the rows that `with_regret` returned."""
        taken = rows.filter(pl.col("status") == "finished")["regret"].to_numpy()
        return cls(int((taken > 0).sum()), taken.size, float(taken.max(initial=0.0)))

    def __str__(self) -> str:
        if not self.rows:
            return f"none of {self.of} losses corrected for a mis-set learning rate"
        return f"{self.rows} of {self.of} losses corrected for a mis-set learning rate, by {self.most:.4f} at most"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def with_regret(
    rows: pl.DataFrame, transfer: Mapping[str, LrTransfer], exponents: Exponents | None = None
) -> pl.DataFrame:
    """Return the loss law's rows with `regret`, nats per token: what the rate cost, 0 where that is not known.

    The best rate goes with the tokens by the study's exponent, where it has measured one.
    """
    law = exponents.knobs.get("lr_tokens") if exponents is not None else None
    moves = law if law is not None and law.source == "measured" else None
    shares = [_share(row, transfer, moves) for row in rows.iter_rows(named=True)]
    share = pl.Series(shares, dtype=pl.Float64)
    return rows.with_columns(regret=(pl.col("loss") * share / (1 + share)).fill_null(0.0))


def corrected(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with the `loss` that each would have at the best rate."""
    return rows.with_columns(pl.col("loss") - pl.col("regret"))


def _share(row: Mapping[str, Any], transfer: Mapping[str, LrTransfer], moves: Exponent | None) -> float:
    """The regret as a proportion of the loss at the best rate, 0 where the study does not tell."""
    name = row["parametrization"] or STANDARD.name
    law = transfer.get(name)
    if law is None or law.status not in ("ok", "flat") or not (row["lr"] and row["width"]):
        return 0.0
    if any(row[key] not in law.sample.frame[key].to_list() for key in SAME):
        return 0.0
    best = best_rate(law, row["width"], stays=PARAMETRIZATIONS[name].transfers)
    if best is None or not best.value > 0:
        return 0.0
    far = moved = 0.0
    if moves is not None:
        far = math.log(row["tokens"] / middle(law.sample.frame, "tokens"))
        moved = moves.posterior.value * far
    away = abs(math.log(row["lr"] / best.value) - moved)
    bend, bend_error = curvature(law)
    share = 0.5 * bend * min(away, FARTHEST * math.log(2)) ** 2
    if share < LEAST:
        return 0.0
    off = math.hypot(best.se / best.value, moves.posterior.se * far if moves is not None else 0.0)
    error = math.hypot(2 * off / away, bend_error)
    known = share / (1 + error**2)
    return known if known >= LEAST else 0.0


def curvature(law: LrTransfer) -> tuple[float, float]:
    """κ, drawn towards its mean in logs, and its relative standard error."""
    found = law.curvature / float(np.nanmedian(law.curves["loss"].to_numpy()))
    mean, spread = CURVATURE
    weight = spread**2 / (spread**2 + (law.curvature_se / law.curvature) ** 2)
    return math.exp(mean + weight * (math.log(found) - mean)), math.sqrt(1 - weight) * spread
