"""Refits of the loss law to resamples of very many rows are those of all the rows, sooner."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl
import pytest

from froude import laws
from froude.laws.loss import resampled

NAMES = ("E", "A", "B", "alpha", "beta")


@pytest.mark.slow
@pytest.mark.parametrize(("form", "delta"), [("free", 1e-3), ("tied", 1e-3), ("free", None)])
@pytest.mark.parametrize("shared", [0.0, 0.003])
def test_many_rows_in_few_groups_spread_as_refits_of_all_of_them_do(
    form: Literal["free", "tied"], delta: float | None, shared: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, rows, groups = np.random.default_rng(0), 12_000, 40
    n, d = (np.exp(draw.uniform(np.log(low), np.log(1e3 * low), rows)) for low in (1e6, 1e8))
    trial = np.arange(rows) % groups
    noise = 0.005 * draw.standard_normal(rows) + shared * draw.standard_normal(groups)[trial]
    loss = (1.7 + 400 / n**0.34 + 400 / d**0.28) * np.exp(noise)
    frame = pl.DataFrame({"params": n, "tokens": d, "loss": loss, "trial": trial})
    fits = [laws.loss_law(frame, delta, form=form, groups="trial") for _ in range(2)]
    refits, marks = fits[0].bootstrap(60), fits[0].rows
    monkeypatch.setattr(resampled, "MANY", 1000)
    monkeypatch.setattr(resampled, "SQUASHED", 1000)
    spread, quick = (each.select(pl.col(NAMES).std()).row(0) for each in (refits, fits[1].bootstrap(60)))
    assert quick == pytest.approx(spread, rel=1 / 3 if shared else 0.15)
    assert fits[1].bootstrap(60)["objective"].mean() == pytest.approx(refits["objective"].mean(), rel=0.01)
    assert fits[1].rows["outlier"].to_list() == marks["outlier"].to_list()


def test_the_bootstrap_of_many_rows_keeps_to_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses with a floor below zero: E runs to zero, where no step from the fit to all is taken."""
    draw = np.random.default_rng(0)
    n, d = (np.exp(draw.uniform(np.log(low), np.log(1e3 * low), 3000)) for low in (1e6, 1e8))
    loss = (400 / n**0.34 + 400 / d**0.28 - 0.01) * np.exp(0.01 * draw.standard_normal(3000))
    frame = pl.DataFrame({"params": n, "tokens": d, "loss": loss})
    law = laws.loss_law(frame)
    assert law.status == "at_bound"
    refits = law.bootstrap(60)
    for name in ("REFITTED", "MANY", "SQUASHED"):
        monkeypatch.setattr(resampled, name, 1000)
    found = laws.loss_law(frame).bootstrap(60)
    assert found["E"].is_between(0, 1e-3 * loss.min()).all()
    spread, quick = (each.select(pl.col("A", "B", "alpha", "beta").std()).row(0) for each in (refits, found))
    assert quick == pytest.approx(spread, rel=1 / 3)
