"""What each batch would cost the target in loss and hours at its tokens, and which one is preferred."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import polars as pl

from froude.config import ConfigError
from froude.laws.batch.growth import Growth, growth
from froude.laws.loss.trade import Part
from froude.laws.stats.frames import Array
from froude.laws.stats.uncertainty import quantiles
from froude.promote.checks.reach import BATCH, rates_batch
from froude.promote.choice.knob import LEVEL, number
from froude.promote.choice.step_time import StepTime
from froude.promote.choice.worth import ladder_batches, parts, trade, with_batch
from froude.promote.fits import Fits

Prefer = Literal["loss", "time", "price"]
#: Losses so near, relative to one another, are one: a third of what another seed does to the quietest runs here.
TIE = 1e-3
#: Hours so near, as a proportion, are one: then the batch of less loss is taken.
HOURS_TIE = 0.01
#: Times the largest batch that the critical one was measured at: further up nothing vouches for it.
ABOVE = 2.0
UNITS = ((1.0, "hours"), (1 / 60, "minutes"), (1 / 3600, "seconds"))


class Priced(NamedTuple):
    """A batch in tokens, its expected loss with 90% of what it is above that of the smallest batch, and its hours.

    `hours` and `worker_hours` are of the target's tokens; those `to_one_loss` of the tokens with which each batch
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


@dataclass(frozen=True, eq=False)
class Batches:
    """Every batch that was looked at, small to large; `own` is the target's (a ramp's mean), `critical` at its horizon.

    `critical` is median and 90% interval, `growth` how it was taken there, `timed` where hours are from,
    `measured` the best batch of stage critical_batch, `least` and `largest` the ends of those that it had, in tokens. A
    preference takes one of `offered`, which the gate does not refuse; `capped` if it keeps others from being looked at.
    """

    rows: tuple[Priced, ...]
    own: Priced
    offered: tuple[int, ...]
    capped: bool
    critical: tuple[float, float, float]
    growth: Growth
    timed: str
    measured: float
    least: float
    largest: float
    _reference: Array  # losses at the best batch that was measured, whatever the slots
    _losses: dict[int, Array]
    _extra: dict[int, Array]  # tokens that take it to the loss of the smallest batch, over the target's

    def at(self, batch: int) -> Priced:
        return next(row for row in self.rows if row.batch == batch)

    @property
    def smallest(self) -> Priced:
        """That of those offered, against which the others are told; the target's own where none is."""
        return self.at(self.offered[0]) if self.offered else self.own

    def chosen(self, prefer: Prefer) -> int:
        """The batch that a preference takes; ConfigError where none is offered, or it is of hours and none were timed.

        loss: the largest batch whose expected loss is within .1% of the least. time, price: the batch at which one and
        the same loss takes the fewest hours, or hours times workers; the smaller of two that are within 1%.
        """
        if not self.offered:
            raise ConfigError(
                f"--prefer {prefer} chooses among batches in whole slots × context, from the best that was measured "
                f"({self.measured:,.0f}) to what the gate allows (extrapolation_batch), but there is none; give the "
                "target fewer slots, add proxies and rates of its batch (loss_law, lr_transfer), or leave --prefer out"
            )
        return int(self._picked(prefer, [np.array([draws.mean()]) for draws in self._judged(prefer)])[0])

    def interval(self, prefer: Prefer) -> tuple[float, float]:
        """90% of the batch that the preference would take if all were known; NaN where none is offered."""
        if not self.offered:
            return math.nan, math.nan
        low, high = quantiles(self._picked(prefer, self._judged(prefer)), LEVEL)
        return low, high

    def _judged(self, prefer: Prefer) -> list[Array]:
        """For each batch on offer the draws of what the preference makes least."""
        if prefer == "loss":
            return [self._losses[size] for size in self.offered]
        key = "hours" if prefer == "time" else "worker_hours"
        hours = [float(getattr(self.at(size), key)) for size in self.offered]
        if not all(map(math.isfinite, hours)):
            raise ConfigError(
                f"--prefer {prefer} needs how long steps take, but the study has too few timed trials of one worker to "
                "tell; sweep some, or use --prefer loss"
            )
        return [each * self._extra[size] for each, size in zip(hours, self.offered, strict=True)]

    def _picked(self, prefer: Prefer, judged: list[Array]) -> Array:
        """The batch of least loss or hours by draw; of those that tie, the largest by loss, the smallest by hours."""
        table, sizes = np.array(judged), np.array(self.offered)
        tie = TIE if prefer == "loss" else HOURS_TIE
        ties = table <= table.min(axis=0) * (1 + tie)
        last = sizes.size - 1 - ties[::-1].argmax(axis=0)
        return np.asarray(sizes[last if prefer == "loss" else ties.argmax(axis=0)])

    def regret(self, batch: int) -> float:
        """What a batch is expected to cost in loss against the best one offered or measured, nats per token.

        NaN below the best that was measured, where the law of its cost does not hold.
        """
        return float(np.mean(self._above(batch)))

    def worst(self, batch: int) -> float:
        """The upper end of that cost, at 95%."""
        return float(np.quantile(self._above(batch), (1 + LEVEL) / 2))

    def _above(self, batch: int) -> Array:
        if batch < self.measured:
            return np.array([math.nan])
        best = np.min([self._reference, *(self._losses[size] for size in self.offered)], axis=0)
        return np.asarray(self._losses[batch] - best)

    def rule(self, prefer: Prefer | None, batch: int) -> str:
        """How a batch was chosen, and `words` on it."""
        if prefer is None:
            return self.words(batch)
        among = f" among {self.offered[0]:,} to {self.offered[-1]:,}"
        if self.capped:
            among += ", as far as the gate allows (extrapolation_batch)"
        text = f"--prefer {prefer}{among}; {self.words(batch)}"
        if prefer == "loss" or batch <= self.smallest.batch:
            return text
        more = 100 * (float(np.mean(self._extra[batch])) - 1)
        return (
            f"{text}; {more:.0f}% more tokens would bring it to the loss of {self.smallest.batch:,}; the regret is of "
            f"loss, not of {'hours' if prefer == 'time' else 'hours × workers'}"
        )

    def words(self, batch: int) -> str:
        """What a batch costs in loss against the smallest one on offer, and what it saves in hours, by which times."""
        here, small = self.at(batch), self.smallest
        critical = "critical batch {:,.0f} [{:,.0f}, {:,.0f}] at this horizon".format(*self.critical)
        if here.batch > self.largest:
            critical = f"it lies beyond {self.largest:,.0f}, the largest that was measured; {critical}"
        if here.batch < self.measured:
            return (
                f"below {self.measured:,.0f}, the best that was measured: what it costs in loss against that is not "
                f"known; {critical}"
            )
        if here.batch <= small.batch:
            if small.batch > 1.1 * self.measured:
                bound = (
                    "no smaller one is in whole slots × context and allowed by the gate; "
                    f"{self.measured:,.0f}, the best that was measured, would lose {self.regret(small.batch):.3f} nats "
                    "less (give the target fewer slots)"
                )
            elif self.measured > self.least:
                bound = "the best that was measured, and so of least loss"
            else:
                bound = (
                    "the best that was measured, but also the smallest of stage critical_batch: a smaller one may lose "
                    "less (add some)"
                )
            return f"{bound}; {critical}"
        share = 100 * here.above / small.loss
        text = (
            f"costs {here.above:.3f} nats ({share:.1f}%; 90%: {here.low:.3f} to {here.high:.3f}) against a batch of "
            f"{small.batch:,}"
        )
        if math.isfinite(here.hours):
            size, unit = next((each for each in UNITS if small.hours >= each[0]), UNITS[-1])
            saved = " of ".join(number(hours / size) for hours in (small.hours - here.hours, small.hours))
            saved += f" {unit}"
            text += f", saves {saved} ({self.timed})"
        else:
            text += "; hours are not known"
        return f"{text}; {critical}"


def unknown(status: str) -> str:
    """Why nobody knows what a batch costs, by the status of the critical one; "planned" before it has been measured."""
    if status == "planned":
        return "what it costs in loss is known when stage critical_batch has run: no prior has the critical batch"
    if not status:
        return "what it costs in loss is not known: a stage of the role critical_batch would tell"
    return f"what it costs in loss is not known: the critical batch has no fit (`{status}`); add batch sizes"


def check(prefer: str | None) -> Prefer | None:
    """A preference by its name; ConfigError for another name."""
    if prefer is None or prefer in get_args(Prefer):
        return prefer  # type: ignore[return-value]
    raise ConfigError(f"--prefer must be one of {', '.join(get_args(Prefer))}, but got {prefer!r}")


def best_measured(fits: Fits) -> float:
    """The batch that reached the loss of stage critical_batch with the fewest tokens; of several as good the smallest.

    As good is within the scatter of the fit. Below it nothing says that a still smaller one would not be worse.
    """
    critical = fits.critical
    assert critical is not None
    tried = critical.rows.filter(pl.col("steps").is_finite()).sort("batch")
    tokens = (tried["batch"].cast(pl.Float64) * tried["steps"]).to_numpy()
    batch = tried["batch"].cast(pl.Float64).to_numpy()
    scatter = critical.noise if math.isfinite(critical.noise) else 0.0
    return float(batch[tokens <= tokens.min() * math.exp(scatter)].min())


def ends_measured(fits: Fits) -> tuple[float, float]:
    """The smallest and the largest batch that reached the loss of stage critical_batch."""
    assert fits.critical is not None
    reached = fits.critical.rows.filter(pl.col("steps").is_finite())["batch"].cast(pl.Float64)
    return float(reached.min()), float(reached.max())  # type: ignore[arg-type]


def allowed(fits: Fits) -> tuple[float, float]:
    """The least and the largest batch that the gate's extrapolation_batch lets pass, in tokens."""
    sizes = ladder_batches(fits)
    middles = [float(max(sizes))] if sizes else []
    if (swept := rates_batch(fits)) is not None:
        middles.append(float(swept))
    least, most = ([middle * times for middle in middles] for times in (1 / BATCH.bound, BATCH.bound))
    return max(least, default=0.0), min(most, default=math.inf)


def looked_at(fits: Fits) -> list[int]:
    """Batches half an octave apart, in whole slots × context, that the gate allows.

    They go from the best that was measured, or the next above it, to twice the largest.
    """
    floor, (least, most) = best_measured(fits), allowed(fits)
    unit = fits.target.slots * fits.target.model.context
    first, last = (
        math.ceil(max(floor, least) / unit) * unit,
        math.floor(min(most, fits.target.tokens) / unit) * unit,
    )
    steps = math.floor(2 * math.log2(ABOVE * ends_measured(fits)[1] / floor) + 1e-9)
    found = {max(first, min(last, round(floor * 2 ** (i / 2) / unit) * unit)) for i in range(steps + 1)}
    return sorted(size for size in found if size <= last)


def batches(fits: Fits, params: float, *, flops_per_token: float, time: StepTime | None) -> Batches | None:
    """Price every batch for the study's target of `params` parameters; None without a critical batch or a loss law."""
    priced = trade(fits, params)
    if priced is None:
        return None
    target, floor, (smallest, largest) = fits.target, best_measured(fits), ends_measured(fits)
    mean, (least, most) = target.phases.mean, allowed(fits)
    runs = {size: with_batch(target, size) for size in looked_at(fits)} | {mean: target}
    highest = min(most, ABOVE * largest)
    offered = tuple(sorted(size for size in runs if size != mean or max(floor, least) <= mean <= highest))
    losses = {size: priced.losses(parts(run)) for size, run in runs.items()}
    small = offered[0] if offered else mean
    worth = {size: priced.worth(parts(run)) for size, run in runs.items()}
    extra = {size: worth[small] / each for size, each in worth.items()}

    def row(size: int) -> Priced:
        above = losses[size] - losses[small]
        wall = workers = math.nan
        if time is not None:
            few, many = target.min_workers, target.max_workers
            wall = time.hours(parts(runs[size]), flops_per_token=flops_per_token, workers=many)
            workers = few * time.hours(parts(runs[size]), flops_per_token=flops_per_token, workers=few)
        low, high = quantiles(above, LEVEL)
        loss = float(np.mean(losses[size]))
        more = float(np.mean(extra[size]))
        return Priced(size, loss, float(np.mean(above)), low, high, wall, workers, wall * more)

    middle = float(np.median(priced.critical))
    return Batches(
        rows=tuple(row(size) for size in sorted(runs)),
        own=row(mean),
        offered=offered,
        capped=most < ABOVE * largest or least > max(floor, target.slots * target.model.context),
        critical=(middle, *quantiles(priced.critical, LEVEL)),
        growth=growth(fits.horizons),
        timed=time.source if time is not None else "",
        measured=floor,
        least=smallest,
        largest=largest,
        _reference=priced.losses([Part(float(target.tokens), floor)]),
        _losses=losses,
        _extra=extra,
    )
