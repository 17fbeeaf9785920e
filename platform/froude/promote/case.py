"""What the gate's checks look at: a study with its fits, and the forecast for its target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from froude.config import Run
from froude.laws import Estimate, LrTransfer
from froude.promote.fits import Fits
from froude.promote.forecast import Forecast
from froude.study import Study


@dataclass(frozen=True, eq=False)
class Case:
    """A study before the gate; its fits have a learning-rate transfer of the target's parametrization and a loss law.

    `forecast` is None where the loss law has no fit. `ratios` are those of `beyond`.
    """

    study: Study
    fits: Fits
    forecast: Forecast | None
    ratios: Mapping[str, float]

    @property
    def target(self) -> Run:
        return self.fits.target

    @cached_property
    def trials(self) -> pl.DataFrame:
        """Every trial of the study, the failed ones too."""
        return self.study.trials().collect()

    @cached_property
    def used(self) -> pl.DataFrame:
        """The rows that any law is fitted to, each once."""
        laws = {role: rows for role, rows in self.fits.rows.items() if role != "precision"}
        found = [rows.drop("regret", strict=False) for rows in laws.values() if rows.height]
        return pl.concat(found).unique("run")

    @property
    def grid(self) -> pl.DataFrame:
        """The rows of the learning-rate transfer."""
        return self.fits.rows[f"lr_transfer_{self.target.parametrization}"]

    @property
    def ladder(self) -> pl.DataFrame:
        """The rows of the loss law."""
        return self.fits.rows["loss_law"]

    @property
    def transfer(self) -> LrTransfer:
        return self.fits.transfer[self.target.parametrization]

    @cached_property
    def rate(self) -> Estimate | None:
        """The best peak learning rate by stage lr_transfer, at its horizon and batch, at 95%; None without a line."""
        return self.fits.peak_lr


def beyond(rows: pl.DataFrame, target: Run, params: int) -> dict[str, float]:
    """Target (of `params` parameters) over the largest of the rows in params, tokens, compute (6ND) and batch."""
    counted = {axis: pl.col(axis).cast(pl.Float64) for axis in ("params", "tokens", "batch")}
    largest = rows.select(
        params=counted["params"].max(),
        tokens=counted["tokens"].max(),
        compute=(counted["params"] * counted["tokens"]).max(),
        batch=counted["batch"].max(),
    ).row(0, named=True)
    over = {
        "params": params,
        "tokens": target.tokens,
        "compute": params * target.tokens,
        "batch": target.phases.mean,
    }
    return {axis: value / (largest[axis] or math.nan) for axis, value in over.items()}
