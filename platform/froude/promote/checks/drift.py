"""The check whether the proxies' best rate is the target's: shown by a test, not by a lack of evidence against it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from froude.config import Run
from froude.laws.lr.drift import Drift, More, lr_drift, missing
from froude.laws.lr.exponent import NORMAL
from froude.promote.checks.rates import FIRST, NO_RATE
from froude.promote.choice.rate import horizon
from froude.promote.fits import Fits
from froude.promote.gate import Finding, Rule
from froude.promote.ladder.rates import middle, read_at

if TYPE_CHECKING:
    from froude.promote.planned import Planned

WORDS = {"width": "width", "depth": "depth", "tokens": "horizon"}  # what a reader calls these columns
Sizes = dict[str, float]


def drift(fits: Fits) -> Drift | None:
    """The shift of the optimum from the recipe's rate, moved to its horizon, to the target's; None without a rate.

    Where a stage Exponents has measured what the horizon does, its error counts in place of that of other horizons.
    """
    if fits.peak_lr is None:
        return None
    name = fits.target.parametrization
    grid = fits.rows[f"lr_transfer_{name}"]
    rates = fits.rows.get(f"lr_drift_{name}", grid)  # with those at other depths and horizons
    width = read_at(fits.transfer[name], fits.target.model.width, stays=fits.target.width_rules.transfers)
    at, to = _apart(grid, rates, fits.target, width)
    step = horizon(fits, grid, fits.target)
    elsewhere = step is not None and step.source == "measured" and rates["tokens"].n_unique() == 1
    if elsewhere:
        del at["tokens"], to["tokens"]
    found = lr_drift(rates, at=at, to=to)
    if step is None:
        return found
    shift, half = found.shift - step.shift, found.high - found.shift
    if elsewhere:
        shift, half = found.shift, math.hypot(half, NORMAL * step.sd)
    return replace(found, shift=shift, low=shift - half, high=shift + half)


def _planned_drift(plan: Planned) -> Drift | None:
    """What a grid will not tell, whatever its losses; None where that depends on them."""
    if plan.grid.is_empty():
        return None
    stays = plan.target.width_rules.transfers
    width = middle(plan.grid, "width") if stays else float(plan.target.model.width)
    at, to = _apart(plan.grid, plan.rates, plan.target, width)
    if plan.horizon_exponent and plan.rates["tokens"].n_unique() == 1:
        del at["tokens"], to["tokens"]  # a stage Exponents may tell, as in `drift`
    lacking = missing(plan.rates, at=at, to=to)
    return Drift(missing=lacking) if lacking else None


def _apart(grid: pl.DataFrame, rates: pl.DataFrame, target: Run, width: float) -> tuple[Sizes, Sizes]:
    """The sizes at which the law's rate for a width is read, and the target's; a table of runs may lack depths."""
    to: Sizes = {"width": target.model.width, "depth": target.model.depth, "tokens": target.tokens}
    to = {axis: size for axis, size in to.items() if not rates[axis].null_count()}
    return {axis: width if axis == "width" else middle(grid, axis) for axis in to}, to


def _transfers(found: Drift | None, regret: float) -> Finding:
    if found is None:
        return Finding(False, NO_RATE, FIRST)
    if found.bad:
        remedy = "extend the rates of stage `lr_transfer` there, or add seeds"
        return Finding(False, f"unknown: no optimum at {'; '.join(found.bad)}", remedy)
    if found.off_line:
        value = f"unknown: the best rates do not lie on a line: {'; '.join(found.off_line)}"
        return Finding(
            False, value, "sweep the rates nearer to the target, or add seeds at the sizes that stand out"
        )
    if found.missing:
        axes = " and ".join(WORDS[axis] for axis in found.missing)
        value = f"unknown: the target has another {axes}, and the rates swept do not tell what that does"
        return Finding(False, value, _to_add(found, regret))
    shift = f"{found.shift:+.2f} [{found.low:+.2f}, {found.high:+.2f}] in ln rate"
    bound = found.allowed(regret)
    if found.equivalent(regret):
        return Finding(True, f"{shift}, within ±{bound:.2f}")
    if found.moves(regret):
        return Finding(False, f"{shift}, which costs {100 * found.cost(found.shift):.2g}% of the loss")
    value = f"unknown: {shift}, neither within ±{bound:.2f} nor clearly beyond"
    return Finding(False, value, _to_add(found, regret))


def _to_add(found: Drift, regret: float) -> str:
    """The runs that would tell, in words."""
    if found.missing and math.isnan(found.noise):  # a plan has no losses yet
        return f"sweep the rates at a second {' and '.join(WORDS[axis] for axis in found.missing)} as well"
    more: More | None = found.more(regret)
    if more is None:
        return "sweep the rates nearer to the target; eight seeds of sizes near these would not tell"
    return (
        f"add {more.runs} runs to stage `lr_transfer` ({in_words(more, found)}): where the optimum "
        "stays, four of five such sweeps show it"
    )


def in_words(more: More, found: Drift) -> str:
    """Which runs to add."""
    axes = [axis for axis in more.sizes[0] if axis != "depth" or "depth" in found.missing]
    places = "; ".join(
        ", ".join(f"{WORDS[axis]} {sizes[axis]:,.0f}" for axis in axes) for sizes in more.sizes
    )
    return f"{more.rates} rates × {more.seeds} new seed{'s' * (more.seeds > 1)} at {places}"


def lacks_power(found: Drift, regret: float) -> bool:
    """Whether the check is unknown because the runs that there are cannot tell."""
    unknown = not found.bad and not found.off_line
    return unknown and not found.equivalent(regret) and not found.moves(regret)


LR_TRANSFERS = Rule(
    "lr_transfers",
    asks="a drift of the best rate to the target that costs <= {percent:g}% of the loss, by two one-sided 5% tests",
    remedy="the optimum moves: sweep the rates nearer to the target; `froude fit --diagnose` looks for the cause",
    measure=lambda case: drift(case.fits),
    find=_transfers,
    bound=0.005,  # of the loss: as much as another seed of a small proxy
    foresee=_planned_drift,
)
