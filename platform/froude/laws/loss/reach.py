"""How far a target lies beyond the runs that a loss law is fitted to, and how far is too far for a certificate."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from froude.laws.stats import uncertainty
from froude.laws.stats.frames import Sample

#: Certified up to so many times the largest compute fitted, down to that part of the smallest, and up to so many times
#: the largest params, and the largest tokens: compute alone can be bought by either.
MOST_COMPUTE, MOST_ALONE = 100.0, 30.0
RATIO = (5.0, 500.0)  # tokens per parameter outside of which the law's form is less well tested


@dataclass(frozen=True)
class Reach:
    """Target over largest run: `ratios` of params, tokens and flops; `below`, the smallest run's compute over its own.

    `ratio` are the target's tokens per parameter, `tried` the least and most of runs and law.
    """

    ratios: Mapping[str, float]
    below: float
    ratio: float
    tried: tuple[float, float]

    @classmethod
    def of(cls, sample: Sample, params: float, tokens: float) -> "Reach":
        """Hold a target's params and tokens against the rows'."""
        n, d = np.log(sample["params"]), np.log(sample["tokens"])
        log_n, log_d = math.log(params), math.log(tokens)
        over = {"params": log_n - n.max(), "tokens": log_d - d.max(), "flops": log_n + log_d - (n + d).max()}
        ratios = np.exp(d - n)
        return cls(
            {name: uncertainty.bounded_exp(float(value)) for name, value in over.items()},
            uncertainty.bounded_exp(float((n + d).min()) - log_n - log_d),
            uncertainty.bounded_exp(log_d - log_n),
            (min(RATIO[0], float(ratios.min())), max(RATIO[1], float(ratios.max()))),
        )

    def refusals(self) -> list[str]:
        """Say on which axes the target is too far for a certificate; nothing if on none."""
        reasons = []
        bounds = {
            "compute": ("flops", MOST_COMPUTE),
            "params": ("params", MOST_ALONE),
            "tokens": ("tokens", MOST_ALONE),
        }
        for axis, (name, bound) in bounds.items():
            if self.ratios[name] > bound:
                reasons.append(f"{axis} {self.ratios[name]:.3g} times the largest fitted, beyond {bound:g}")
        low, high = self.tried
        if not low <= self.ratio <= high:
            span = f"outside the {low:.3g} to {high:.3g} of runs and law"
            reasons.append(f"tokens per parameter are {self.ratio:.3g}, {span}")
        if self.below > MOST_COMPUTE:
            reasons.append(f"compute below the smallest fitted by more than a factor of {MOST_COMPUTE:g}")
        return reasons
