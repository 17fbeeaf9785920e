"""A U-curve that is steeper above its best rate, and the rate that costs least where the best is not known for sure."""

import math
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

from froude.laws.lr.transfer import LrTransfer
from froude.laws.stats.frames import Array

#: How much steeper: cost = ½ κ δ² (1 + s δ) above the best rate, δ in ln lr. s is .15 to .46 for the runs of Step Law
#: (Li et al. 2503.04715; benchmarks/campaign/regret.py).
STEEPER = (0.3, 0.1)
_NORMAL = stats.norm.ppf((np.arange(2000) + 0.5) / 2000)
FARTHEST = 3.0  # standard deviations: further below the middle no rate is sought


class Lopsided(NamedTuple):
    """cost(δ) = ½ `bend` δ² (1 + `steeper` max(δ, 0)) as a proportion of the loss; δ is ln rate above the best."""

    bend: float
    steeper: float

    def cost(self, away: Array) -> Array:
        return np.asarray(0.5 * self.bend * away**2 * (1 + self.steeper * np.maximum(away, 0)))

    def expected(self, shift: float, sd: float) -> float:
        """The expected cost of a rate `shift` above the middle of what is believed of the best, which has this sd."""
        return float(self.cost(shift + sd * _NORMAL).mean())

    def deviation(self, shift: float, sd: float) -> float:
        """The standard deviation of that cost."""
        return float(self.cost(shift + sd * _NORMAL).std())

    def robust(self, sd: float) -> float:
        """The shift of least expected cost: 0 where the best is known, below 0 where it is not."""
        if not sd > 0 or not self.steeper > 0:
            return 0.0
        found = optimize.minimize_scalar(
            lambda shift: self.expected(shift, sd), bounds=(-FARTHEST * sd, 0.0), method="bounded"
        )
        return float(found.x)


def steeper(law: LrTransfer) -> tuple[float, float]:
    """How much steeper the study's own curves are above their optima, with the prior: mean and standard deviation."""
    mean, sd = STEEPER
    at = {
        size: lr
        for size, lr, low in law.curves.select(law.over, "lr", "low").iter_rows()
        if math.isfinite(low)
    }
    sizes, inside = law.sample[law.over], law._in_fit
    if not at or not inside.any():
        return mean, sd
    size, y = sizes[inside], law.sample["loss"][inside]
    known = np.isin(size, list(at))
    size, y = size[known], y[known]
    u = np.log(law.sample["lr"][inside][known]) - np.log([at[each] for each in size])
    floors = (size[:, None] == np.array(list(at))).astype(np.float64)
    design = np.column_stack([floors, floors * u[:, None], u**2, np.maximum(u, 0) ** 3])
    dof = y.size - design.shape[1]
    if dof < 1 or np.linalg.matrix_rank(design) < design.shape[1]:
        return mean, sd
    beta, *_ = np.linalg.lstsq(design, y)
    noise = float(((y - design @ beta) ** 2).sum()) / dof
    if not beta[-2] > 0:
        return mean, sd
    ratio = float(beta[-1] / beta[-2])
    slope = np.zeros(beta.size)
    slope[-1], slope[-2] = 1 / beta[-2], -ratio / beta[-2]
    own = noise * float(slope @ np.linalg.inv(design.T @ design) @ slope)
    weight = sd**2 / (sd**2 + own) if own > 0 else 1.0
    return max(mean + weight * (ratio - mean), 0.0), math.sqrt(1 - weight) * sd
