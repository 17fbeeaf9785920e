"""Where the best decay timescale of a run lies, by a stage Exponents; the recipe keeps the target's own."""

from __future__ import annotations

import math

import numpy as np
import polars as pl

from froude.laws.lr.exponent import NORMAL, Exponent
from froude.promote.choice.rate import LINE
from froude.promote.choice.searched import MEAN_BEND, Found


def best_timescale(law: Exponent, ratio: float, own: float) -> Found | None:
    """The best timescale at so many tokens a parameter with 90%, and what `own` costs as a proportion of the loss.

    None where no curve has an optimum. The stage's optima, each taken to the run's tokens a parameter by the exponent,
    which is that of one model over its tokens (the law is of their ratio: Bergsma et al. 2505.13738): their
    precision-weighted mean, and what is not known of the exponent, over the way from their middle.
    """
    placed = law.levels.filter(pl.col("status") == "ok")
    if not placed.height:
        return None
    at, low, high = (placed[name].log().to_numpy() for name in ("timescale", "low", "high"))
    ratios = np.log(placed["tokens"].to_numpy() / _params(law))
    weights = 1 / np.maximum((high - low) / 2 / LINE, 1e-3) ** 2
    far = math.log(ratio) - float(np.average(ratios, weights=weights))
    best = float(np.average(at, weights=weights)) + law.posterior.value * far
    sd = math.hypot(float(weights.sum()) ** -0.5, law.posterior.se * far)
    least = 0.5 * MEAN_BEND * sd**2
    regret = least + 0.5 * MEAN_BEND * (math.log(own) - best) ** 2
    reach = NORMAL * sd
    return Found(
        math.exp(best), math.exp(best - reach), math.exp(best + reach), regret, law.source, MEAN_BEND, least
    )


def _params(law: Exponent) -> float:
    """The parameters of the stage's model: the geometric mean where it had several."""
    return math.exp(float(law.sample.frame["params"].cast(pl.Float64).log().mean()))  # type: ignore[arg-type]
