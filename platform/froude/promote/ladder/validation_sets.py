"""Validation sets besides the one whose loss is `trials().loss`: the rows of a loss law for each, by name.

Their losses are rows of `evals()` whose `split` is the set's name: written at a run's end where its source names such
sets, and for a table's columns `loss_<name>`. They are taken as they are: what a mis-set rate cost is known of the main
loss only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from froude.laws import Prediction
from froude.study import Study


@dataclass(frozen=True)
class SetForecast:
    """What a law of one set's losses says of the target: nats per token, at the level of the forecast beside it.

    `comparator` and `noise` are as in that forecast, of this set's losses; NaN where they are not known.
    """

    loss: float
    low: float
    high: float
    certified: bool
    reasons: tuple[str, ...] = ()
    comparator: float = math.nan
    noise: float = math.nan

    @classmethod
    def of(cls, found: Prediction) -> SetForecast:
        held = found.loss, found.low, found.high, found.certified, found.reasons
        return cls(*held, comparator=found.comparator, noise=found.noise)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> SetForecast:
        return cls(**{**content, "reasons": tuple(content["reasons"])})

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON and TOML types; what is not known is left out."""
        unknown = [key for key in ("comparator", "noise") if not math.isfinite(getattr(self, key))]
        content = {**asdict(self), "reasons": list(self.reasons)}
        return {key: value for key, value in content.items() if key not in unknown}

    def words(self, unit: str = "") -> str:
        """The same for people, `unit` after the loss, with what else would be forecast and the floor under an error."""
        trust = "certified" if self.certified else "not certified"
        other = f"; published exponents {self.comparator:.4g}" if math.isfinite(self.comparator) else ""
        floor = f"; noise of a run {100 * self.noise:.2g}%" if self.noise > 0 else ""
        return f"{self.loss:.4g}{unit} in [{self.low:.4g}, {self.high:.4g}], {trust}{other}{floor}"

    def scored(self, actual: float) -> tuple[bool, float]:
        """Whether the interval held the loss of the finished run, and the relative error."""
        return self.low <= actual <= self.high, (self.loss - actual) / actual


def evaluations(study: Study, column: str = "loss") -> pl.DataFrame:
    """All losses on other sets: `run`, `tokens`, `split`, `loss`; those of a column of another unit, if it is named."""
    others = study.evals().filter(~pl.col("split").is_in(["train", "validation"]), pl.col("loss").is_finite())
    losses = others.select("run", "tokens", "split", loss=pl.col(column)).collect()
    return losses.drop_nulls("loss")


def ladders(ladder: pl.DataFrame, evaluated: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """The loss law's finished rows with each set's loss in place of their own, where it was evaluated."""
    finished = ladder.filter(pl.col("status") == "finished")
    rows = finished.drop("loss").join(evaluated, on=["run", "tokens"]).select(*ladder.columns, "split")
    return {str(name): own.drop("split") for (name,), own in sorted(rows.group_by("split"))}
