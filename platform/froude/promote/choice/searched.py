"""What a study's search says of beta2 and warmup: where the best ones may lie, given all of its trials."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from froude.laws.lr.bowl import Belief, bowl
from froude.laws.lr.exponent import NORMAL
from froude.laws.stats.uncertainty import quantiles
from froude.promote.choice.knob import LEVEL, Source
from froude.promote.ladder.regret import CURVATURE

#: Of the rate: that it lies about the middle of those tried. Of the warmup as a share of the tokens: 2 to 20%. Of
#: the half-life of beta2 in tokens: that of .95 at the search's batch within a factor of four, which is .9 to .99.
RATE_SD, WARMUP, HALF_LIFE_SD = 1.5, (math.log(0.06), 0.7), 0.8
BETA2 = 0.95
#: ln κ of warmup and half-life: .015, from 1% for a factor of three in the warmup of byte-level proxies.
BEND = (math.log(0.015), 1.0)
#: The mean of κ by that belief.
MEAN_BEND = math.exp(BEND[0] + BEND[1] ** 2 / 2)
TOLD = 0.7  # of its prior's standard deviation: with more left, a setting is the prior's
LEAST_TRIALS = 6
#: Trials farther above the best lie where no bowl does; of more than so many the best are kept.
NEAR, MOST_TRIALS = 1.2, 100


@dataclass(frozen=True)
class Found:
    """What is believed of one setting's best value, with 90%; and what the promoted value is expected to cost."""

    middle: float
    low: float
    high: float
    regret: float
    source: Source

    def wider(self, sd: float) -> tuple[float, float]:
        """The interval where the best value has moved by a factor known to this standard deviation of its ln."""
        low, high = (math.hypot(math.log(end / self.middle), NORMAL * sd) for end in (self.low, self.high))
        return self.middle * math.exp(-low), self.middle * math.exp(high)


def half_life(beta2: float, batch: float) -> float:
    """Tokens after which a gradient counts half; NaN for a beta2 of 0 or 1."""
    return batch * math.log(0.5) / math.log(beta2) if 0 < beta2 < 1 else math.nan


def searched(
    search: pl.DataFrame, best: Mapping[str, Any], *, promoted_half_life: float = math.nan
) -> dict[str, Found]:
    """`warmup` (a share of the tokens) and `half_life` (tokens), as far as the search's rows varied them.

    `regret` is a proportion of the loss, of the best trial's settings, or of another half-life if one is given.
    """
    batch = best["batch"] * 1.0
    rows = search.filter(
        pl.col("status") == "finished",
        pl.col("loss") > 0,
        pl.col("lr") > 0,
        pl.col("warmup_tokens") > 0,
        pl.col("beta2").is_between(0, 1, closed="none"),
    ).drop_nulls(["batch", "tokens"])
    rows = rows.filter(pl.col("loss") <= NEAR * pl.col("loss").min()).sort("loss", "run").head(MOST_TRIALS)
    if rows.height < LEAST_TRIALS or not best["warmup_tokens"] or not 0 < best["beta2"] < 1:
        return {}
    # Over batches the rate goes with their root, and the half-life stays: what else they do is a floor's.
    columns = {
        "lr": (rows["lr"] / (rows["batch"] / batch).sqrt()).log().to_numpy(),
        "warmup": (rows["warmup_tokens"] / rows["tokens"]).log().to_numpy(),
        "half_life": (rows["batch"] * math.log(0.5) / rows["beta2"].log()).log().to_numpy(),
    }
    beliefs = {
        "lr": Belief((float(columns["lr"].mean()), RATE_SD), CURVATURE),
        "warmup": Belief(WARMUP, BEND),
        "half_life": Belief((math.log(half_life(BETA2, batch)), HALF_LIFE_SD), BEND),
    }
    here = {
        "warmup": math.log(best["warmup_tokens"] / best["tokens"]),
        "half_life": math.log(
            promoted_half_life if promoted_half_life > 0 else half_life(best["beta2"], batch)
        ),
    }
    groups = (
        rows.select(pl.struct("batch", "schedule", "tokens", "width").rank("dense") - 1).to_series().to_list()
    )
    drawn = bowl(np.column_stack([*columns.values()]), rows["loss"].to_numpy(), groups, [*beliefs.values()])
    found = {}
    for name, at in here.items():
        i = list(columns).index(name)
        if np.ptp(columns[name]) < 0.05:
            continue
        values = np.exp(drawn.best[:, i])
        low, high = quantiles(values, LEVEL)
        told = float(drawn.best[:, i].std()) < TOLD * beliefs[name].best[1]
        found[name] = Found(
            float(np.median(values)), low, high, drawn.regret(i, at), "measured" if told else "prior"
        )
    return found
