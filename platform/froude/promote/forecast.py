"""The forecast of a run's final loss, made before it starts, and its score afterwards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from froude.config import ConfigError
from froude.promote.ladder.validation_sets import SetForecast

if TYPE_CHECKING:
    import polars as pl

#: What else can be forecast from the same runs, by field, in words.
OTHERS = {
    "naive": "the largest proxy's loss",
    "comparator": "published exponents",
    "compute_line": "a line in compute",
}


@dataclass(frozen=True)
class BandPoint:
    """Where the training loss, averaged over a block, is to lie after `tokens` tokens; nats per token.

    `low` and `high` hold the forecast's uncertainty, `shape` (a half-width) that of the curve alone.
    """

    tokens: int
    loss: float
    low: float
    high: float
    shape: float


@dataclass(frozen=True)
class Forecast:
    """The final validation loss that a law predicts: nats per token, with an interval at `level`.

    `certified` is False where the law cannot vouch for it; `reasons` says why, `status` is the law's.
    Other forecasts, to hold this one against: `naive` is the loss of the proxy of most compute,
    `comparator` and `compute_line` are those of `froude.laws.comparator`, `free_loss` is that of free exponents; NaN
    where there is none. `noise` is the standard deviation of the run's own loss by the law, relative: the floor under
    any forecast's error; `proxies_over_target` the FLOPs of all proxies over the target's. `band` is where the training
    loss is to lie along the run, averaged over `block` tokens, at `band_level`; empty where no curve could be fitted.
    `sets` are the forecasts of the loss on other validation sets, by name.
    """

    loss: float
    low: float
    high: float
    level: float
    certified: bool
    status: str
    reasons: tuple[str, ...]
    naive: float
    free_loss: float = math.nan
    comparator: float = math.nan
    compute_line: float = math.nan
    noise: float = math.nan
    proxies_over_target: float = math.nan
    block: int = 0
    band_level: float = 0.0
    band: tuple[BandPoint, ...] = ()
    sets: Mapping[str, SetForecast] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.low <= self.loss <= self.high:
            raise ConfigError(
                f"a forecast's loss must lie in its interval, but {self.loss:g} is outside "
                f"[{self.low:g}, {self.high:g}]; promote again"
            )

    @property
    def others(self) -> dict[str, float]:
        """What else can be forecast from the same runs, in words, as far as there is one; nats per token."""
        found = {words: float(getattr(self, key)) for key, words in OTHERS.items()}
        return {words: loss for words, loss in found.items() if math.isfinite(loss)}

    @property
    def half_width(self) -> float:
        """Half the interval's width as a proportion of the loss."""
        return (self.high - self.low) / 2 / self.loss

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON and TOML types; what does not exist is left out."""
        content = {
            **asdict(self),
            "reasons": list(self.reasons),
            "band": [list(astuple(p)) for p in self.band],
            "sets": {name: each.to_dict() for name, each in self.sets.items()},
        }
        for other in ("free_loss", "comparator", "compute_line", "noise", "proxies_over_target"):
            if not math.isfinite(content[other]):
                del content[other]
        if not self.band:
            del content["band"], content["block"], content["band_level"]
        if not self.sets:
            del content["sets"]
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Forecast:
        band = tuple(BandPoint(*point) for point in content.get("band", ()))
        sets = {name: SetForecast.from_dict(each) for name, each in content.get("sets", {}).items()}
        return cls(**{**content, "reasons": tuple(content["reasons"]), "band": band, "sets": sets})

    def at(self, tokens: int) -> BandPoint:
        """The band after `tokens` tokens, between its points by a straight line; ValueError if there is none."""
        if not self.band:
            raise ValueError("this forecast has no band")
        columns = list(zip(*((p.tokens, p.loss, p.low, p.high, p.shape) for p in self.band), strict=True))
        values = (float(np.interp(tokens, columns[0], column)) for column in columns[1:])
        return BandPoint(tokens, *values)


def beside(
    others: Mapping[str, float], ratios: Mapping[str, float], *, cost: float, noise: float
) -> list[str]:
    """What has to be told beside a forecast: its reach, its cost, what others would say, and its floor.

    `others` are losses by their words, `ratios` the target over the largest proxy by axis, `cost` the FLOPs of all
    proxies over the target's, `noise` the relative standard deviation of a run; NaN where one is not known.
    """
    reach = ", ".join(f"{axis} {ratio:.3g}×" for axis, ratio in ratios.items())
    paid = f"; all proxies cost {cost:.3g}× the target's compute" if math.isfinite(cost) else ""
    told = ", ".join(f"{words} {loss:.3f}" for words, loss in others.items())
    floor = f"{100 * noise:.2g}% of a run's loss by the law: the floor under a forecast's error"
    return [
        f"reach     {reach} the largest proxy{paid}",
        f"others    {told}",
        *([f"noise     {floor}"] if noise > 0 else []),
    ]


@dataclass(frozen=True)
class Score:
    """A forecast against what happened; `relative_error` is (forecast - actual) / actual, a proportion.

    `erred` names the stage that most of the error comes from: "law" where the whole curve missed the band by as
    much, "curve" where the run bent away from it (rate, batch, data or shape of the curve), "" where the actual loss is
    inside the interval or there is no band to tell.
    """

    loss: float
    inside: bool
    relative_error: float
    better_than_naive: bool
    erred: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def score(forecast: Forecast, actual: float, steps: pl.DataFrame | None = None) -> Score:
    """Compare a forecast with the final validation loss (nats per token); ValueError unless positive.

    `steps` (`tokens`, `loss`) are the run's, to tell which stage erred.
    """
    if not (math.isfinite(actual) and actual > 0):
        raise ValueError(f"an actual loss must be positive and finite (nats per token), but got {actual!r}")
    inside = forecast.low <= actual <= forecast.high
    return Score(
        loss=actual,
        inside=inside,
        relative_error=(forecast.loss - actual) / actual,
        better_than_naive=abs(forecast.loss - actual) < abs(forecast.naive - actual),
        erred="" if inside or steps is None else _erred(forecast, actual, steps),
    )


def _erred(forecast: Forecast, actual: float, steps: pl.DataFrame) -> str:
    """Of the error at the end, what the curve shows in its middle third is the law's, what came since the curve's."""
    if not forecast.band:
        return ""
    horizon = forecast.band[-1].tokens
    middle = [
        loss - forecast.at(tokens).loss
        for tokens, loss in steps.select("tokens", "loss").iter_rows()
        if horizon / 3 < tokens < 2 * horizon / 3 and tokens > forecast.band[0].tokens
    ]
    if not middle:
        return ""
    level = sum(middle) / len(middle)
    return "law" if abs(level) >= abs(actual - forecast.loss - level) else "curve"
