"""What the loss law says of the study's target, at the target's batch and in its precision."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

from froude.laws import Prediction
from froude.laws.lr.exponent import NORMAL
from froude.promote.choice.worth import as_in_the_ladder
from froude.promote.fits import Fits


@dataclass(frozen=True)
class TargetLoss:
    """A forecast of the target.

    `tokens` are those at the batch of the law's rows that the target's are worth. `apart` are relative standard
    deviations of what no run of the loss law tells, by what it is: `batch`, `precision`; the intervals hold them.
    """

    prediction: Prediction
    tokens: float
    apart: Mapping[str, float]


def target_loss(fits: Fits, params: int) -> TargetLoss:
    """The loss of the target, of `params` parameters, at 90%; ConfigError where there is no law."""
    tokens, batch = as_in_the_ladder(fits, params)
    found = fits.predict(params=params, tokens=tokens)
    ratios = {
        axis: ratio if axis == "params" else ratio * fits.target.tokens / tokens
        for axis, ratio in found.extrapolation.items()
    }
    prediction = widened(replace(found, extrapolation=ratios), batch)
    apart = {"batch": batch}
    if fits.cost is not None:
        level = prediction.level
        loss, low, high = fits.cost.moved(prediction.loss, prediction.low, prediction.high, level)
        prediction = replace(
            prediction,
            loss=loss,
            low=low,
            high=high,
            comparator=prediction.comparator + fits.cost.loss,  # which knows the proxies' precision only
            compute_line=prediction.compute_line + fits.cost.loss,
        )
        apart["precision"] = fits.cost.half(level) / NORMAL / loss
    return TargetLoss(prediction, tokens, {name: sd for name, sd in apart.items() if sd})


def widened(found: Prediction, deviation: float) -> Prediction:
    """The same, at its level, with one more independent error of ln loss."""
    if not deviation:
        return found
    reach = NormalDist().inv_cdf((1 + found.level) / 2) * deviation
    low, high = (
        found.loss * math.exp(math.copysign(math.hypot(math.log(end / found.loss), reach), way))
        for end, way in ((found.low, -1.0), (found.high, 1.0))
    )
    return replace(found, low=low, high=high)
