"""One setting of a recipe: its value, where that is from, and what it is expected to cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Source = Literal["measured", "prior", "set by you"]
LEVEL = 0.9  # of every knob's interval


@dataclass(frozen=True)
class Knob:
    """A setting, by its key in a Run; `low` and `high` hold its best value at 90%, NaN where nothing is known of it.

    `regret` is what the value is expected to cost against the best one, in nats per token, averaged over what is not
    known; `worst` what it costs if the best one lies at the worse end of the interval. NaN where nothing is known.
    `rule` says how the value came about, `buys` what one more measurement would tell.
    """

    name: str
    value: float | int | str
    source: Source
    low: float = math.nan
    high: float = math.nan
    regret: float = math.nan
    rule: str = ""
    buys: str = ""
    worst: float = math.nan

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON and TOML types; what is not known is left out."""
        content = asdict(self)
        return {
            key: value
            for key, value in content.items()
            if value != "" and not (isinstance(value, float) and not math.isfinite(value))
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Knob:
        return cls(**content)

    @property
    def shown(self) -> str:
        """The value in words."""
        return (
            self.value
            if isinstance(self.value, str)
            else f"{self.value:.4g}"
            if isinstance(self.value, float)
            else f"{self.value:,}"
        )

    @property
    def interval(self) -> str:
        """The interval in words, empty where there is none."""
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            return ""
        low, high = number(self.low), number(self.high)
        return low if low == high else f"{low} to {high}"

    def line(self) -> str:
        """The knob in one line for people."""
        inside = f" [{self.interval}]" if self.interval else ""
        cost = f", regret {self.regret:.4f} nats" if math.isfinite(self.regret) else ""
        if math.isfinite(self.worst):
            cost += f", {self.worst:.4f} if the best is at the worse end"
        more = "; ".join(text for text in (self.rule, self.buys) if text)
        return f"{self.name} {self.shown}{inside} ({self.source}{cost}){': ' * bool(more)}{more}"


def number(value: float) -> str:
    """To three digits, never with an exponent above 1."""
    return f"{float(f'{value:.3g}'):,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"
