"""What a study's search says of beta2 and warmup: where the best ones may lie, given all of its trials."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from froude.laws.lr.bowl import Belief, Bowl, bowl
from froude.laws.lr.exponent import NORMAL
from froude.laws.stats.frames import Array
from froude.laws.stats.uncertainty import quantiles
from froude.optimizers import OPTIMIZERS
from froude.optimizers.times import LEAST_BETA2, MOST_BETA2
from froude.promote.choice.knob import LEVEL, Source
from froude.promote.ladder.regret import CURVATURE

#: Of the rate: that it lies about the middle of those tried. Of the warmup as a share of the tokens: 2 to 20%. Of
#: the half-life of beta2 in tokens: that of .95, or of the optimizer's own default, at the search's batch within a
#: factor of four, which is .9 to .99.
RATE_SD, WARMUP, HALF_LIFE_SD = 1.5, (math.log(0.06), 0.7), 0.8
BETA2 = 0.95
#: ln κ of warmup and half-life: .015, from 1% for a factor of three in the warmup of byte-level proxies.
BEND = (math.log(0.015), 1.0)
#: The mean of κ by that belief.
MEAN_BEND = math.exp(BEND[0] + BEND[1] ** 2 / 2)
TOLD = 0.7  # of its prior's standard deviation: with more left, a setting is the prior's
LEAST_TRIALS = 6
SAME = 0.05  # in ln: settings so near are one, since they are rounded to steps
#: Trials farther above the best lie where no bowl does; of more than so many the best are kept.
NEAR, MOST_TRIALS = 1.2, 100


@dataclass(frozen=True)
class Found:
    """What is believed of one setting's best value, with 90%; and what the promoted value is expected to cost.

    `least` is what the value of least expected cost would cost. `bend` is the mean of κ: a value costs
    ½ κ (ln value - ln best)² as a proportion of the loss.
    """

    middle: float
    low: float
    high: float
    regret: float
    source: Source
    bend: float
    least: float

    def worst(self, value: float, *ends: float) -> float:
        """What a value costs, as a proportion of the loss, if the best one lies at the farther of the ends."""
        return 0.5 * self.bend * max(math.log(value / end) ** 2 for end in ends)

    def still(self, sd: float, prior: float) -> Source:
        """Its source, with such an error added: measured as long as clearly less is open than beforehand (`prior`)."""
        own = math.log(self.high / self.low) / 2 / NORMAL
        return "prior" if sd and math.hypot(own, sd) >= TOLD * prior else self.source

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

    `regret` is a proportion of the loss, of the best trial's settings, or of another half-life if one is given. With
    fewer than `LEAST_TRIALS` trials it is all as believed beforehand.
    """
    batch, rows = best["batch"] * 1.0, near_best(search)
    if not rows.height:
        return {}
    columns, beliefs = _columns(rows, batch)
    life = promoted_half_life if promoted_half_life > 0 else half_life(best["beta2"], batch)
    promoted = {"warmup": best["warmup_tokens"] / best["tokens"], "half_life": life}
    here = {
        name: math.log(value)
        for name, value in promoted.items()
        if value > 0 and np.ptp(columns[name]) >= SAME
    }
    if rows.height < LEAST_TRIALS:
        return {name: _believed(beliefs[name], at) for name, at in here.items()}
    drawn = _bowl(rows, columns, beliefs)
    found = {}
    for name, at in here.items():
        i = list(columns).index(name)
        values = np.exp(drawn.best[:, i])
        low, high = quantiles(values, LEVEL)
        told = float(drawn.best[:, i].std()) < TOLD * beliefs[name].best[1]
        source: Source = "measured" if told else "prior"
        bend = float(drawn.bend[:, i].mean())
        least = drawn.regret(i, drawn.cheapest(i))
        found[name] = Found(float(np.median(values)), low, high, drawn.regret(i, at), source, bend, least)
    return found


def best_settings(search: pl.DataFrame, *, batch: float) -> dict[str, float]:
    """`beta2` at this batch and `warmup`, a share of the tokens, that are expected to cost least, by a search's rows.

    For a stage of the role `settled`. Only what the search varied, and no farther than it tried; {} for fewer than
    `LEAST_TRIALS` trials.
    """
    rows = near_best(search)
    if rows.height < LEAST_TRIALS:
        return {}
    columns, beliefs = _columns(rows, batch)
    drawn = _bowl(rows, columns, beliefs)
    found = {
        name: math.exp(min(max(drawn.cheapest(i), tried.min()), tried.max()))
        for i, (name, tried) in enumerate(columns.items())
        if name != "lr" and np.ptp(tried) >= SAME
    }
    if "half_life" in found:
        beta2 = 0.5 ** (batch / found.pop("half_life"))
        found["beta2"] = min(max(beta2, LEAST_BETA2), MOST_BETA2)
    return {name: float(f"{value:.4g}") for name, value in found.items()}


def near_best(search: pl.DataFrame) -> pl.DataFrame:
    """The trials that the bowl is fitted to."""
    rows = search.filter(
        pl.col("status") == "finished",
        pl.col("loss") > 0,
        pl.col("lr") > 0,
        pl.col("warmup_tokens") > 0,
        pl.col("beta2").is_between(0, 1, closed="none"),
    ).drop_nulls(["batch", "tokens"])
    return rows.filter(pl.col("loss") <= NEAR * pl.col("loss").min()).sort("loss", "run").head(MOST_TRIALS)


def _columns(rows: pl.DataFrame, batch: float) -> tuple[dict[str, Array], dict[str, Belief]]:
    """The trials' settings in ln, and what is believed of each one's best beforehand."""
    # Over batches the rate goes with their root, and the half-life stays: what else they do is a floor's.
    columns = {
        "lr": (rows["lr"] / (rows["batch"] / batch).sqrt()).log().to_numpy(),
        "warmup": (rows["warmup_tokens"] / rows["tokens"]).log().to_numpy(),
        "half_life": (rows["batch"] * math.log(0.5) / rows["beta2"].log()).log().to_numpy(),
    }
    own = OPTIMIZERS.get(str(rows["optimizer"].drop_nulls().first()).lower())
    beta2 = own.defaults.get("beta2", BETA2) if own is not None else BETA2
    beliefs = {
        "lr": Belief((float(columns["lr"].mean()), RATE_SD), CURVATURE),
        "warmup": Belief(WARMUP, BEND),
        "half_life": Belief((math.log(half_life(beta2, batch)), HALF_LIFE_SD), BEND),
    }
    return columns, beliefs


def _bowl(rows: pl.DataFrame, columns: Mapping[str, Array], beliefs: Mapping[str, Belief]) -> Bowl:
    groups = (
        rows.select(pl.struct("batch", "schedule", "tokens", "width").rank("dense") - 1).to_series().to_list()
    )
    return bowl(np.column_stack([*columns.values()]), rows["loss"].to_numpy(), groups, [*beliefs.values()])


def _believed(belief: Belief, at: float) -> Found:
    """What there is to say before any trial."""
    mean, sd = belief.best
    middle, low, high = (math.exp(mean + ends * NORMAL * sd) for ends in (0, -1, 1))
    least = 0.5 * MEAN_BEND * sd**2
    regret = least + 0.5 * MEAN_BEND * (at - mean) ** 2
    return Found(middle, low, high, regret, "prior", MEAN_BEND, least)


def tried_one(search: pl.DataFrame, column: str) -> bool:
    """Whether all trials of a search had the same `beta2`, `warmup_tokens` or `rest_lr`, which is then its user's.

    The same is also one half-life, or one share of the tokens, at several batches.
    """
    same = [pl.col(column)]
    if column == "beta2":
        same.append(pl.col("batch") * math.log(0.5) / pl.col("beta2").log())
    if column == "warmup_tokens":
        same.append(pl.col("warmup_tokens") / pl.col("tokens"))
    tried = search.filter(pl.col("status") == "finished").drop_nulls([column, "batch", "tokens"])
    if not tried.height:
        return True
    exact, *scaled = (tried.select(each.alias("value"))["value"] for each in same)
    return exact.n_unique() == 1 or any(
        0 < each.min() and each.max() <= each.min() * math.exp(SAME)  # type: ignore[operator]
        for each in scaled
    )
