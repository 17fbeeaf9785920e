"""What a mis-set peak rate adds to the target's loss, and which runs of stage lr_transfer would take most of it off."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import polars as pl

from froude.config import Run
from froude.laws.loss.design import WORTH
from froude.laws.lr.drift import COST, Drift, More
from froude.promote.checks.drift import LR_TRANSFERS, drift, in_words, lacks_power
from froude.promote.choice.rate import BIAS, Rate, rate, shape_error, token_step
from froude.promote.fits import Fits
from froude.promote.gate import Profile
from froude.promote.planner.words import LINE, short

SHOWN = 3  # sets of rates


@dataclass(frozen=True)
class RateRuns:
    """Runs of stage lr_transfer: which, their tokens and FLOPs, the cost in the plan's unit.

    `takes_off` is the expected proportion of the variance of the target's loss about its forecast that they remove.
    """

    words: str
    runs: More
    tokens: float
    flops: float
    cost: float
    takes_off: float

    @property
    def value(self) -> float:
        """What they take off for a unit of cost."""
        return self.takes_off / self.cost

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        content = {name: getattr(self, name) for name in ("tokens", "flops", "cost", "takes_off", "value")}
        each = {"rates": self.runs.rates, "seeds": self.runs.seeds, "sizes": list(map(dict, self.runs.sizes))}
        return {"runs": self.runs.runs, **each, **content}


@dataclass(frozen=True)
class NextRates:
    """What the promoted rate is expected to cost against the best one, and runs that would place that better.

    `rate` has this regret's mean and standard deviation; `share` is its part of the variance of the target's loss about
    its forecast, which is of a run at the best rate, so that the mean's square counts, too. `first` is what the proxy
    of the loss law that is ranked first takes off that variance for a unit of cost. `sets` are ranked, best first.
    `fails` says why the check lr_transfers would, and what helps; where it is unknown for want of runs, `settles` are
    those with which it could tell.
    """

    rate: Rate
    share: float
    first: float
    sets: tuple[RateRuns, ...]
    fails: str
    settles: RateRuns | None

    def to_dict(self, loss: float) -> dict[str, Any]:
        """Plain JSON types; the regret in nats per token."""
        settled = self.settles.to_dict() if self.settles else None
        return {
            "regret": {"mean": loss * self.rate.regret, "sd": loss * self.rate.deviation},
            "first_proxy_takes_off_per_cost": self.first,
            "sets": [each.to_dict() for each in self.sets],
            "lr_transfers": {"fails": self.fails, "settles": settled} if self.fails else None,
        }

    def rows(self, scale: float, unit: str) -> list[str]:
        """The sets as a table."""
        if not self.sets:
            return []
        per = f"per {short(scale)} {unit}"
        found = [f"rates   runs    tokens     FLOPs  takes off  {per}"]
        for place, each in enumerate(self.sets[:SHOWN], 1):
            numbers = (
                f"{place:>5}{each.runs.runs:>7}{short(each.tokens):>10}{short(each.flops):>10}{each.takes_off:>11.1%}"
                f"{f'{each.value * scale:.2%}':>{len(per) + 2}}  "
            )
            found += textwrap.wrap(numbers + each.words, LINE, subsequent_indent=" " * len(numbers))
        return found

    def sentences(self, loss: float, unit: str) -> list[str]:
        """What the rate may cost, and what would help."""
        mean, sd = self.rate.regret, self.rate.deviation
        said = [
            "The forecast is of a run at its best peak rate. The promoted one is expected to cost "
            f"{loss * mean:.2g} nats per token more, with a standard deviation of {loss * sd:.2g} "
            f"({100 * mean:.2g} and {100 * sd:.2g}% of the loss), which the interval does not hold."
        ]
        if self.sets:
            best, one = self.sets[0], unit.removesuffix("s")
            than = "more" if best.value > self.first else "less"
            said.append(
                f"Of more rates for stage lr_transfer, {best.words} should take the most off the variance per {one}, "
                f"{100 * best.takes_off:.2g}% of it; {than} per {one} than the proxy that is ranked first."
            )
        if self.fails:
            said.append(f"The check lr_transfers would fail ({self.fails}).")
        if self.settles:
            settles = self.settles
            said.append(
                f"If the best rate stays, {settles.runs.runs} runs of stage lr_transfer would let it pass in four "
                f"studies of five: {settles.words}, {short(settles.tokens)} tokens and {short(settles.flops)} FLOPs, "
                f"which should take off {100 * settles.takes_off:.2g}%."
            )
        buys = self.rate.buys(loss) if self.sets or self.fails else ""
        return [*said, *([f"For the rate {buys}."] if buys else [])]


def next_rates(
    fits: Fits,
    run: Run,
    parts: Mapping[str, float],
    first: float,
    unit: Literal["tokens", "flops"],
    most: float,
    bounds: Profile,
) -> NextRates | None:
    """Return what the rate of `run`, which is the study's target, may cost; None where the study has no rate law.

    `parts` are those of the forecast's variance, relative to the loss, `first` what the first proxy takes off it for a
    unit of cost. Sets of more than `most` FLOPs are left out. There are sets where the rate is the largest part, or the
    check lr_transfers is unknown for want of runs.
    """
    known = rate(fits, run)
    if known is None:
        return None
    now = _square(known)
    whole = sum(parts.values()) + now
    moved, regret = drift(fits), bounds.bound(LR_TRANSFERS)
    doubtful = moved is not None and lacks_power(moved, regret)
    sets: list[RateRuns] = []
    fails, settles = "", None
    grid = fits.rows[f"lr_transfer_{run.parametrization}"]
    far = token_step(grid, run)
    swept: list[float] = fits.rows.get(f"lr_drift_{run.parametrization}", grid)["tokens"].to_list()

    def offered(more: More, found: Drift) -> RateRuns:
        tokens, flops = _cost(grid, more)
        off = (now - _square(_with(known, found, more, swept, far))) / whole
        cost = {"tokens": tokens, "flops": flops}[unit]
        return RateRuns(in_words(more, found), more, tokens, flops, cost, max(off, 0.0))

    if moved is not None and (doubtful or now >= max(parts.values())):
        sets = [offered(more, moved) for more in moved.options(regret)]
        sets = [each for each in sets if each.takes_off >= WORTH and each.flops < most]
        sets.sort(key=lambda each: (-each.value, each.cost))
    if moved is not None:
        more = moved.more(regret) if doubtful else None
        settles = offered(more, moved) if more is not None else None
        finding = LR_TRANSFERS.find(moved, regret)
        if not finding.passed:
            fails = (
                finding.value
                if settles
                else "; ".join([finding.value, finding.remedy or LR_TRANSFERS.remedy])
            )
    return NextRates(known, now / whole, first / whole, tuple(sets), fails, settles)


def _square(known: Rate) -> float:
    """The mean square of the regret, as a proportion of the loss squared."""
    return known.regret**2 + known.deviation**2


def _with(known: Rate, found: Drift, more: More, swept: list[float], far: float) -> Rate:
    """What would be known of the rate with more runs, whatever their losses turn out to be.

    The line's error shrinks as that of the optimum in the joint fit of all rates does, but for what a curve's shape
    does to it. The shift over the horizon (`far`, in ln tokens, from those `swept`) keeps what other runs and the prior
    tell of it, and gains in precision what these rates do.
    """

    def error(more: More | None) -> float:
        new = [sizes["tokens"] for sizes in more.sizes] if more else []
        return math.hypot(found.error("tokens", more), shape_error([*swept, *new], far))

    parts = []
    for part in known.parts:
        sd = part.sd
        if part.name == "line" and math.isfinite(before := found.error()):
            noise = math.sqrt(max(sd**2 - BIAS**2, 0.0)) * min(found.error(added=more) / before, 1.0)
            sd = math.hypot(noise, BIAS)
        elif part.name == "horizon":
            gained = error(more) ** -2 - error(None) ** -2
            sd = (sd**-2 + max(gained, 0.0)) ** -0.5
        parts.append(replace(part, sd=sd))
    return replace(known, parts=tuple(parts), sd=math.sqrt(sum(part.sd**2 for part in parts)))


def _cost(rows: pl.DataFrame, more: More) -> tuple[float, float]:
    """Tokens and FLOPs (6·params·tokens); a size that was not swept has the parameters of the nearest, scaled."""
    tokens = flops = 0.0
    swept = rows.select("width", "depth", "params").unique().sort("width", "depth", "params").to_dicts()
    for sizes in more.sizes:
        each = more.rates * more.seeds * sizes["tokens"]
        nearest = min(swept, key=lambda row: abs(_larger(sizes, row)))
        tokens += each
        flops += 6 * each * nearest["params"] * math.exp(_larger(sizes, nearest))
    return tokens, flops


def _larger(sizes: Mapping[str, float], row: Mapping[str, Any]) -> float:
    """How many times the parameters of a row a model of these sizes has, in ln."""
    axes = [axis for axis in ("width", "depth") if axis in sizes and row[axis]]
    return sum(COST.get(axis, 1) * math.log(sizes[axis] / row[axis]) for axis in axes)
