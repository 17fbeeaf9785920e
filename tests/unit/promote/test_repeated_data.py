"""Runs of many epochs in a table: named, not certified, and left alone where epochs are few or nothing tells them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from froude.config import ConfigError
from froude.promote.fits import Fits, fit
from froude.promote.imported_runs.history import make_study
from froude.promote.imported_runs.reading import reading
from froude.study import Study

UNIQUE = 1e9
WORTH = 15.4  # epochs after which repeating gives nothing more (Muennighoff et al. 2305.16264)


def law(params: float, tokens: float, unique: float) -> float:
    again = max(tokens / unique - 1, 0.0)
    worth: float = min(tokens, unique) * (1 + WORTH * (1 - math.exp(-again / WORTH)))
    return float(1.8 + 400 / params**0.34 + 900 / worth**0.28)


def table(unique: float, **told: Any) -> pl.DataFrame:
    rows = [
        {"params": int(n), "tokens": int(d), "loss": law(n, d, unique)}
        for n in (2e7, 4e7, 8e7, 1.6e8, 3.2e8)
        for d in (2.5e8, 5e8, 1e9, 4e9, 1e10, 2e10)
    ]
    return pl.DataFrame(rows).with_columns(**told)


def made(tmp_path: Path, frame: pl.DataFrame, **columns: str) -> Study:
    frame.write_csv(tmp_path / "runs.csv")
    return make_study(str(tmp_path / "runs.csv"), str(tmp_path / "study"), columns=columns, fresh=True)


def certified(fits: Fits) -> bool:
    return fits.predict(params=10**9, tokens=2 * 10**10).certified


EPOCHS = pl.max_horizontal(pl.col("tokens") / UNIQUE, 1.0)


@pytest.mark.parametrize("name", ["epochs", "num_epochs", "config.num_epochs", "n-epochs"])
def test_many_epochs_are_named_and_not_certified(name: str, tmp_path: Path) -> None:
    study = made(tmp_path, table(UNIQUE, **{name: EPOCHS}))
    assert name in reading(study).columns
    fits = fit(study)
    assert not certified(fits)
    (doubt,) = fits.doubts
    assert doubt.startswith("10 runs saw their data more than 4 times (up to 20)")
    assert "laws.data_constrained" in doubt


def test_unique_tokens_tell_the_same_under_any_name_that_is_mapped(tmp_path: Path) -> None:
    frame = table(UNIQUE, corpus_size=pl.lit("1,000,000,000"))
    assert not fit(made(tmp_path, frame)).doubts
    assert "(up to 20)" in fit(made(tmp_path, frame, unique_tokens="corpus_size")).doubts[0]
    with pytest.raises(ConfigError, match=r"'corpus_size' \(unique_tokens\) must be numeric"):
        made(tmp_path, table(UNIQUE, corpus_size=pl.lit("all")), unique_tokens="corpus_size")


@pytest.mark.parametrize(
    "told", [{}, {"epochs": pl.lit(1.0)}, {"unique_tokens": pl.col("tokens")}, {"epochs": pl.lit(4.0001)}]
)
def test_few_epochs_cost_nothing(told: dict[str, Any], tmp_path: Path) -> None:
    study = made(tmp_path, table(math.inf, **told))
    assert study.meta["stages"]["history"] == {"role": "history", "trials": 30, "extends": False}
    assert certified(fit(study))


def test_a_column_of_something_else_is_left_out_by_mapping_it_to_nothing(tmp_path: Path) -> None:
    study = made(tmp_path, table(math.inf, epochs=pl.lit(100)), epochs="")
    assert reading(study).ignored == ("epochs",)
    assert certified(fit(study))


def test_runs_that_did_not_finish_do_not_count(tmp_path: Path) -> None:
    lost = pl.when(EPOCHS > 4).then(pl.lit("failed")).otherwise(pl.lit("finished"))
    assert not fit(made(tmp_path, table(UNIQUE, epochs=EPOCHS, status=lost))).doubts
