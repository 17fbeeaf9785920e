"""One run that the rest contradict is named, and takes the certificate; a table's own count of parameters, too."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from froude import laws
from froude.config import Run
from froude.laws.loss.draws import WEAK
from froude.promote.counted import counted_otherwise
from froude.promote.fits import fit
from froude.promote.imported_runs.history import make_study
from froude.promote.ladder import outliers
from froude.promote.promotion import chosen, parameters

pytestmark = pytest.mark.slow

TARGET = Run(name="large", batch=768, slots=12, tokens=768 * 1300, model={"width": 192})


def table(**changes: object) -> pl.DataFrame:
    """20 runs of a law, noise of .3%; of row 8 the loss times `times`."""
    times = float(changes.pop("times", 1.0))  # type: ignore[arg-type]
    params, tokens = (
        axis.ravel() for axis in np.meshgrid(np.geomspace(1e7, 3e8, 5), np.geomspace(4e8, 8e9, 4))
    )
    noise = 0.003 * np.random.default_rng(0).standard_normal(params.size)
    loss = (1.69 + 406.4 / params**0.34 + 410.7 / tokens**0.28) * np.exp(noise)
    loss[8] *= times
    return pl.DataFrame({"params": params.round(), "tokens": tokens.round(), "loss": loss})


@pytest.mark.parametrize(("times", "named"), [(3.0, True), (0.5, True), (1.15, False), (1.0, False)])
def test_a_run_that_the_others_contradict_is_named(times: float, named: bool) -> None:
    rows = table(times=times).with_columns(run=pl.format("run-{}", pl.int_range(20)))
    found = outliers.doubts(laws.loss_law(rows, prior=WEAK))
    assert bool(found) == named
    if named:
        assert found[0].startswith("losses are far off: run-8 has ")


def test_too_few_rows_for_a_law_have_no_outlier() -> None:
    assert outliers.doubts(laws.loss_law(table().head(3), prior=WEAK)) == ()
    assert outliers.doubts(None) == ()


def test_an_interval_does_not_depend_on_the_order_of_rows() -> None:
    rows = table()
    seen = [
        laws.loss_law(each, prior=WEAK).predict(params=2e9, tokens=4e10)
        for each in (rows, rows.reverse(), rows.sample(fraction=1, shuffle=True, seed=1))
    ]
    assert [each.low for each in seen] == pytest.approx([seen[0].low] * 3, rel=1e-9)
    assert [each.high for each in seen] == pytest.approx([seen[0].high] * 3, rel=1e-9)


@pytest.mark.parametrize(("factor", "alike"), [(1.0, True), (1.02, True), (0.75, False)])
def test_a_table_that_counts_otherwise_than_the_target_has_no_certificate(
    tmp_path: Path, factor: float, alike: bool
) -> None:
    sizes = {width: parameters(TARGET.replace({"model.width": width})) for width in (32, 48, 64)}
    rows = pl.DataFrame(
        [
            {
                "params": round(factor * count),
                "tokens": 768 * steps,
                "loss": 1.5 + 30 / width + 50 / steps + 0.03 * octaves**2,
                "width": width,
                "depth": TARGET.model.depth,
                "lr": 2.0 ** (octaves - 7),
                "batch": 768,
                "schedule": "wsd",
                "parametrization": "mup",
            }
            for width, count in sizes.items()
            for steps in (250, 500, 1000)
            for octaves in (-1, 0, 1)
        ]
    )
    rows.write_parquet(tmp_path / "runs.parquet")
    study = make_study(str(tmp_path / "runs.parquet"), str(tmp_path / "study"), target=TARGET)
    fits = fit(study)
    said = counted_otherwise(fits, parameters)
    assert (said == "") == alike
    doubts = chosen(study, fits).fits.doubts
    assert (said in doubts) != alike
    if not alike:
        assert math.isclose(
            sizes[64] * 0.75, float(said.split(" has ")[1].split()[0].replace(",", "")), abs_tol=1
        )
