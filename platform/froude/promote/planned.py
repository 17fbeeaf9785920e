"""What the gate's checks can look at before anything has run: a search space's trials, without what they measure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from froude.config import Run
from froude.laws.lr.exponent import MIN_SIZES
from froude.promote.case import beyond
from froude.promote.ladder.precision_cost import Cost, cost
from froude.promote.ladder.rates import one_curve_a_width, transfer_rows
from froude.space import Space
from froude.train.data.leak import leaked
from froude.train.rows import describe
from froude.train.size import size_of


@dataclass(frozen=True, eq=False)
class Planned:
    """A search space before its sweep, as if each planned trial had finished. The runs' code has been trusted."""

    space: Space

    @property
    def target(self) -> Run:
        return self.space.target

    @cached_property
    def runs(self) -> list[Run]:
        return [run for trials in self.space.planned().values() for trial in trials for run in trial.runs]

    @cached_property
    def rows(self) -> pl.DataFrame:
        """A row a run: `params`, `status` and what its description decides of the columns of `trials()`."""
        return pl.DataFrame(
            [
                {**describe(run), "params": self._params[_shape(run)], "status": "finished"}
                for run in self.runs
            ],
            infer_schema_length=None,
        )

    @cached_property
    def grid(self) -> pl.DataFrame:
        """The rows that the learning-rate transfer would be fitted to."""
        return one_curve_a_width(self.rates) if self.rates.height else self.rates

    @cached_property
    def rates(self) -> pl.DataFrame:
        """Those and the rates at other depths and horizons."""
        return transfer_rows(
            self._of("lr_transfer"), self.target.parametrization, self.target.model.base_width
        )

    @cached_property
    def batch_exponent(self) -> bool:
        """Whether it would be measured how the best rate goes with the batch: at three batches or more."""
        return self._exponents_at("batch") >= MIN_SIZES

    @cached_property
    def horizon_exponent(self) -> bool:
        """Whether it would be measured how the best rate goes with the tokens: at three horizons or more."""
        return self._exponents_at("tokens") >= MIN_SIZES

    @cached_property
    def ladder(self) -> pl.DataFrame:
        """The rows that the loss law would be fitted to."""
        return self._of("loss_law")

    @cached_property
    def reach(self) -> Mapping[str, float]:
        """Target over the largest proxy of the loss law, by axis; {} without such a stage."""
        return (
            beyond(self.ladder, self.target, self._params[_shape(self.target)]) if self.ladder.height else {}
        )

    @cached_property
    def cost(self) -> Cost | None:
        """What would be measured of the target's precision, a number only in form; None if too few pairs would."""
        return cost(self._of("precision").with_columns(loss=pl.lit(0.0)), self.target, self.ladder)

    @cached_property
    def leaked(self) -> float | None:
        """The largest share of a run's validation windows in its training split; None where commands read them."""
        own = [run for run in self.runs if not run.trainer.command]
        return max(map(leaked, own)) if own else None

    def _exponents_at(self, over: str) -> int:
        """At how many values a stage Exponents has rates; those within a percent are one, as in its law."""
        values: pl.Series = self._of("transfer_exponents")[over].log().round(2)
        return values.n_unique()

    def _of(self, role: str) -> pl.DataFrame:
        stages = [stage.name for stage in self.space.stages if stage.role == role]
        return self.rows.filter(pl.col("stage").is_in(stages))

    @cached_property
    def _params(self) -> dict[str, int]:
        """Parameters without embedding and readout, counted once a shape."""
        shapes = {_shape(run): run for run in (*self.runs, self.target)}
        return {shape: size_of(run).params for shape, run in shapes.items()}


def _shape(run: Run) -> str:
    return json.dumps([run.to_dict()["model"], run.parametrization, run.trainer.params], sort_keys=True)
