"""Axes of a search: where the values of a setting may lie."""

from __future__ import annotations

import math
from dataclasses import dataclass

from froude.config import ConfigError, Scalar

_INSIDE = (math.sqrt(5) - 1) / 2  # how far an interior value lies in its range: at no whole number by chance


@dataclass(frozen=True)
class LogUniform:
    """A float between `low` and `high`, uniform in its logarithm."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < math.inf:
            raise ConfigError(
                f"a LogUniform axis needs 0 < low < high, but got ({self.low}, {self.high}); give the lower bound first"
            )

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    @property
    def extremes(self) -> tuple[Scalar, ...]:
        """Its ends."""
        return (self.low, self.high)

    @property
    def interior(self) -> tuple[Scalar, ...]:
        """A value between the ends, of as many digits as a search would draw."""
        return (self.low * (self.high / self.low) ** _INSIDE,)


@dataclass(frozen=True)
class Uniform:
    """A float between `low` and `high`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise ConfigError(
                f"a Uniform axis needs low < high, both finite, but got ({self.low}, {self.high}); give the lower "
                "bound first"
            )

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    @property
    def extremes(self) -> tuple[Scalar, ...]:
        """Its ends."""
        return (self.low, self.high)

    @property
    def interior(self) -> tuple[Scalar, ...]:
        """A value between the ends, of as many digits as a search would draw."""
        return (self.low + (self.high - self.low) * _INSIDE,)


@dataclass(frozen=True)
class Choice:
    """One of several values."""

    options: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        if any(isinstance(each, dict | list) for each in self.options):
            raise ConfigError(
                f"a Choice axis needs plain values, but got {self.options}; a table has an axis for each key, such as "
                '"optimizer.multipliers.embedding", and a list is written as a tuple'
            )
        if not self.options or len(set(self.options)) < len(self.options):
            raise ConfigError(
                f"a Choice axis needs different options, but got {self.options}; name each once"
            )

    def __contains__(self, value: object) -> bool:
        return value in self.options

    @property
    def extremes(self) -> tuple[Scalar, ...]:
        """All options."""
        return self.options

    @property
    def interior(self) -> tuple[Scalar, ...]:
        """None: its options are all there is."""
        return ()


Axis = LogUniform | Uniform | Choice
