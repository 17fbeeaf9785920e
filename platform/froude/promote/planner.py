"""Which proxies to run next, so that the forecast of a large run narrows, or promotion's gate lets it pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl

from froude.config import ConfigError, Run
from froude.laws import Prediction
from froude.laws.design import Design, forecast_design
from froude.laws.frames import Array
from froude.promote.candidates import candidates
from froude.promote.fits import Fits
from froude.promote.gate import Profile, profile_named

Cost = Literal["tokens", "flops"]
REACH = 2.0  # candidates go beyond the largest proxy by so much in params and in tokens,
REACH_FAR = 4.0  # and by so much where the gate's bounds on extrapolation ask for larger ones
AXES = {"params": "params", "tokens": "tokens", "compute": "flops"}  # of the gate, and of a Prediction


@dataclass(frozen=True)
class NextRuns:
    """Candidates ranked, and a set of them.

    `ranked` has `params, tokens, width (null without a template), seed, ratio (tokens per parameter), flops, cost,
    shrink, closes, value`, best first: `shrink` is the proportion by which the forecast's interval is expected to
    narrow, `closes` that by which the target comes nearer to the gate's bounds on extrapolation, in log, and `value`
    whichever of both is `sought`, per unit of cost. `chosen` are the set's runs in order, `after` the interval's
    expected half-width, relative to the loss, when they are done. `failing` are the gate's checks on the loss law that
    fail now, each with its value and bound.
    """

    params: float
    tokens: float
    unit: Cost
    budget: float | None
    forecast: Prediction
    failing: Mapping[str, str]
    sought: Literal["shrink", "closes"]
    ranked: pl.DataFrame
    chosen: pl.DataFrame
    after: float
    noise_share: float

    @property
    def half_width(self) -> float:
        """Half the forecast's interval as a proportion of its loss, now."""
        return (self.forecast.high - self.forecast.low) / 2 / self.forecast.loss

    def to_dict(self, top: int) -> dict[str, Any]:
        """Plain JSON types; the first `top` of the ranking."""
        now = self.forecast
        return {
            "target": {"params": self.params, "tokens": self.tokens},
            "forecast": {
                **{name: getattr(now, name) for name in ("loss", "low", "high", "level", "certified")},
                "reasons": list(now.reasons),
                "half_width": self.half_width,
                "extrapolation": dict(now.extrapolation),
            },
            "failing": dict(self.failing),
            "cost_in": self.unit,
            "budget": self.budget,
            "sought": self.sought,
            "ranked": self.ranked.head(top).to_dicts(),
            "chosen": self.chosen.to_dicts(),
            "expected_half_width": self.after,
            "reasons": self.paragraph(),
        }

    def lines(self, top: int) -> list[str]:
        """The same for people."""
        scale = 10.0 ** math.floor(math.log10(self.ranked["cost"][0]))
        head = f"{'params':>10}{'tokens':>10}{'width':>7}{'seed':>6}{'tok/par':>9}{'FLOPs':>10}{'narrows':>9}"
        head += f"{'closes':>8}" if self.sought == "closes" else ""
        found = [f"next{head}  worth per {scale:.0e} {self.unit}"]
        for place, row in enumerate(self.ranked.head(top).iter_rows(named=True), 1):
            found.append(f"{place:>4}{self._row(row)}  {100 * row['value'] * scale:.2g}%")
        if self.budget is not None:
            total = float(self.chosen["cost"].sum())
            found.append(
                f"set of {self.chosen.height} for {total:.3g} of {self.budget:.3g} {self.unit}, each as if it were alone:"
            )
            found += [f"    {self._row(row)}" for row in self.chosen.iter_rows(named=True)]
        return [*found, "", self.paragraph()]

    def _named(row: Mapping[str, Any]) -> str:
    return f"{row['params']:.3g} parameters for {row['tokens']:.3g} tokens"
