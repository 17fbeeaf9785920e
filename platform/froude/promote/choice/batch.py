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
from froude.promote.choice.knob import LEVEL
from froude.promote.choice.step_time import StepTime
from froude.promote.choice.worth import parts, trade, with_batch
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

    `critical` is median and 90% interval, `growth` how it was taken there, `timed` where hours are from,
    `measured` the best batch of stage critical_batch, in tokens.
    """

    rows: tuple[Priced, ...]
    own: Priced
    critical: tuple[float, float, float]
    growth: Growth
    timed: str
    measured: float
    _reference: Array  # losses at the best batch that was measured, whatever the slots
    _losses: dict[int, Array]
    _extra: dict[int, Array]  # tokens that take it to the loss of the smallest batch, over the target's

    def at(self, batch: int) -> Priced:
        return next(row for row in (*self.rows, self.own) if row.batch == batch)

    def chosen(self, prefer: Prefer) -> int:
        """The batch that a preference takes; ConfigError where it is of hours and none were timed.

        loss: the largest batch whose expected loss is within .1% of the least. time, price: the batch at which one and
        the same loss takes the fewest hours, or hours times workers; the smaller of two that are within 1%.
        """
        return int(self._picked(prefer, [np.array([draws.mean()]) for draws in self._judged(prefer)])[0])

    def interval(self, prefer: Prefer) -> tuple[float, float]:
        """90% of the batch that the preference would take if all were known."""
        low, high = quantiles(self._picked(prefer, self._judged(prefer)), LEVEL)
        return low, high

    def _judged(self, prefer: Prefer) -> list[Array]:
        """For each row the draws of what the preference makes least."""
        if prefer == "loss":
            return [self._losses[row.batch] for row in self.rows]
        key = "hours" if prefer == "time" else "worker_hours"
        hours = [float(getattr(row, key)) for row in self.rows]
        if not all(map(math.isfinite, hours)):
            raise ConfigError(
                f"--prefer {prefer} needs how long steps take, but the study has too few timed trials of one worker to "
                "tell; sweep some, or use --prefer loss"
            )
        return [each * self._extra[row.batch] for each, row in zip(hours, self.rows, strict=True)]

    def _picked(self, prefer: Prefer, judged: list[Array]) -> Array:
        """The batch of least loss or hours by draw; of those that tie, the largest by loss, the smallest by hours."""
        table, sizes = np.array(judged), np.array([row.batch for row in self.rows])
        tie = TIE if prefer == "loss" else HOURS_TIE
        ties = table <= table.min(axis=0) * (1 + tie)
        last = sizes.size - 1 - ties[::-1].argmax(axis=0)
        return np.asarray(sizes[last if prefer == "loss" else ties.argmax(axis=0)])

    def regret(self, batch: int) -> float:
        """What a batch is expected to cost in loss against the best one looked at or measured, nats per token."""
        best = np.min([self._reference, *(self._losses[row.batch] for row in self.rows)], axis=0)
        return float(np.mean(self._losses[batch] - best))

    def words(self, batch: int) -> str:
        """What a batch costs in loss against the smallest one looked at, and what it saves in hours."""
        here, small = self.at(batch), self.rows[0]
        critical = "critical batch {:,.0f} [{:,.0f}, {:,.0f}] at this horizon".format(*self.critical)
        if here.batch <= small.batch:
            bound = (
                f"the smallest in whole slots × context; {self.measured:,.0f}, the best that was measured, would lose "
                f"{self.regret(small.batch):.3f} nats less (give the target fewer slots)"
                if small.batch > 1.1 * self.measured
                else "the best that was measured, and so of least loss"
            )
            return f"{bound}; {critical}"
        share = 100 * here.above / small.loss
        text = (
            f"costs {here.above:.3f} nats ({share:.1f}%; 90%: {here.low:.3f} to {here.high:.3f}) against a batch of "
            f"{small.batch:,}"
        )
        if math.isfinite(here.hours):
            size, unit = next((each for each in UNITS if small.hours >= each[0]), UNITS[-1])
            text += f", saves {(small.hours - here.hours) / size:.3g} of {small.hours / size:.3g} {unit}"
        else:
            text += "; hours are not known"
        return f"{text}; {critical}"


def unknown(status: str) -> str:
    """Why nobody knows what a batch costs, by the status of the critical one; "planned" before it has been measured."""
    if status == "planned":
        return "what it costs in loss and saves in hours is known when stage critical_batch has run"
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


def looked_at(fits: Fits) -> list[int]:
    """Batches half an octave apart: from the best that was measured to twice the largest, in whole slots × context."""
    assert fits.critical is not None
    floor = best_measured(fits)
    largest = float(fits.critical.rows.filter(pl.col("steps").is_finite())["batch"].max())  # type: ignore[arg-type]
    unit = fits.target.slots * fits.target.model.context
    steps = math.floor(2 * math.log2(ABOVE * largest / floor) + 1e-9)
    found = {max(unit, round(floor * 2 ** (i / 2) / unit) * unit) for i in range(steps + 1)}
    return sorted(size for size in found if size <= fits.target.tokens)


def batches(fits: Fits, params: float, *, flops_per_token: float, time: StepTime | None) -> Batches | None:
    """Price every batch for the study's target of `params` parameters; None without a critical batch or a loss law."""
    priced = trade(fits, params)
    if priced is None:
        return None
    target, floor = fits.target, best_measured(fits)
    mean = target.phases.mean
    runs = {size: with_batch(target, size) for size in looked_at(fits)} | {mean: target}
    losses = {size: priced.losses(parts(run)) for size, run in runs.items()}
    small = min(runs)
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
        measured=floor,
        _reference=priced.losses([Part(float(target.tokens), floor)]),
        _losses=losses,
        _extra=extra,
    )
