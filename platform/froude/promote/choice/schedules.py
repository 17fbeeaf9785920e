"""Schedules compared the way that counts: each at its own best rate, with the same seeds, at two horizons or more.

At one rate the schedule that likes it wins; on one horizon the one that it is long enough for does. Rows are those of
stages of the role schedule, which differ in rate, schedule (its name or the share of its tail), horizon and seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl
from scipy import stats

from froude import laws
from froude.config import Run
from froude.laws.lr.curve import MIN_RATES

MIN_HORIZONS, MIN_SEEDS = 2, 2
LEVEL = 0.9
Label = tuple[str, float]


class Against(NamedTuple):
    """How far another schedule's loss is above that of the recipe's (`loss`, 90%), nats per token.

    `pairs` counts seeds times horizons, `regret` is what the recipe's is expected to cost if it is the worse one.
    """

    name: str
    loss: float
    low: float
    high: float
    pairs: int
    regret: float

    def __str__(self) -> str:
        interval = f"[{self.low:+.4f}, {self.high:+.4f}]"
        return (
            f"{self.name} {self.loss:+.4f} {interval} nats, {self.pairs} pairs of runs, each at its best rate"
        )


def compared(rows: pl.DataFrame, run: Run) -> tuple[Against, ...]:
    """The schedule of `run` against every other that was swept alike; () where it was not compared."""
    done = rows.filter(pl.col("status") == "finished").drop_nulls(["schedule", "tokens", "seed", "lr"])
    done = done.with_columns(pl.col("decay_fraction").fill_null(-1.0))
    floors: dict[Label, dict[tuple[int, int], float]] = {}
    for (name, tail, tokens), curve in done.group_by(
        "schedule", "decay_fraction", "tokens", maintain_order=True
    ):
        found = _floors(curve)
        floors.setdefault((str(name), float(tail)), {}).update(
            {(int(tokens), seed): loss for seed, loss in found.items()}
        )
    own = floors.pop((run.schedule.name, run.schedule.decay_fraction), {})
    names = [name for name, _ in floors] + [run.schedule.name]
    against = []
    for (name, tail), theirs in floors.items():
        called = f"{name} with a tail of {tail:g}" if names.count(name) > 1 else name
        if (one := _against(called, own, theirs)) is not None:
            against.append(one)
    return tuple(sorted(against, key=lambda each: each.loss))


def _floors(curve: pl.DataFrame) -> Mapping[int, float]:
    """The loss of each seed at the best rate of one schedule and horizon; {} where the curve has no minimum."""
    seeds = curve["seed"].n_unique()
    whole = curve.group_by("lr").agg(pl.col("seed").n_unique().alias("n")).filter(pl.col("n") == seeds)["lr"]
    kept = curve.filter(pl.col("lr").is_in(whole.implode()))
    if kept["lr"].n_unique() < MIN_RATES:
        return {}
    means = kept.group_by("lr").agg(pl.col("loss").mean()).sort("lr")
    found = laws.lr_curve(means)
    shape = found.shape()
    if found.status not in ("ok", "flat") or shape is None:
        return {}
    # Each seed's own polynomial at the rate that is best for all: it has the noise of its runs, and no more.
    ends = shape[0][0] * (1 - 1e-9), shape[0][-1] * (1 + 1e-9)
    near = kept.filter(pl.col("lr").is_between(*ends)).group_by("seed", "lr").agg(pl.col("loss").mean())
    floors = {}
    for (seed,), own in near.sort("seed", "lr").group_by("seed", maintain_order=True):
        x = np.log(own["lr"].to_numpy() / found.lr)
        floors[int(seed)] = float(
            np.polynomial.polynomial.polyfit(x, own["loss"].to_numpy(), found.degree)[0]
        )
    return floors


def _against(
    name: str, own: Mapping[tuple[int, int], float], theirs: Mapping[tuple[int, int], float]
) -> Against | None:
    """The paired difference over seeds and horizons; None with fewer than two of either."""
    shared = sorted(own.keys() & theirs.keys())
    horizons = sorted({tokens for tokens, _ in shared})
    by = [np.array([theirs[key] - own[key] for key in shared if key[0] == tokens]) for tokens in horizons]
    by = [pairs for pairs in by if pairs.size >= MIN_SEEDS]
    if len(by) < MIN_HORIZONS:
        return None
    dof = sum(pairs.size - 1 for pairs in by)
    variance = sum(float(((pairs - pairs.mean()) ** 2).sum()) for pairs in by) / dof
    loss = float(np.mean([pairs.mean() for pairs in by]))
    se = math.sqrt(variance * sum(1 / pairs.size for pairs in by)) / len(by)
    half = float(stats.t.ppf(0.5 + LEVEL / 2, dof)) * se
    below = -loss / se if se > 0 else math.copysign(math.inf, -loss)
    regret = max(-loss, 0.0)
    if math.isfinite(below):
        regret = -loss * float(stats.norm.cdf(below)) + se * float(stats.norm.pdf(below))
    return Against(name, loss, loss - half, loss + half, sum(pairs.size for pairs in by), regret)
