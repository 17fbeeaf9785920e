"""Runs of one horizon in whole steps of several batches, and of one setting in fewer digits, are told as one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from froude.promote.imported_runs.history import best, doubts, make_study, rates
from froude.promote.imported_runs.points import alike, with_horizon

SIZES = (2 * 10**7, 4 * 10**7, 8 * 10**7)
HORIZONS = (4 * 10**8, 10**9, 25 * 10**8)


def made(tmp_path: Path, rows: list[dict[str, Any]]) -> pl.DataFrame:
    pl.DataFrame(rows).write_parquet(tmp_path / "runs.parquet")
    return make_study(str(tmp_path / "runs.parquet"), str(tmp_path / "study")).trials().collect()


def sweep(batches: tuple[int, ...], *, whole_steps: bool) -> list[dict[str, Any]]:
    """Each size and horizon at several batches, of which the smallest is best."""
    return [
        {
            "params": params,
            "tokens": round(tokens / batch) * batch if whole_steps else tokens,
            "batch": batch,
            "loss": 1.8 + 400 / params**0.34 + 900 / (tokens / (1 + batch / 1e6)) ** 0.28,
        }
        for params in SIZES
        for tokens in HORIZONS
        for batch in batches
    ]


BATCHES = (131_072, 262_144, 524_288, 1_048_576)


def test_tokens_in_whole_steps_give_the_law_the_rows_that_exact_ones_give(tmp_path: Path) -> None:
    found = []
    for whole_steps in (False, True):
        place = tmp_path / str(whole_steps)
        place.mkdir()
        found.append(best(made(place, sweep(BATCHES, whole_steps=whole_steps))))
    exact, rounded = found
    assert rounded["tokens"].n_unique() == 3
    assert not set(rounded["tokens"]) & set(HORIZONS)
    assert rounded["batch"].to_list() == exact["batch"].to_list() == [131_072] * 9


def test_runs_that_only_their_rounding_tells_apart_are_not_told_apart(tmp_path: Path) -> None:
    rows = [{**each, "batch": None, "seed": 0} for each in sweep(BATCHES[-2:], whole_steps=True)]
    assert (
        "does not say how several runs of one size and horizon differ (9 of"
        in doubts(made(tmp_path, rows))[0]
    )


def test_a_horizon_is_no_wider_than_its_bound_and_knows_no_other_size() -> None:
    tokens = [int(10**9 * 1.015**step) for step in range(7)]
    rows = pl.DataFrame({"run": [f"r{i}" for i in range(7)], "params": 5, "tokens": tokens})
    other = rows.with_columns(pl.col("run") + "b", pl.col("tokens") + 10**7, params=pl.lit(6, pl.Int32))
    found = with_horizon(pl.concat([rows, other]).sample(fraction=1, shuffle=True, seed=1))
    assert (found["tokens"] <= found["_horizon"] * 1.02).all()
    assert set(found.filter(params=5)["_horizon"]) == {tokens[i] for i in (0, 2, 4, 6)}
    assert set(found.filter(params=6)["_horizon"]) == {tokens[i] + 10**7 for i in (0, 2, 4, 6)}


def test_dense_checkpoints_of_runs_are_horizons_of_their_own(tmp_path: Path) -> None:
    rows = [
        {"run": f"r{params}", "params": params, "tokens": 10**9 + step * 10**7, "loss": 3 - step / 1000}
        for params in SIZES
        for step in range(20)
    ]
    trials = made(tmp_path, rows)
    assert with_horizon(trials).select((pl.col("_horizon") == pl.col("tokens")).all()).item()
    assert best(trials).height == 60
    assert not doubts(trials)


@pytest.mark.parametrize("name", ["lr", "beta2", "weight_decay"])
def test_seeds_of_a_setting_in_float32_are_seeds(name: str, tmp_path: Path) -> None:
    value = {"lr": 0.00123456789, "beta2": 0.95, "weight_decay": 0.1}[name]
    rows = [
        {"params": 10**7, "tokens": 10**9, "seed": seed, name: told, "loss": 3 + seed / 100}
        for seed, told in enumerate((value, float(np.float32(value)), float(f"{value:.4g}")))
    ]
    trials = made(tmp_path, rows)
    assert best(trials)["seed"].to_list() == [0, 1, 2]
    assert best(trials)[name].to_list() == [row[name] for row in rows]  # kept as the table has them
    again = [{**row, "seed": 0} for row in rows]
    (tmp_path / "again").mkdir()
    assert "does not say" in doubts(made(tmp_path / "again", again))[0]


def test_settings_that_differ_stay_apart() -> None:
    betas = pl.Series("beta2", [0.9999, 0.999, 0.9995, None, 0.95, 0.951, 0.0])
    assert alike(betas).to_list() == betas.to_list()
    assert alike(pl.Series("vocab", [50_257, 50_304])).to_list() == [50_257, 50_304]
    decays = pl.Series("weight_decay", [0.0, 0.1, 1e-5, 0.1001, 0.11])
    assert alike(decays).to_list() == pytest.approx([0.0, 0.1, 1e-5, 0.1, 0.11], abs=0)
    fine = pl.Series("lr", [math.exp(0.0007 * step) for step in range(5)])
    assert alike(fine).n_unique() == 3  # no chain


def test_rates_in_fewer_digits_are_no_more_rates(tmp_path: Path) -> None:
    rows = [
        {
            "params": width**2,
            "width": width,
            "tokens": 10**9,
            "batch": 768,
            "seed": seed,
            "lr": told,
            "loss": 3.0,
        }
        for width in (64, 128, 256)
        for lr in (1 / 300, 1 / 600, 1 / 900)
        for seed, told in enumerate((lr, float(f"{lr:.4g}")))
    ]
    assert rates(made(tmp_path, rows), "sp")[0]["lr"].n_unique() == 3
