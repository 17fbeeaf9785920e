"""Where the best decay timescale of a run lies, by a stage Exponents; the recipe keeps the target's own."""

from __future__ import annotations

import math

import numpy as np
import polars as pl

from froude.config import Run
from froude.laws.lr.exponent import NORMAL, Exponent
from froude.promote.choice.rate import LINE
from froude.promote.choice.searched import MEAN_BEND, Found


def best_timescale(law: Exponent | None, run: Run, own: float) -> Found | None:
    """The best timescale at the run's tokens with 90%, and what `own` costs as a proportion of the loss; None without.

    The stage's optima, each taken to the run's horizon by the exponent: their precision-weighted mean, and what is not
    known of the exponent, over the way from their middle.
    """
    if law is None:
        return None
    placed = law.levels.filter(pl.col("status") == "ok")
    if not placed.height:
        return None
    tokens, at, low, high = (placed[name].log().to_numpy() for name in ("tokens", "timescale", "low", "high"))
    weights = 1 / np.maximum((high - low) / 2 / LINE, 1e-3) ** 2
    far = math.log(run.tokens) - float(np.average(tokens, weights=weights))
    best = float(np.average(at, weights=weights)) + law.posterior.value * far
    sd = math.hypot(float(weights.sum()) ** -0.5, law.posterior.se * far)
    least = 0.5 * MEAN_BEND * sd**2
    regret = least + 0.5 * MEAN_BEND * (math.log(own) - best) ** 2
    reach = NORMAL * sd
    return Found(
        math.exp(best), math.exp(best - reach), math.exp(best + reach), regret, law.source, MEAN_BEND, least
    )
