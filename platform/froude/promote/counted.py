"""Do the study's rows and its target count parameters in one way? Exponents over params hold in one way of counting."""

from __future__ import annotations

import math
from collections.abc import Callable

from froude.config import ConfigError, Run
from froude.promote.fits import Fits
from froude.promote.imported_runs import history

#: Parameters of a run's model, without embedding and readout.
Count = Callable[[Run], int]
SAME = 0.03  # in ln params: norms and biases are less, a gate or a readout more


def counted_alike(fits: Fits, count: Count) -> None:
    """ConfigError if the target is counted on a model that gives another number than a proxy's command told."""
    largest, target = fits.largest, fits.target
    if largest is None or not largest["trainer"] or not target.trainer.command or target.trainer.params:
        return
    shape = {f"model.{key}": largest[key] for key in ("width", "depth", "head_dim", "context", "vocab")}
    counted = count(target.replace(shape))
    if counted != largest["params"]:
        raise ConfigError(
            f"target and proxies must be counted in one way, but the command of {largest['run']} told "
            f"{largest['params']:,} parameters, where {target.model.factory} has {counted:,}; set `trainer.params` of "
            "the target as its command will tell it"
        )


def counted_otherwise(fits: Fits, count: Count) -> str:
    """The reason not to believe a table's parameters: its largest run has others than the target's model of its shape.

    Nothing where the table tells no width and depth, or the target's size was told, not counted.
    """
    largest, target = fits.largest, fits.target
    if largest is None or largest["stage"] != history.ROLE or target.trainer.params:
        return ""
    if not largest["width"] or not largest["depth"]:
        return ""
    told = {
        name: largest[name] for name in ("width", "depth", "head_dim", "context", "vocab") if largest[name]
    }
    try:
        counted = count(target.replace({f"model.{name}": value for name, value in told.items()}))
    except ConfigError:  # no model of the target's class has that shape
        return ""
    if abs(math.log(counted / largest["params"])) <= SAME:
        return ""
    return (
        f"the table's run {largest['run']} of width {told['width']} and depth {told['depth']} has "
        f"{largest['params']:,} params, where the target's model of that shape has {counted:,} (without embedding and "
        "readout): count both alike"
    )
