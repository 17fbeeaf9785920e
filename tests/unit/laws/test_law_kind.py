"""A law of one's own: one class over the base, which gives it rows, table, errors and figures of both looks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest

from froude import laws
from froude.laws.drawing.panel import Axis, Band, Line, Mark, Panel, Points
from froude.laws.law import Law
from froude.laws.stats import uncertainty
from froude.laws.stats.frames import Array, Mask, read
from froude.laws.stats.results import NO_ESTIMATE, Estimate
from froude.report.theme import picture

STEPS = np.array([100.0, 200, 400, 800, 1600])
FRAME = pl.DataFrame({"steps": STEPS, "loss": 2 + 90 / STEPS + 0.01 * np.array([1, -1, 1, -1, 0])})


@dataclass(frozen=True, eq=False)
class Settling(Law):
    """loss = level + slope / steps, by least squares."""

    level: Estimate
    slope: Estimate

    def at(self, steps: Array) -> Array:
        return self.level.value + self.slope.value / steps

    def residuals(self) -> tuple[Array, Array, Mask] | None:
        if not math.isfinite(self.level.value):
            return None
        left = self.sample["loss"] - self.at(self.sample["steps"])
        return self.at(self.sample["steps"]), left, uncertainty.outliers(left)

    def drawing(self) -> tuple[Panel, ...]:
        runs = Points(self.sample["steps"], self.sample["loss"], name="runs")
        if not math.isfinite(self.level.value):
            return (Panel(Axis("steps", base=10), Axis("loss"), (runs,)),)
        x = np.geomspace(100, 1600, 20)
        low, high = (self.at(x) - self.level.value + end for end in (self.level.low, self.level.high))
        level = Mark(self.level.value, axis="y", style="limit", name="level")
        series = (runs, Line(x, self.at(x), name="law"), Band(x, low, high), level)
        return (Panel(Axis("steps", base=10), Axis("loss"), series),)


def settling(frame: pl.DataFrame) -> Settling:
    sample = read(frame, ["steps"], loss=True)
    if sample.size < 4:
        few = (f"{sample.size} rows; needs 4",)
        return Settling(NO_ESTIMATE, NO_ESTIMATE, status="too_few_points", reasons=few, sample=sample)
    found, covariance = np.polyfit(1 / sample["steps"], sample["loss"], 1, cov=True)
    errors = np.sqrt(np.diag(covariance))
    slope, level = (
        uncertainty.interval(float(value), float(error), sample.size - 2)
        for value, error in zip(found, errors, strict=True)
    )
    return Settling(level, slope, status="ok", reasons=(), sample=sample)


def test_a_law_from_outside_has_all_that_ours_have() -> None:
    law = settling(FRAME)
    assert law.level.value == pytest.approx(2, abs=0.02)
    table = law.table()
    assert table.columns == ["parameter", "value", "se", "low", "high"]
    assert table["parameter"].to_list() == ["level", "slope"]
    assert law.rows.columns == ["steps", "loss", "fitted", "residual", "outlier"]
    assert (law.rows["fitted"] + law.rows["residual"]).to_list() == pytest.approx(FRAME["loss"].to_list())


def test_its_figure_comes_from_the_common_renderer_in_both_looks() -> None:
    law = settling(FRAME)
    (axes,) = law.plot().axes
    assert axes.get_xlabel() == "steps"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["runs", "law", "level"]
    drawn = picture("Settling", law.drawing()[0], "settling", "Loss against steps.")
    assert 'aria-label="Loss against steps."' in drawn.svg
    assert "var(--forecast)" in drawn.svg
    assert drawn.caption == ""


def test_without_a_fit_it_says_why() -> None:
    law = settling(FRAME[:2])
    assert law.rows["fitted"].null_count() == 2
    assert law.plot().get_suptitle() == "status: too_few_points (2 rows; needs 4)"
    assert str(law.refusal()) == "No law was fitted: status too_few_points (2 rows; needs 4)."


def test_rows_of_which_a_law_says_nothing_are_null() -> None:
    sample = read(FRAME, ["steps"], loss=True)
    fitted = np.array([1.0, np.nan, 1, 1, 1])
    rows = sample.rows(fitted, fitted, np.zeros(5, dtype=bool))
    assert rows.select(pl.col("fitted", "residual", "outlier").null_count()).row(0) == (1, 1, 1)


def test_every_result_is_a_law() -> None:
    results = [getattr(laws, name) for name in laws.__all__]
    fitted = [each for each in results if isinstance(each, type) and hasattr(each, "plot")]
    assert len(fitted) == 14
    assert all(issubclass(each, Law) for each in fitted)
