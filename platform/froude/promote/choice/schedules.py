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
from froude.laws.stats.frames import Array
from froude.schedules import SCHEDULES

MIN_HORIZONS, MIN_SEEDS = 2, 2
LEVEL = 0.9
NO_TAIL = -1.0  # the share that stands for a schedule without one
Label = tuple[str, float]


class Against(NamedTuple):
    """How far another schedule's loss is above that of the recipe's (`loss`, 90%), nats per token.

    `pairs` counts seeds times horizons, `regret` is what the recipe's is expected to cost if it is the worse one.
    `split` says how horizons disagree on which one is better; "" where they do not.
    """

    name: str
    loss: float
    low: float
    high: float
    pairs: int
    regret: float
    split: str = ""

    def __str__(self) -> str:
        if self.split:
            return f"horizons disagree on {self.name}: {self.split}"
        interval = f"[{self.low:+.4f}, {self.high:+.4f}]"
        return (
            f"{self.name} {self.loss:+.4f} {interval} nats, {self.pairs} pairs of runs, each at its best rate"
        )


class Compared(NamedTuple):
    """The recipe's schedule against other schedules, and against the same one with tails of other lengths."""

    schedules: tuple[Against, ...] = ()
    tails: tuple[Against, ...] = ()


def compared(rows: pl.DataFrame, run: Run) -> Compared:
    """The schedule of `run` against every other that was swept alike; empty where it was not compared."""
    done = rows.filter(pl.col("status") == "finished").drop_nulls(["schedule", "tokens", "seed", "lr"])
    tailed = pl.col("schedule").is_in([name for name, spec in SCHEDULES.items() if spec.has_tail])
    done = done.with_columns(pl.when(tailed).then("decay_fraction").fill_null(NO_TAIL))
    floors: dict[Label, dict[tuple[int, int], float]] = {}
    for (name, tail, tokens), curve in done.group_by(
        "schedule", "decay_fraction", "tokens", maintain_order=True
    ):
        found = _floors(curve)
        floors.setdefault((str(name), float(tail)), {}).update(
            {(int(tokens), seed): loss for seed, loss in found.items()}
        )
    scheduled = run.schedule.name
    own = floors.pop(
        (scheduled, run.schedule.decay_fraction if SCHEDULES[scheduled].has_tail else NO_TAIL), {}
    )
    names = [name for name, _ in floors] + [scheduled]
    schedules: list[Against] = []
    tails: list[Against] = []
    for (name, tail), theirs in floors.items():
        called = f"{name} with a tail of {tail:g}" if names.count(name) > 1 else name
        if (one := _against(called, own, theirs, run.tokens)) is not None:
            (tails if name == scheduled else schedules).append(one)
    return Compared(*(tuple(sorted(each, key=lambda one: one.loss)) for each in (schedules, tails)))


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
    name: str, own: Mapping[tuple[int, int], float], theirs: Mapping[tuple[int, int], float], target: int
) -> Against | None:
    """The paired difference over seeds and horizons, for a target of so many tokens; None with one of either."""
    shared = sorted(own.keys() & theirs.keys())
    by = {
        tokens: np.array([theirs[key] - own[key] for key in shared if key[0] == tokens])
        for tokens, _ in shared
    }
    by = {tokens: pairs for tokens, pairs in by.items() if pairs.size >= MIN_SEEDS}
    if len(by) < MIN_HORIZONS:
        return None
    means, sizes = (np.array([f(pairs) for pairs in by.values()]) for f in (np.mean, np.size))
    dof = int(sizes.sum()) - len(by)
    variance = sum(float(((pairs - pairs.mean()) ** 2).sum()) for pairs in by.values()) / dof
    widen = float(stats.t.ppf(0.5 + LEVEL / 2, dof))
    loss = float(means.mean())
    se = math.sqrt(variance * float((1 / sizes).sum())) / len(by)
    below = -loss / se if se > 0 else math.copysign(math.inf, -loss)
    regret = max(-loss, 0.0)
    if math.isfinite(below):
        regret = -loss * float(stats.norm.cdf(below)) + se * float(stats.norm.pdf(below))
    split = ""
    if _turns(np.log([*by]), means, widen * np.sqrt(variance / sizes), math.log(target)):
        split = ", ".join(
            f"{mean:+.4f} nats at {tokens:,} tokens" for tokens, mean in zip(by, means, strict=True)
        )
        regret = math.nan
    pairs = int(sizes.sum())
    return Against(name, loss, loss - widen * se, loss + widen * se, pairs, regret, split)


def _turns(x: Array, means: Array, half: Array, target: float) -> bool:
    """Whether which of the two is better depends on the horizon.

    Either two horizons have other signs, each beyond its error (`half`); or the line through them in `x`, ln tokens,
    has a slope, and at the target another sign than the mean.
    """
    if (means > half).any() and (means < -half).any():
        return True
    weights = 1 / np.maximum(half, 1e-9) ** 2
    away = x - np.average(x, weights=weights)
    slope = float((weights * away * means).sum() / (weights * away**2).sum())
    middle = float(np.average(means, weights=weights))
    there = middle + slope * (target - float(np.average(x, weights=weights)))
    return bool(abs(slope) > float((weights * away**2).sum()) ** -0.5 and there * means.mean() < 0)
