"""Which count of parameters predicts larger runs best: on made runs, whose count is known, and on published ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from froude import laws

pytestmark = pytest.mark.slow


def made(noise: float = 0.001) -> pl.DataFrame:
    """Runs whose loss follows the count without embeddings, which are most of the small models."""
    rng = np.random.default_rng(1)
    width, tokens = (v.ravel() for v in np.meshgrid(2 ** np.arange(6, 12), np.geomspace(1e8, 1e10, 4)))
    bare = 100.0 * width**2
    loss = (1.8 + 400 / bare**0.34 + 2000 / tokens**0.36) * np.exp(noise * rng.standard_normal(width.size))
    return pl.DataFrame({"bare": bare, "whole": bare + 50_000.0 * width, "tokens": tokens, "loss": loss})


def test_the_count_that_the_loss_follows_is_found() -> None:
    for columns in (["bare", "whole"], ["whole", "bare"]):
        found = laws.counting_conventions(made(), columns)
        assert found["column"].to_list() == ["bare", "whole"]
        best, other = found.iter_rows(named=True)
        assert best["error"] < 0.5 * other["error"]
        assert best["nearest"] > 0.7
        assert best["nearest"] + other["nearest"] == pytest.approx(1)
        assert best["runs"] == other["runs"] > 5
    same = laws.counting_conventions(made().with_columns(again=pl.col("bare")), ["bare", "again"])
    assert same["error"][0] == same["error"][1]
    assert same["asked"][0] == same["asked"][1]


def test_of_gemstones_the_count_without_embeddings_predicts_larger_runs_better(vendored: Path) -> None:
    runs = pl.read_csv(vendored / "gemstones_hot.csv").rename({"tokens_D": "tokens"})
    found = laws.counting_conventions(runs, ["params_N", "params_N_no_embed"], groups="run_name")
    assert found["column"].to_list() == ["params_N_no_embed", "params_N"]
    assert found["error"][0] < 0.75 * found["error"][1]  # 2.7 against 4.4%
    assert found["runs"].to_list() == [20, 20]


def test_what_cannot_be_told() -> None:
    none = laws.counting_conventions(made()[:4], ["bare", "whole"])
    assert none["runs"].to_list() == [0, 0]
    assert none.select(pl.col("error", "asked", "nearest").is_nan().all()).row(0) == (True, True, True)
    with pytest.raises(ValueError, match="two counts"):
        laws.counting_conventions(made(), ["bare", "bare"])
    with pytest.raises(ValueError, match="half"):
        laws.counting_conventions(made(), ["bare", "half"])
