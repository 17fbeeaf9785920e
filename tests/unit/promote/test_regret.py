"""What a mis-set learning rate cost a proxy is taken off its loss before the loss law sees it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from small_study import BEST_LR, Ladder

from froude import laws
from froude.promote.fits import fit
from froude.promote.ladder.fingerprints import fingerprint
from froude.promote.ladder.regret import Corrected, corrected, with_regret
from froude.study import Study

KAPPA, FLOOR = 0.04, 2.0  # of the curves, relative; nats
SETTINGS = {"batch": 768, "depth": 4, "optimizer": "adamw", "schedule": "wsd"}


def curves(noise: float = 0.0, slope: float = -1.0, octaves: float = 1.5) -> laws.LrTransfer:
    """The law of three widths' U-curves, whose best rate is .01 at width 64."""
    chance, rows = np.random.default_rng(1), []
    for width in (32, 64, 128):
        for away in np.linspace(-octaves, octaves, 7) * math.log(2):
            lr = 0.01 * (width / 64) ** slope * math.exp(away)
            loss = FLOOR * (1 + 0.5 * KAPPA * away**2) * math.exp(noise * chance.standard_normal())
            rows.append({"width": width, "lr": lr, "loss": loss, **SETTINGS})
    return laws.lr_transfer(pl.DataFrame(rows))


def runs(*octaves: float, width: int = 128, **changes: Any) -> pl.DataFrame:
    """Runs of an SP width, each so many octaves off its best rate, whose losses were 1.8 at that."""
    row = {"status": "finished", "parametrization": "sp", "width": width, **SETTINGS, **changes}
    found = [{"lr": 0.01 * 64 / width * 2**away, "loss": lost(away), **row} for away in octaves]
    return pl.DataFrame(found)


def lost(octaves: float) -> float:
    return 1.8 * (1 + 0.5 * KAPPA * (octaves * math.log(2)) ** 2)


def test_what_the_rate_cost_is_taken_off() -> None:
    rows = with_regret(runs(0.0, -1.0, 0.7), {"sp": curves()})
    assert rows["regret"].to_list() == pytest.approx([0.0, lost(1.0) - 1.8, lost(0.7) - 1.8], abs=2e-5)
    assert rows["regret"][0] == 0
    assert rows["loss"].to_list() == runs(0.0, -1.0, 0.7)["loss"].to_list()  # stay as they were
    assert corrected(rows)["loss"].to_list() == pytest.approx([1.8] * 3, rel=2e-5)
    count = Corrected.count(rows)
    assert (count.rows, count.of) == (2, 3)
    assert count.most == rows["regret"].max()
    assert str(count).startswith("2 of 3 losses corrected for a mis-set learning rate, by 0.0")


def test_beyond_two_octaves_the_parabola_is_not_followed() -> None:
    regret = with_regret(runs(2.0, 3.0), {"sp": curves()})["regret"]
    assert regret[1] == pytest.approx(regret[0] * lost(3.0) / lost(2.0))


@pytest.mark.parametrize(
    "change",
    [{"batch": 1536}, {"schedule": "cosine"}, {"parametrization": "mup"}, {"optimizer": "sgd"}, {"lr": None}],
)
def test_runs_that_the_curves_say_nothing_of_stay(change: dict[str, Any]) -> None:
    rows = runs(1.0).with_columns(pl.lit(value).alias(name) for name, value in change.items())
    found = with_regret(rows, {"sp": curves()})
    assert found["regret"].to_list() == [0.0]
    assert str(Corrected.count(found)) == "none of 1 losses corrected for a mis-set learning rate"


def test_without_a_usable_law_nothing_is_taken_off() -> None:
    flat = curves()
    edge = laws.lr_transfer(flat.sample.frame.filter(pl.col("lr") < 0.011 * 64 / pl.col("width")))
    assert edge.status == "edge"
    for transfer in ({"sp": edge}, {}):
        assert with_regret(runs(1.0, -1.0), transfer)["regret"].to_list() == [0.0, 0.0]


def test_under_mup_one_rate_is_best_for_all_widths() -> None:
    transfer = {"mup": curves(slope=0.0)}
    rows = runs(1.0, width=64, parametrization="mup").with_columns(width=pl.Series([512]))
    assert corrected(with_regret(rows, transfer))["loss"].item() == pytest.approx(1.8, rel=1e-4)


def test_the_less_is_known_the_less_is_taken_off() -> None:
    taken = [with_regret(runs(0.3), {"sp": curves(noise)})["regret"].item() for noise in (0.0, 1e-3, 4e-3)]
    assert taken[0] > taken[1] > taken[2]


def test_a_best_rate_that_goes_with_the_tokens_is_followed_where_that_is_measured() -> None:
    transfer = {"sp": curves(noise=1e-4)}
    law = transfer["sp"]
    law = replace(law, sample=replace(law.sample, frame=law.sample.frame.with_columns(tokens=pl.lit(1000))))
    for source, off in (("measured", 0.0), ("prior", 1.0)):
        power = SimpleNamespace(source=source, posterior=SimpleNamespace(value=-0.5, se=0.01))
        rows = runs(-1.0, tokens=4000)  # half the rate, as four times the tokens ask for
        exponents: Any = SimpleNamespace(knobs={"lr_tokens": power})
        found = with_regret(rows, {"sp": law}, exponents)["regret"].item()
        assert found == pytest.approx(lost(off) - 1.8, abs=1e-3)


@pytest.mark.long
def test_a_study_with_a_badly_tuned_size_forecasts_as_if_it_were_well_tuned(
    tmp_path: Path, study_factory: Callable[..., Path]
) -> None:
    def mistuned(row: dict[str, Any]) -> dict[str, Any]:
        if row["stage"] != "law":
            return row
        octaves = 1.2 * (row["width"] == 96)
        worse = (
            1 + 0.04 / 1.9 * octaves**2
        )  # the U-curves are .04 nats per squared octave, at losses of 1.8 to 2
        return {**row, "lr": BEST_LR * 2**octaves, "loss": row["loss"] * worse}

    ladder = Ladder(widths=(32, 48, 64, 96), steps=(432, 648, 972, 1458))
    good = fit(Study(study_factory(tmp_path / "good", ladder=ladder)))
    bad = fit(Study(study_factory(tmp_path / "bad", ladder=ladder, change=mistuned)))
    at = {"params": 2e6, "tokens": 4e6}
    assert bad.predict(**at).loss == pytest.approx(good.predict(**at).loss, rel=0.003)
    raw = laws.loss_law(bad.rows["loss_law"], prior=bad.loss.prior, groups="trial")  # type: ignore[union-attr]
    assert raw.predict(**at).loss > good.predict(**at).loss * 1.01
    assert bad.summary()["loss_law"]["corrected"]["rows"] == 8  # four horizons, two seeds
    assert any(line.startswith("rate's cost     8 of 32 losses") for line in bad.lines())
    # Rows are named by what was measured.
    assert bad.fingerprints["loss_law"] == fingerprint(bad.rows["loss_law"].drop("regret"))
    assert good.summary()["loss_law"]["corrected"]["rows"] == 0
