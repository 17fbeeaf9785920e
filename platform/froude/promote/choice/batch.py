"""What each batch would cost the target in loss and hours at its tokens, and which one is preferred."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import polars as pl

from froude.config import ConfigError, Run, whole_steps
from froude.laws.batch.growth import Growth, at_horizon, growth, tokens_of
from froude.laws.loss.trade import Part, Trade
from froude.laws.stats.frames import Array
from froude.laws.stats.uncertainty import quantiles
from froude.promote.choice.knob import LEVEL
from froude.promote.choice.step_time import StepTime
from froude.promote.fits import Fits

Prefer = Literal["loss", "time", "price"]
DRAWS = 2000
#: Losses so near, relative to one another, are one: a third of what another seed does to the quietest runs here.
TIE = 1e-3
#: Hours so near, as a proportion, are one: then the batch of less loss is taken.
HOURS_TIE = 0.01
ABOVE = (
    2.0  # times the largest batch that the critical one was measured at: further up it is not known to hold
)


class Priced(NamedTuple):
    """A batch in tokens, its expected loss with 90% of what it is above that of the smallest batch, and its hours.

    `hours` and `worker_hours` are of the target's tokens; the two `to_one_loss` of the tokens with which each batch
    reaches the same loss as the smallest one with the target's. NaN where steps were not timed.
    """

    batch: int
    loss: float
    above: float
    low: float
    high: float
    hours: float
    worker_hours: float
    hours_to_one_loss: float
    worker_hours_to_one_loss: float


@dataclass(frozen=True, eq=False)
class Batches:
    """Every batch that was looked at, small to large; `own` is the target's (a ramp's mean), `critical` at its horizon.

    `critical` is median and 90% interval, `regret` maps batches to what they are expected to cost against the best.
    """

    rows: tuple[Priced, ...]
    own: Priced
    critical: tuple[float, float, float]
    growth: Growth
    timed: str
    _losses: dict[int, Array]

    def at(self, batch: int) -> Priced:
        return next(row for row in (*self.rows, self.own) if row.batch == batch)

    def chosen(self, prefer: Prefer) -> int:
        """The batch that a preference takes; ConfigError where it is of hours and none were timed.

        loss: the largest batch whose expected loss is within .1% of the least. time, price: the batch at which one and
        the same loss takes the fewest hours, or hours times workers; the smaller of two that are within 1%.
        """
        if prefer == "loss":
            least = min(row.loss for row in self.rows)
            return max(row.batch for row in self.rows if row.loss <= least * (1 + TIE))
        key = "hours_to_one_loss" if prefer == "time" else "worker_hours_to_one_loss"
        hours = {row.batch: float(getattr(row, key)) for row in self.rows}
        if not all(map(math.isfinite, hours.values())):
            raise ConfigError(
                f"--prefer {prefer} needs how long steps take, but the study has too few timed trials of one worker to "
                "tell; sweep some, or use --prefer loss"
            )
        least = min(hours.values())
        return min(batch for batch, each in hours.items() if each <= least * (1 + HOURS_TIE))

    def regret(self, batch: int) -> float:
        """What a batch is expected to cost against the best one looked at, nats per token; 0 for a lower loss."""
        best = np.min([self._losses[row.batch] for row in self.rows], axis=0)
        return max(float(np.mean(self._losses[batch] - best)), 0.0)

    def words(self, batch: int) -> str:
        """What a batch costs in loss against the smallest one looked at, and what it saves in hours."""
        here, small = self.at(batch), self.rows[0]
        if here.batch <= small.batch:
            return f"no batch of less loss among those measured; critical batch {self.critical[0]:,.0f} at this horizon"
        share = 100 * here.above / small.loss
        text = (
            f"costs {here.above:.3f} nats ({share:.1f}%; 90%: {here.low:.3f} to {here.high:.3f}) against a batch of "
            f"{small.batch:,}"
        )
        if math.isfinite(here.hours):
            text += f", saves {small.hours - here.hours:.3g} of {small.hours:.3g} hours"
        else:
            text += "; hours are not known"
        return f"{text}; critical batch {self.critical[0]:,.0f} [{self.critical[1]:,.0f}, {self.critical[2]:,.0f}] here"


def check(prefer: str | None) -> Prefer | None:
    """A preference by its name; ConfigError for another name."""
    if prefer is None or prefer in get_args(Prefer):
        return prefer  # type: ignore[return-value]
    raise ConfigError(f"--prefer must be one of {', '.join(get_args(Prefer))}, but got {prefer!r}")


def parts(run: Run) -> list[Part]:
    """The tokens of a run by the batch that they are trained on in."""
    phases = [*run.phases]
    ends = [*(phase.tokens for phase in phases[1:]), run.tokens]
    return [
        Part(end - phase.tokens, phase.factor * run.batch) for phase, end in zip(phases, ends, strict=True)
    ]


def with_batch(run: Run, batch: int) -> Run:
    """The run at one batch, its tokens in whole steps; a ramp is given up for it."""
    if batch == run.phases.mean:
        return run
    return run.replace({"batch": batch, "tokens": whole_steps(run.tokens, batch), "schedule.ramp": ()})


def trade(fits: Fits, params: float) -> Trade | None:
    """The loss law by batch for the study's target; None without a critical batch and a loss law."""
    critical, law = fits.critical, fits.loss
    if critical is None or law is None or not math.isfinite(law.E) or not math.isfinite(critical.b_crit):
        return None
    if not tokens_of(critical) > 0:
        return None
    rng = np.random.default_rng(0)
    draws = at_horizon(critical, fits.target.tokens, growth(fits.horizons), rng, DRAWS)
    return Trade(law, params, law_batch(fits), draws)


def law_batch(fits: Fits) -> float:
    """The batch of the loss law's rows: their geometric mean, the target's where they do not say."""
    sizes = fits.rows["loss_law"].filter(pl.col("status") == "finished")["batch"].drop_nulls()
    return math.exp(float(sizes.log().mean())) if sizes.len() else float(fits.target.phases.mean)  # type: ignore[arg-type]


def looked_at(fits: Fits) -> list[int]:
    """Batches half an octave apart: from the best that was measured to twice the largest, in whole slots.

    The best that was measured reached the loss of stage critical_batch with the fewest tokens; of several as good, by
    the scatter of the fit, the smallest. Below it nothing says that a still smaller one would not be worse.
    """
    critical = fits.critical
    assert critical is not None
    tried = critical.rows.filter(pl.col("steps").is_finite()).sort("batch")
    tokens = (tried["batch"].cast(pl.Float64) * tried["steps"]).to_numpy()
    batch = tried["batch"].cast(pl.Float64).to_numpy()
    scatter = critical.noise if math.isfinite(critical.noise) else 0.0
    floor = float(batch[tokens <= tokens.min() * math.exp(scatter)].min())
    unit = fits.target.slots * fits.target.model.context
    steps = math.floor(2 * math.log2(ABOVE * float(batch.max()) / floor) + 1e-9)
    found = {max(unit, round(floor * 2 ** (i / 2) / unit) * unit) for i in range(steps + 1)}
    return sorted(size for size in found if size <= fits.target.tokens)


def batches(fits: Fits, params: float, *, flops_per_token: float, time: StepTime | None) -> Batches | None:
    """Price every batch for the study's target of `params` parameters; None without a critical batch or a loss law."""
    priced = trade(fits, params)
    if priced is None:
        return None
    target = fits.target
    mean = target.phases.mean
    runs = {size: with_batch(target, size) for size in looked_at(fits)} | {mean: target}
    losses = {size: priced.losses(parts(run)) for size, run in runs.items()}
    small = min(runs)
    worth = {size: priced.worth(parts(run)) for size, run in runs.items()}

    def row(size: int) -> Priced:
        above = losses[size] - losses[small]
        more = float(np.mean(worth[small] / worth[size]))  # tokens to one loss
        wall = workers = math.nan
        if time is not None:
            few, many = target.min_workers, target.max_workers
            wall = time.hours(parts(runs[size]), flops_per_token=flops_per_token, workers=many)
            workers = few * time.hours(parts(runs[size]), flops_per_token=flops_per_token, workers=few)
        low, high = quantiles(above, LEVEL)
        loss = float(np.mean(losses[size]))
        return Priced(
            size, loss, float(np.mean(above)), low, high, wall, workers, wall * more, workers * more
        )

    middle = float(np.median(priced.critical))
    return Batches(
        rows=tuple(row(size) for size in sorted(runs)),
        own=row(mean),
        critical=(middle, *quantiles(priced.critical, LEVEL)),
        growth=growth(fits.horizons),
        timed=time.source if time is not None else "",
        _losses=losses,
    )


def as_in_the_ladder(fits: Fits, params: float) -> tuple[float, float]:
    """The tokens at the ladder's batch that the target's are worth, and the sd of ln loss by what is not known of them.

    Its own tokens, and 0, where its batch is among the ladder's, which has then measured it, and without a critical one.
    """
    target = fits.target
    sizes = fits.rows["loss_law"].filter(pl.col("status") == "finished")["batch"].drop_nulls().to_list()
    priced = trade(fits, params)
    if priced is None or not sizes or min(sizes) <= target.phases.mean <= max(sizes):
        return float(target.tokens), 0.0
    worth = priced.worth(parts(target))
    middle = float(np.median(worth))
    law = priced.law
    losses = law.E + law.A / params**law.alpha + law.B / worth**law.beta
    return middle, float(np.log(losses).std())
