"""The gate's checks on the loss law, as a plan of next runs meets them: which fail, and what would bring it nearer."""

from __future__ import annotations

import math

import numpy as np
import polars as pl

from froude.laws import Prediction
from froude.laws.stats.frames import Array
from froude.promote.checks.forecast import FORECAST_INTERVAL
from froude.promote.checks.reach import EXTRAPOLATION
from froude.promote.gate import Profile

AXES = {"params": "params", "tokens": "tokens", "compute": "flops"}  # of the gate, and of a Prediction


def failing_checks(forecast: Prediction, bounds: Profile) -> tuple[dict[str, str], bool]:
    """The gate's checks of the loss law that fail, with value and bound, and whether extrapolation is among them."""
    failing = {
        f"extrapolation_{axis}": f"{forecast.extrapolation[name]:.3g}×, at most {_bound(bounds, axis):g}×"
        for axis, name in AXES.items()
        if forecast.extrapolation[name] > _bound(bounds, axis)
    }
    beyond = bool(failing)
    if forecast.half_width > (most := bounds.bound(FORECAST_INTERVAL)):
        failing["forecast_interval"] = f"± {100 * forecast.half_width:.2g}%, at most {100 * most:g}%"
    if not forecast.certified:
        failing["forecast_certified"] = "; ".join(forecast.reasons)
    return failing, beyond


def closed(
    offered: pl.DataFrame, forecast: Prediction, bounds: Profile, params: float, tokens: float
) -> Array:
    """The proportion of the excess over the extrapolation bounds, in log over all axes, that each candidate removes."""
    target = {"params": params, "tokens": tokens, "flops": 6 * params * tokens}
    before, after = 0.0, np.zeros(offered.height)
    for axis, name in AXES.items():
        ratio, most = forecast.extrapolation[name], _bound(bounds, axis)
        now = np.minimum(ratio, target[name] / offered[name].to_numpy())
        before += max(math.log(ratio / most), 0.0)
        after += np.maximum(np.log(now / most), 0.0)
    return np.asarray(1 - after / before) if before else np.zeros(offered.height)


def _bound(bounds: Profile, axis: str) -> float:
    return bounds.bound(EXTRAPOLATION[axis])
