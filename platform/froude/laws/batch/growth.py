"""How the critical batch grows with the tokens trained on: a power of them, measured at three horizons or more."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from froude.laws.batch.critical import VAGUE, CriticalBatch
from froude.laws.stats.frames import Array
from froude.laws.stats.uncertainty import LEVEL, t_quantile

#: Exponent and standard deviation believed where it is not measured: .47 (Zhang et al. 2410.21676, whose fits over
#: tokens at one size differ by .1), .46 with the sizes of Bergsma et al. 2505.13738.
PRIOR = (0.46, 0.1)
MIN_HORIZONS = 3
NORMAL = t_quantile(LEVEL, 10**6)  # half-width of the critical batch's interval in standard deviations


class Growth(NamedTuple):
    """b_crit ∝ tokens^`exponent`, with its standard deviation; `horizons` counts those that it was measured at."""

    exponent: float
    sd: float
    source: Literal["measured", "prior"]
    horizons: int


def tokens_of(law: CriticalBatch) -> float:
    """Tokens with which a run of the critical batch reaches the law's loss: twice the least."""
    return 2 * law.e_min


def log_error(law: CriticalBatch) -> float:
    """The standard deviation of ln b_crit."""
    half = math.log(law.high / law.low) / 2 if law.low > 0 and math.isfinite(law.high) else VAGUE
    return min(half, VAGUE) / NORMAL


def growth(laws: Sequence[CriticalBatch]) -> Growth:
    """The exponent from critical batches at several losses, each of its own horizon; the prior for fewer than three."""
    known = [law for law in laws if law.status == "ok"]
    apart = {round(math.log(tokens_of(law)), 1) for law in known}
    mean, sd = PRIOR
    if len(apart) < MIN_HORIZONS:
        return Growth(mean, sd, "prior", len(apart))
    x = np.array([math.log(tokens_of(law)) for law in known])
    y = np.array([math.log(law.b_crit) for law in known])
    weights = np.array([1 / max(log_error(law), 1e-3) ** 2 for law in known])
    away = x - np.average(x, weights=weights)
    own = float(weights @ away**2)
    precision = sd**-2 + own
    value = (mean * sd**-2 + float(weights @ (away * y))) / precision
    # Optima that scatter by more than their errors about a power law know it less well.
    misfit = float(weights @ (y - np.average(y, weights=weights) - value * away) ** 2) / (x.size - 2)
    error = math.sqrt(max(misfit, 1.0) / precision)
    return Growth(value, error, "measured" if own**-0.5 < sd else "prior", len(apart))


def middle_at(law: CriticalBatch, tokens: float, found: Growth) -> float:
    """The critical batch of a run of `tokens` tokens, in the law's unit of batch; NaN for a law without one."""
    known = law.e_min > 0 and math.isfinite(law.b_crit)
    return law.b_crit * (tokens / tokens_of(law)) ** found.exponent if known else math.nan


def at_horizon(
    law: CriticalBatch, tokens: float, found: Growth, rng: np.random.Generator, draws: int
) -> Array:
    """Draws of the critical batch of a run of `tokens` tokens, in the law's unit of batch."""
    exponents = found.exponent + found.sd * rng.standard_normal(draws)
    spread = log_error(law) * rng.standard_normal(draws)
    far = math.log(tokens / tokens_of(law))
    return np.asarray(law.b_crit * np.exp(spread + exponents * far))
