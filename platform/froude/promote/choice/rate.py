"""The peak rate at a batch and horizon: what is believed of the best one, and the rate of least expected cost."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl

from froude.config import Run
from froude.laws.lr.curve import QUADRATIC_BIAS
from froude.laws.lr.drift import lr_drift
from froude.laws.lr.exponent import NORMAL
from froude.laws.lr.exponents import KNOBS
from froude.laws.lr.lopsided import Lopsided, steeper
from froude.promote.choice.knob import Source
from froude.promote.fits import Fits
from froude.promote.ladder.rates import RAMPED, middle, read_at
from froude.promote.ladder.regret import CURVATURE, curvature

LINE = 1.96  # half-width of the line's 95% interval in standard deviations
#: Standard deviation, in ln rate, of what a shape that real curves do not quite have does to an optimum, however little
#: noise there is; over horizons it grows as far as they are extrapolated.
BIAS = QUADRATIC_BIAS / 2
SAME = 0.02  # in ln size: sizes so near are one, since tokens are rounded to steps


@dataclass(frozen=True)
class Part:
    """One step from the proxies' best rate to the target's, in ln rate: its mean, its sd, and what they rest on."""

    name: str
    shift: float
    sd: float
    source: Source
    remedy: str = ""


@dataclass(frozen=True)
class Rate:
    """What is believed of the best rate: `value` ± `sd` in ln, as the sum of its `parts`; and the curve about it.

    `promoted` has the least expected cost under that, `regret` is that cost as a proportion of the loss.
    """

    value: float
    sd: float
    parts: tuple[Part, ...]
    curve: Lopsided

    @property
    def shift(self) -> float:
        return self.curve.robust(self.sd)

    @property
    def promoted(self) -> float:
        return math.exp(math.log(self.value) + self.shift)

    @property
    def regret(self) -> float:
        return self.curve.expected(self.shift, self.sd)

    @property
    def worst(self) -> float:
        """What the promoted rate costs, as a proportion of the loss, if the best one lies at the worse end."""
        away = np.log(self.promoted / np.array(self.interval))
        return float(self.curve.cost(away).max())

    @property
    def deviation(self) -> float:
        """The standard deviation of the cost whose mean is `regret`, as a proportion of the loss."""
        return self.curve.deviation(self.shift, self.sd)

    @property
    def interval(self) -> tuple[float, float]:
        """The best rate's, at 90%."""
        reach = NORMAL * self.sd
        return self.value * math.exp(-reach), self.value * math.exp(reach)

    @property
    def source(self) -> Source:
        return "measured" if all(part.source == "measured" for part in self.parts) else "prior"

    @property
    def rule(self) -> str:
        """Which steps were taken, and how far the rate is from the middle of what is believed."""
        moved = [
            f"×{math.exp(part.shift):.3g} for its {part.name} ({part.source})"
            for part in self.parts
            if part.name != "line"
        ]
        low = [f"×{math.exp(self.shift):.3g} since too high a rate costs more"] if self.shift < -5e-4 else []
        return ", ".join(["the rate of stage lr_transfer", *moved, *low])

    def buys(self, loss: float) -> str:
        """What measuring the widest part would take off the expected cost, if it were then known for sure."""
        widest = max(self.parts, key=lambda part: part.sd)
        left = math.sqrt(max(self.sd**2 - widest.sd**2, 0.0))
        saved = loss * (self.regret - self.curve.expected(self.curve.robust(left), left))
        return (
            f"{widest.remedy} would save {saved:.4f} nats at most" if widest.remedy and saved >= 5e-5 else ""
        )


def rate(fits: Fits, run: Run) -> Rate | None:
    """The best rate of `run`, a run of the study's target at some batch; None where the study has no rate."""
    peak = fits.peak_lr
    if peak is None or not (peak.value > 0 and math.isfinite(peak.high)):
        return None
    target = fits.target
    law = fits.transfer[target.parametrization]
    grid = fits.rows[f"lr_transfer_{target.parametrization}"]
    line = math.hypot(math.log(peak.high / peak.low) / 2 / LINE, BIAS)
    parts = [Part("line", 0.0, line, "measured", "another seed of stage lr_transfer")]
    for part in (horizon(fits, grid, run), _batch(fits, grid, run)):
        if part is not None:
            parts.append(part)
    # The expected cost is linear in κ and in s, which are independent of the best rate: their means are all it takes.
    bend, spread = curvature(law) if law.curvature > 0 else (math.exp(CURVATURE[0]), CURVATURE[1])
    return Rate(
        value=peak.value * math.exp(sum(part.shift for part in parts)),
        sd=math.sqrt(sum(part.sd**2 for part in parts)),
        parts=tuple(parts),
        curve=Lopsided(bend * math.exp(spread**2 / 2), steeper(law)[0]),
    )


def _apart(grid: pl.DataFrame, axis: str, size: float) -> float:
    """How far a run's size lies from the grid's, in ln; 0 where they are the same, or the grid does not say."""
    if grid[axis].null_count():
        return 0.0
    far = math.log(size / middle(grid, axis))
    return far if abs(far) > SAME else 0.0


def exponent(fits: Fits, name: str) -> tuple[float, float, Source]:
    """An exponent's mean and sd: the runs' and the prior's together."""
    mean, sd = KNOBS[name].prior
    law = fits.exponents.knobs.get(name) if fits.exponents is not None else None
    return (law.posterior.value, law.posterior.se, law.source) if law is not None else (mean, sd, "prior")


def token_step(grid: pl.DataFrame, run: Run) -> float:
    """How far, in ln, the run's horizon lies from the grid's."""
    return _apart(grid, "tokens", run.tokens)


def horizon(fits: Fits, grid: pl.DataFrame, run: Run) -> Part | None:
    """From the grid's horizon to the run's: by the exponent over tokens, and by rates swept at other horizons."""
    far = token_step(grid, run)
    if not far:
        return None
    mean, sd, source = exponent(fits, "lr_tokens")
    shift, error = mean * far, sd * abs(far)
    if (found := _drift(fits, grid, far)) is not None:
        own, its = found
        weight = error**2 / (error**2 + its**2)
        source = "measured" if its < error else source
        shift, error = shift + weight * (own - shift), math.sqrt(1 - weight) * error
    return Part("horizon", shift, error, source, "a stage Exponents over three horizons")


def shape_error(tokens: Iterable[float], far: float) -> float:
    """What BIAS becomes over the way `far`, in ln, from rates at horizons of so many tokens; infinite for one."""
    span = float(np.ptp(np.log([*tokens])))
    return BIAS * abs(far) / span if span > SAME else math.inf


def _drift(fits: Fits, grid: pl.DataFrame, far: float) -> tuple[float, float] | None:
    """The shift over the horizon that rates at several horizons show, and its standard error; None without such."""
    target = fits.target
    rates = fits.rows.get(f"lr_drift_{target.parametrization}", grid)
    axes = [axis for axis in ("width", "depth", "tokens") if not rates[axis].null_count()]
    width = read_at(
        fits.transfer[target.parametrization], target.model.width, stays=target.width_rules.transfers
    )
    at = {axis: width if axis == "width" else middle(grid, axis) for axis in axes}
    if rates["tokens"].n_unique() < 2:
        return None
    found = lr_drift(rates, at=at, to={**at, "tokens": at["tokens"] * math.exp(far)})
    if not math.isfinite(found.high - found.low):
        return None
    error = math.hypot((found.high - found.low) / 2 / NORMAL, shape_error(rates["tokens"], far))
    return found.shift, error


def batch_step(grid: pl.DataFrame, run: Run) -> float:
    """How far, in ln, the run's batch lies from the grid's: a ramp's first, the mean where the grid's runs ramp."""
    ramps = grid.filter(RAMPED).height == grid.height
    return _apart(grid, "batch", run.phases.mean if ramps else run.batch)


def _batch(fits: Fits, grid: pl.DataFrame, run: Run) -> Part | None:
    far = batch_step(grid, run)
    if not far:
        return None
    mean, sd, source = exponent(fits, "lr_batch")
    return Part("batch", mean * far, sd * abs(far), source, "a stage Exponents over three batches")
