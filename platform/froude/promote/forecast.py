"""The forecast of a run's final loss, made before it starts, and its score afterwards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from froude.config import ConfigError


@dataclass(frozen=True)
class Forecast:
    """The final validation loss that a law predicts: nats per token, with an interval at `level`.

    `certified` is False where the law cannot vouch for it; `reasons` says why, `status` is the law's.
    `naive` is the loss of the largest proxy at its longest horizon: what a law must beat. `free_loss` is what
    the fit with free exponents predicts, or NaN if there is none; it is never used.
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

    def __post_init__(self) -> None:
        if not self.low <= self.loss <= self.high:
            raise ConfigError(
                f"a forecast's loss must lie in its interval, but {self.loss:g} is outside "
                f"[{self.low:g}, {self.high:g}]; promote again"
            )

    @property
    def half_width(self) -> float:
        """Half the interval's width as a proportion of the loss."""
        return (self.high - self.low) / 2 / self.loss

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON and TOML types; a `free_loss` that does not exist is left out."""
        content = {**asdict(self), "reasons": list(self.reasons)}
        if not math.isfinite(self.free_loss):
            del content["free_loss"]
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Forecast:
        return cls(**{**content, "reasons": tuple(content["reasons"])})


@dataclass(frozen=True)
class Score:
    """A forecast against what happened; `relative_error` is (forecast - actual) / actual, a proportion."""

    loss: float
    inside: bool
    relative_error: float
    better_than_naive: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def score(forecast: Forecast, actual: float) -> Score:
    """Compare a forecast with the final validation loss (nats per token); ValueError unless positive."""
    if not (math.isfinite(actual) and actual > 0):
        raise ValueError(f"an actual loss must be positive and finite (nats per token), but got {actual!r}")
    return Score(
        loss=actual,
        inside=forecast.low <= actual <= forecast.high,
        relative_error=(forecast.loss - actual) / actual,
        better_than_naive=abs(forecast.loss - actual) < abs(forecast.naive - actual),
    )
