"""A table of other people's runs that can't be promoted: what it must say, or have, is named."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from froude.config import ConfigError, Run
from froude.promote.imported_runs.history import make_study
from froude.promote.promotion import promote

RATE = 2.0**-7
TARGET = Run(name="large", batch=768, slots=12, tokens=768 * 1300, model={"width": 192})


def grid(**more: Any) -> pl.DataFrame:
    """Three sizes and three horizons, at three rates each."""
    rows = [
        {
            "params": 26 * width**2,
            "tokens": 768 * steps,
            "loss": 1.5 + 30 / width + 50 / steps + 0.03 * octaves**2,
            "width": width,
            "lr": RATE * 2.0**octaves,
            "batch": 768,
        }
        for width in (32, 48, 64)
        for steps in (250, 500, 1000)
        for octaves in (-1, 0, 1)
    ]
    return pl.DataFrame([row | more for row in rows])


@pytest.mark.parametrize(
    ("table", "changes", "said"),
    [
        (
            grid(),
            {},
            "lacks search, lr_transfer; map schedule; map parametrization, or set the target's (it has mup",
        ),
        (grid(), {"parametrization": "sp"}, "lacks search; map schedule"),
        (grid(schedule="wsd"), {}, "lacks lr_transfer; map parametrization"),
        (grid(schedule="wsd").drop("width"), {"parametrization": "sp"}, "lacks lr_transfer; map width"),
        (
            grid(schedule="cosine"),
            {"parametrization": "sp"},
            "add finished runs of the target's schedule, wsd,",
        ),
        (
            grid(schedule="wsd").filter(lr=RATE),
            {"parametrization": "sp"},
            "add 3 rates or more of a width, all at one horizon and batch",
        ),
    ],
)
def test_what_a_table_lacks_to_be_promoted_is_named(
    table: pl.DataFrame, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    table.write_parquet(tmp_path / "runs.parquet")
    study = make_study(
        str(tmp_path / "runs.parquet"), str(tmp_path / "study"), target=TARGET.replace(changes)
    )
    with pytest.raises(ConfigError) as error:
        promote(study)
    assert said in str(error.value)
    assert "froude sweep" not in str(error.value)
