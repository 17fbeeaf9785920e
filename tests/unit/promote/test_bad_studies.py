"""Studies that look like any other but should cost nobody a target run: each is refused, and for the right reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from froude.promote import gate
from froude.promote.checks.rows import unrecovered
from froude.promote.promotion import promote
from froude.study import Study

pytestmark = pytest.mark.slow

Row = dict[str, Any]
CENTRE = math.log2(2**-7.5)


def in_transfer(change: Callable[[float, Row], Row | None]) -> Callable[[Row], Row | None]:
    """A change of the curves' rows; it is told how many octaves the rate lies above the optimum."""

    def changed(row: Row) -> Row | None:
        if row["stage"] != "transfer":
            return row
        shift = -math.log2(row["width"] / 64) if row["parametrization"] == "sp" else 0.0
        return change(math.log2(row["lr"]) - CENTRE - shift, row)

    return changed


def in_law(change: Callable[[Row], Row | None]) -> Callable[[Row], Row | None]:
    return lambda row: change(row) if row["stage"] == "law" else row


def lost(row: Row) -> Row:
    """As a failed trial is stored: nobody has counted its parameters."""
    return {**row, "status": "failed", "loss": None, "params": None}


def diverged(octaves: float, row: Row) -> Row:
    return {**row, "status": "diverged", "loss": None} if octaves > 0.4 else row


def noisy(octaves: float, row: Row) -> Row:
    draw = np.random.default_rng(hash((row["width"], row["seed"], round(octaves * 100))) % 2**32)
    return {**row, "loss": 1.9 + 0.02 * draw.standard_normal()}


BAD: dict[str, tuple[str, Callable[[Row], Row | None]]] = {
    "the best rate is the lowest tried": (
        "lr_edge",
        in_transfer(lambda octaves, row: {**row, "loss": 2 + 0.05 * octaves}),
    ),
    "the best rate is the highest tried": (
        "lr_edge",
        in_transfer(lambda octaves, row: {**row, "loss": 2 - 0.05 * octaves}),
    ),
    "the loss does not depend on the rate": ("lr_flat", in_transfer(noisy)),
    "two minima over the rates": (
        "lr_one_minimum",
        in_transfer(lambda octaves, row: {**row, "loss": row["loss"] + 0.15 * math.exp(-8 * octaves**2)}),
    ),
    "the largest rates near the optimum diverged": ("diverged_near_optimum", in_transfer(diverged)),
    "the optimum moves with width under muP": (
        "lr_transfers",
        in_transfer(
            lambda octaves, row: {
                **row,
                "loss": 1.9
                + 0.04 * (octaves + 0.5 * math.log2(row["width"] / 64)) ** 2
                + 0.001 * row["seed"],
            }
        ),
    ),
    "validation data in the training data": ("validation_leak", lambda row: {**row, "leaked": 0.4}),
    "some proxies in another precision": (
        "one_precision",
        lambda row: {**row, "precision": "bf16"} if row["width"] == 128 else row,
    ),
    "the largest proxy failed": (
        "largest_finished",
        in_law(lambda row: lost(row) if row["width"] == 96 else row),
    ),
    "the largest proxy was never run": (
        "largest_finished",
        in_law(lambda row: None if row["width"] == 96 else row),
    ),
    "the largest proxy diverged": (
        "largest_finished",
        in_law(lambda row: {**row, "status": "diverged", "loss": None} if row["width"] == 96 else row),
    ),
    "a size off the law of the others": (
        "sizes_agree",
        in_law(lambda row: {**row, "loss": row["loss"] * 1.08} if row["width"] == 48 else row),
    ),
    "a trial failed": ("trials_failed", lambda row: lost(row) if row["run"] == "search-2" else row),
}


def refused(study: Path) -> set[str]:
    with pytest.raises(gate.Refused) as refusal:
        promote(Study(study))
    return {reason.split(":")[0] for reason in refusal.value.reasons}


@pytest.mark.parametrize("which", list(BAD))
def test_a_bad_study_is_refused_for_its_reason(
    which: str, tmp_path: Path, study_factory: Callable[..., Path]
) -> None:
    name, change = BAD[which]
    assert name in refused(study_factory(tmp_path / "study", change=change))


def test_too_few_seeds(tmp_path: Path, study_factory: Callable[..., Path]) -> None:
    assert "seeds" in refused(study_factory(tmp_path / "study", seeds=1))


def test_a_target_a_thousand_times_beyond(tmp_path: Path, study_factory: Callable[..., Path]) -> None:
    from small_study import TARGET  # type: ignore[import-not-found]

    far = TARGET.replace({"tokens": TARGET.tokens * 700}, name="large")
    names = refused(study_factory(tmp_path / "study", target=far))
    assert {"extrapolation_tokens", "extrapolation_compute"} <= names


def test_a_critical_batch_beyond_those_tried(tmp_path: Path, study_factory: Callable[..., Path]) -> None:
    def change(row: Row) -> Row:
        if row["stage"] != "batch":
            return row
        needed = 0.5 * (1 + 65_000 / row["batch"])
        return {**row, "loss": 2.2 - 0.5 * math.log(row["steps"] / needed)}

    assert "batch_edge" in refused(study_factory(tmp_path / "study", change=change))


@pytest.mark.long
def test_a_proxy_that_spiked_and_did_not_recover(tmp_path: Path, study_factory: Callable[..., Path]) -> None:
    def steps(row: Row) -> list[Row]:
        if row["stage"] != "law":
            return []
        noise = np.random.default_rng(row["seed"]).standard_normal(row["steps"])
        jump = 0.4 * (row["width"] == 96) * (np.arange(row["steps"]) > 0.5 * row["steps"])
        loss = 2 - 0.1 * np.log(np.arange(1, row["steps"] + 1)) + 0.02 * noise + jump
        return [
            {
                "run": row["run"],
                "attempt": 1,
                "step": i + 1,
                "tokens": (i + 1) * row["batch"],
                "loss": float(x),
            }
            for i, x in enumerate(loss)
        ]

    assert "unstable_proxies" in refused(study_factory(tmp_path / "study", steps=steps))
    calm = study_factory(tmp_path / "calm", steps=lambda row: steps({**row, "width": 0}))
    assert "unstable_proxies" not in refused(calm)


def test_a_loss_that_rises_with_other_data_is_no_spike() -> None:
    rng = np.random.default_rng(0)
    loss = np.where(np.arange(600) < 420, 2.0, 2.4) + 0.01 * rng.standard_normal(600)
    steps = pl.DataFrame({"step": np.arange(1, 601), "tokens": 64 * np.arange(1, 601), "loss": loss})
    assert unrecovered(steps) == 1
    assert unrecovered(steps, lambda seen: seen > 64 * 420) == 0
    assert unrecovered(steps, lambda seen: seen > 64 * 300) == 1
