"""Which proxies to run next, so that the forecast of a target run narrows, or promotion's gate lets it pass."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl

from froude.config import ConfigError, Run
from froude.laws import Prediction
from froude.laws.loss.calibration import HeldOut
from froude.laws.loss.design import Design, forecast_design
from froude.promote.choice.target_loss import TargetLoss, target_loss
from froude.promote.fits import Fits
from froude.promote.forecast import OTHERS, beside
from froude.promote.gate import profile_named
from froude.promote.planner.bounds import AXES, closed, failing_checks
from froude.promote.planner.candidates import candidates, offered_runs
from froude.promote.planner.next_rates import NextRates, next_rates
from froude.promote.planner.words import COLUMNS, LINE, named, short, weakest

Cost = Literal["tokens", "flops"]
BEYOND = 2.0  # candidates go up to this many times the largest proxy in params and in tokens,
FAR_BEYOND = 4.0  # and up to this many times where the gate's bounds on extrapolation ask for larger ones


@dataclass(frozen=True)
class NextRuns:
    """Candidates ranked, and a set of them.

    `ranked` has `params, tokens, width (null without a template), seed, ratio (tokens per parameter), flops, cost,
    shrink, closes, value`, best first: `shrink` is the proportion by which the forecast's interval is expected to
    narrow, `closes` that by which the target comes nearer to the gate's bounds on extrapolation, in log, and `value`
    whichever of both is `sought`, per unit of cost. `chosen` are the set's runs in order, `shrink` there given those
    before, `after` the interval's expected half-width, relative to the loss, when they are done; a set ends where that
    is `enough`. `failing` are the gate's checks on the loss law that fail now, each with its value and bound.
    `held_out` has what a certificate lacks, `doubted` says that such runs earn none. `shares` are the parts of the
    forecast's variance: law, reach and noise; for the study's target batch and precision, where the law's rows do not
    have them, and rate, where there is a rate law, whose `rates` say what it may cost. `others` are what else is
    forecast from the same runs, nats per token by a field of Forecast; `paid` the FLOPs of all proxies over the
    target's, NaN if unknown.
    """

    params: float
    tokens: float
    unit: Cost
    budget: float | None
    forecast: Prediction
    failing: Mapping[str, str]
    held_out: HeldOut
    doubted: bool
    sought: Literal["shrink", "closes"]
    ranked: pl.DataFrame
    chosen: pl.DataFrame
    after: float
    enough: float
    shares: Mapping[str, float]
    rates: NextRates | None
    others: Mapping[str, float]
    paid: float

    def to_dict(self, top: int) -> dict[str, Any]:
        """Plain JSON types; the first `top` of the ranking."""
        now = self.forecast
        return {
            "target": {"params": self.params, "tokens": self.tokens},
            "forecast": {
                **{name: getattr(now, name) for name in ("loss", "low", "high", "level", "certified")},
                "reasons": list(now.reasons),
                "half_width": now.half_width,
                "extrapolation": dict(now.extrapolation),
                **self.others,
                "noise": now.noise,
                **({"proxies_over_target": self.paid} if math.isfinite(self.paid) else {}),
            },
            "failing": dict(self.failing),
            "held_out": self.held_out._asdict(),
            "cost_in": self.unit,
            "budget": self.budget,
            "sought": self.sought,
            "ranked": self.ranked.head(top).to_dicts(),
            "chosen": self.chosen.to_dicts(),
            "expected_half_width": self.after,
            "enough": self.enough,
            "variance": dict(self.shares),
            **({"rate": self.rates.to_dict(now.loss)} if self.rates else {}),
            "reasons": self.paragraph(),
        }

    def lines(self, top: int) -> list[str]:
        """The same for people."""
        shown = ["params", "tokens", "width", "seed", "ratio", "flops", "shrink"]
        for name in ("width", "seed"):
            if self.ranked[name].null_count():  # candidates without a template, runs on offer without a seed
                shown.remove(name)
        if self.sought == "closes":
            shown.append("closes")

        def cells(row: Mapping[str, Any]) -> str:
            return "".join(COLUMNS[name][1](row[name]).rjust(len(COLUMNS[name][0])) for name in shown)

        scale = 10.0 ** math.floor(math.log10(self.ranked["cost"][0]))
        head = "".join(COLUMNS[name][0] for name in shown)
        word = COLUMNS[self.sought][0].strip()
        found = [f"next{head}  {word} per {short(scale)} {self.unit}"]
        for place, row in enumerate(self.ranked.head(top).iter_rows(named=True), 1):
            found.append(f"{place:>4}{cells(row)}  {row['value'] * scale:.2%}")
        if self._set:
            spent = short(float(self.chosen["cost"].sum())) + (
                f" of {short(self.budget)}" if self.budget else ""
            )
            spent += f" {self.unit}"
            found += ["", f"set of {self.chosen.height} for {spent}, each given those before:"]
            found += [f"    {cells(row)}" for row in self.chosen.iter_rows(named=True)]
        if self.rates is not None and (rows := self.rates.rows(scale, self.unit)):
            found += ["", *rows]
        return [*found, "", *self.reasons()]

    def reasons(self) -> list[str]:
        """The paragraph in lines, and what has to be told beside a forecast."""
        told = beside(
            {OTHERS[key]: loss for key, loss in self.others.items()},
            {axis: self.forecast.extrapolation[name] for axis, name in AXES.items()},
            cost=self.paid,
            noise=self.forecast.noise,
        )
        wrapped = [textwrap.wrap(line, LINE, subsequent_indent=" " * 10) for line in told]
        return [*textwrap.wrap(self.paragraph(), LINE), "", *(line for lines in wrapped for line in lines)]

    def paragraph(self) -> str:
        """Why these runs, in a few sentences."""
        now, first = self.forecast, self.ranked.row(0, named=True)
        said = [
            f"The forecast for a run of {named(self.params, self.tokens)} is {now.loss:.4g} nats per token "
            f"± {100 * now.half_width:.2g}% at {100 * now.level:.0f}%."
        ]
        if self.failing:
            checks = "; ".join(f"{name} ({why})" for name, why in self.failing.items())
            said.append(
                f"Of the gate's checks on the forecast (`froude promote` makes all of them) these would fail: {checks}."
            )
        best = named(first["params"], first["tokens"])
        most = f"the most per {self.unit.removesuffix('s')} of {self.ranked.height} candidates"
        narrows = f"narrow the interval by {100 * first['shrink']:.2g}% of itself"
        if self.sought == "closes":
            said.append(
                "A narrower interval does not help where the target is beyond the gate's bounds on extrapolation, so "
                f"the candidates are ranked by how far they bring it back to them, in log: {best} would close "
                f"{100 * first['closes']:.2g}% of the distance, {most}, and should {narrows}."
            )
        else:
            said.append(f"A run of {best} should {narrows}, {most}.")
        have, wanted, beyond = self.held_out
        if self.sought == "shrink" and not self.doubted and have < wanted and math.isfinite(beyond):
            said.append(
                f"A certificate asks for {wanted} held-out larger runs, those of more than {short(beyond)} FLOPs, and "
                f"there {'is' if have == 1 else 'are'} {have}; a set begins with the missing ones, as far as its "
                "budget goes."
            )
        if self.chosen.height:
            what = f"The set of {self.chosen.height}" if self._set else "That run"
            short_of = (
                f", not to the ± {100 * self.enough:.2g}% asked for" if self.after > self.enough > 0 else ""
            )
            said.append(f"{what} should bring it to ± {100 * self.after:.2g}%{short_of}.")
        elif self.after <= self.enough:
            said.append(f"It is as narrow as the ± {100 * self.enough:.2g}% asked for: no run is needed.")
        else:
            within = (
                "No candidate"
                if self.budget is None
                else f"Within {short(self.budget)} {self.unit} no candidate"
            )
            least = float(self.ranked["cost"].min())  # type: ignore[arg-type]
            said.append(f"{within} narrows it noticeably; the cheapest costs {short(least)}.")
        said.append(weakest(self.shares))
        if self.rates is not None:
            said += self.rates.sentences(now.loss, self.unit)
        return " ".join(said)

    @property
    def _set(self) -> bool:
        return bool(self.chosen.height) and (self.budget is not None or self.enough > 0)


def next_runs(
    fits: Fits,
    *,
    params: float,
    tokens: float,
    unit: Cost = "tokens",
    budget: float | None = None,
    profile: str = "production",
    enough: float = 0.0,
    template: Run | None = None,
    trust: bool = False,
    offers: pl.DataFrame | None = None,
    run: Run | None = None,
    paid: float = math.nan,
) -> NextRuns:
    """Rank proxies for the forecast of a run of `params` and `tokens`, and choose those that a `budget` buys.

    A set stops before its budget is spent where the interval's half-width, relative to the loss, should be `enough`;
    without a budget, where it costs what the target does.
    With a `template` sizes are those of its model at other widths. `offers` (`params, tokens`, other columns are kept)
    are runs that can be had instead, each row once. With neither budget nor `enough` the best alone is chosen.
    `run` is the study's target where the plan is for that: then the forecast is promotion's, of its batch and
    precision, and what its rate may cost is told, if a law has it. `paid` is kept, to be told beside the forecast.
    ConfigError where there is no loss law to start from, and where no candidate costs less than the target.
    """
    bounds = profile_named(profile)
    if fits.loss is None:
        raise ConfigError(
            "next runs are planned for a fitted loss law, but this study has no finished rows for one; "
            "begin with a few sizes and horizons in a stage of role loss_law"
        )
    if run is not None:
        target = target_loss(fits, round(params))
    else:
        target = TargetLoss(fits.predict(params=params, tokens=tokens), tokens, {})
    forecast = target.prediction
    failing, beyond = failing_checks(forecast, bounds)
    once = offers is not None
    if offers is not None:
        offered = offered_runs(offers, params, tokens)
    else:
        offered = candidates(
            fits.rows["loss_law"], params, tokens, FAR_BEYOND if beyond else BEYOND, template, trust
        )
    if not offered.height:
        what = "runs on offer" if once else "study's sizes and horizons"
        raise ConfigError(
            f"proxies must cost less than the target, but none of the {what} does at "
            f"{named(params, tokens)}; name a larger target"
        )
    design = forecast_design(fits.loss, offered, params=params, tokens=target.tokens)
    design = design.less_known(math.hypot(*target.apart.values()))
    goal = enough * design.deviation / forecast.half_width
    sought: Literal["shrink", "closes"] = "closes" if beyond else "shrink"
    offered = offered.with_columns(
        cost=pl.col(unit),
        shrink=pl.Series(design.shrinkage()),
        closes=pl.Series(closed(offered, forecast, bounds, params, tokens)),
    ).with_columns(value=pl.col(sought) / pl.col("cost"))
    order = offered.select(pl.arg_sort_by("value", "cost", descending=[True, False])).to_series()
    held_out = fits.loss.held_out()
    whole = {"tokens": tokens, "flops": 6 * params * tokens}[unit]
    most = whole if budget is None else budget
    if budget is None and not enough:
        picked = [int(order[0])]
    elif beyond:
        picked = _nearer(offered, design, most, goal, once)
    elif fits.doubts:  # which no run takes away that is like the ladder's, so that none earns a certificate
        picked = design.greedy(offered["cost"].to_numpy(), most, once=once, enough=goal)
    else:
        picked = _certified(offered, design, most, held_out, goal, once)
    after, gains = design, []
    for place in picked:
        gains.append(float(after.shrinkage()[place]))
        after = after.after(place)
    best = offered.row(int(order[0]), named=True)
    variance, shares = design.deviation**2, dict(design.shares)
    for name, deviation in target.apart.items():
        shares[name] = deviation**2 / variance
        shares["noise"] -= shares[name]
    off = variance * (1 - (1 - best["shrink"]) ** 2) / best["cost"]
    parts = {part: share * variance for part, share in shares.items()}
    rates = next_rates(fits, run, parts, off, unit, 6 * params * tokens, bounds) if run is not None else None
    if rates is not None:
        shares = {part: share * (1 - rates.share) for part, share in shares.items()} | {"rate": rates.share}
    assert fits.largest is not None
    others = {name: getattr(forecast, name) for name in ("comparator", "compute_line")}
    others = {"naive": float(fits.largest["loss"])} | others
    return NextRuns(
        params=params,
        tokens=tokens,
        unit=unit,
        budget=budget,
        forecast=forecast,
        failing=failing,
        held_out=held_out,
        doubted=bool(fits.doubts),
        sought=sought,
        ranked=offered[order],
        chosen=offered[picked].with_columns(
            shrink=pl.Series(gains, dtype=pl.Float64),
            seed=pl.col("seed") + (0 if once else pl.int_range(pl.len()).over("params", "tokens")),
        ),
        after=forecast.half_width * after.deviation / design.deviation,
        enough=enough,
        shares=shares,
        rates=rates,
        others={name: loss for name, loss in others.items() if math.isfinite(loss)},
        paid=paid,
    )


def _nearer(offered: pl.DataFrame, design: Design, budget: float, goal: float, once: bool) -> list[int]:
    """Indices of a set within the budget: first the run that brings the target nearest to the bounds."""
    cost, closes = offered["cost"].to_numpy(), offered["closes"].to_numpy()
    can = np.flatnonzero((cost <= budget) & (closes > 0))
    if not can.size:
        return design.greedy(cost, budget, once=once, enough=goal)
    first = int(min(can, key=lambda place: (-closes[place], cost[place])))
    rest = budget - float(cost[first])
    return [first, *design.after(first).greedy(cost, rest, once=once, enough=goal, taken=[first])]


def _certified(
    offered: pl.DataFrame, design: Design, budget: float, held_out: HeldOut, goal: float, once: bool
) -> list[int]:
    """Indices of a set within the budget: first the larger runs that a certificate lacks, by shrinkage per cost."""
    have, wanted, beyond = held_out
    cost, large = offered["cost"].to_numpy(), offered["flops"].to_numpy() > beyond
    picked: list[int] = []
    while have + len(picked) < wanted and (can := large & (cost <= budget)).any():
        best = int(np.where(can, design.shrinkage() / cost, -1.0).argmax())
        picked.append(best)
        budget, design = budget - float(cost[best]), design.after(best)
        large[best] = not once
    return [*picked, *design.greedy(cost, budget, once=once, enough=goal, taken=picked)]
