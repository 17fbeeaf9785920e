"""Diagnosis: bugs planted in the code of model and optimizer are named first, and correct code has none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from planted import BASE, BUGS, TIED, WIDTHS, Bug, factory, growing, runs

from froude.cli import main
from froude.config import Run
from froude.promote.diagnosis.causes import causes
from froude.promote.diagnosis.diagnose import comparable, diagnose, examine
from froude.train import parametrization

pytestmark = pytest.mark.slow


def named(found: list[Run]) -> list[str]:
    return [cause.name for cause in diagnose(found).code]


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_a_planted_bug_is_named_first(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parametrization, "scales", bug.rules)
    assert named(bug.runs)[:1] == [bug.name]


@pytest.mark.parametrize("rules", ["mup", "sp"])
@pytest.mark.parametrize(
    "found",
    [
        runs(),
        runs(**TIED, **{"optimizer.decay_embeddings": True}),
        growing(**{"model.qk_norm": True}),
        runs(**{"model.readout_sd": 0.5}),
    ],
    ids=["plain", "tied", "growing heads", "random readout"],
)
def test_correct_code_has_no_bug(found: list[Run], rules: str) -> None:
    found = [run.replace(parametrization=rules) for run in found]
    result = diagnose(found)
    assert result.code == ()
    assert result.runs == ()
    assert "no cause found" in result.lines()[0]


@pytest.mark.parametrize(("power", "bugs"), [(-0.5, []), (-1.0, ["attention_scale"])])
def test_attention_without_a_fused_kernel_is_seen_too(power: float, bugs: list[str]) -> None:
    found = growing(
        parametrization="sp", **factory("manual_attention"), **{"model.options": {"power": power}}
    )
    assert named(found) == bugs


def test_sgd_and_a_model_of_ones_own_under_sp_have_no_bug() -> None:
    changes = {"parametrization": "sp", "optimizer.name": "sgd", "optimizer.lr": 0.1}
    assert named(runs(**changes)) == []
    foreign = {"model.factory": "foreign_model:factory", "data.source": "foreign_model:Counting"}
    assert named(runs(**foreign, parametrization="sp")) == []


def test_a_coordinate_check_under_an_optimizer_of_matrices_names_no_bug_of_correct_code() -> None:
    optimizer = {"name": "muon"}
    found = [Run(tokens=768, model={"width": width}, optimizer=optimizer) for width in (32, 64, 128)]
    assert causes(examine(found)) == []


def test_runs_are_made_alike_but_for_their_shape() -> None:
    """At a rate that suits the widest: under SP its best one is the lowest."""
    rates = {width: [2.0**-k * 16 / width for k in (6, 7, 8)] for width in WIDTHS}
    found = [run.replace({"optimizer.lr": lr}) for run in runs() for lr in rates[run.model.width]]
    chosen = comparable([*found, BASE.replace({"model.width": 256, "model.depth": 3})])
    assert [run.model.width for run in chosen] == list(WIDTHS)
    assert {run.optimizer.lr for run in chosen} == {2.0**-9}
    assert comparable([]) == []


def grid(
    slope: float, growth: float = 0.0, horizons: int = 1, log2_lr: tuple[float, ...] = (-2, -1, 0, 1, 2)
) -> pl.DataFrame:
    """U-curves at four widths whose best rate moves as tokens^slope; tokens grow as width^growth."""
    rows = []
    for width in (32, 64, 128, 256):
        for horizon in range(horizons):
            tokens = 1e6 * (width / 32) ** growth * 2**horizon
            best = -8 + slope * np.log2(tokens / 1e6)
            rows += [
                {
                    "width": width,
                    "tokens": round(tokens),
                    "batch": 768,
                    "lr": 2.0 ** (best + x),
                    "loss": 3 + 0.04 * (x + 0.1) ** 2,
                }
                for x in log2_lr
            ]
    return pl.DataFrame(rows)


def test_a_horizon_that_grows_with_width_explains_its_part_of_the_slope() -> None:
    (horizon,) = diagnose([], grid(-0.3, growth=2.0)).runs
    assert (horizon.name, horizon.measured) == ("horizon", pytest.approx(-0.64, abs=0.01))
    assert "other people's runs" in horizon.text
    (horizon, *_) = diagnose([], grid(-0.2, growth=2.0, horizons=2)).runs
    assert (horizon.name, horizon.measured) == ("horizon", pytest.approx(-0.4, abs=0.05))
    assert "measured" in horizon.text
    assert diagnose([], grid(0.0)).runs == ()


def test_a_batch_that_grows_with_width_is_named() -> None:
    rows = grid(0.0).with_columns(batch=pl.col("width") * 24)
    (batch,) = diagnose([], rows).runs
    assert (batch.name, batch.measured) == ("batch", pytest.approx(0.5, abs=0.01))


def test_an_optimum_at_the_edge_is_named() -> None:
    names = [cause.name for cause in diagnose([], grid(0.0, log2_lr=(-4, -3, -2, -1))).runs]
    assert set(names) == {"edge_optimum"}


def test_fit_diagnoses_a_study(
    small_study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("froude.promote.diagnosis.diagnose.WIDTHS", 2)  # the third takes half a minute
    monkeypatch.setattr("froude.promote.diagnosis.diagnose.SEEDS", 1)
    assert main(["fit", str(small_study), "--diagnose"]) == 0
    text = capsys.readouterr().out
    for name in ("mup", "sp"):
        assert f"diagnosis of {name}, widths 32, 64: no cause found" in text
    assert "rate of hidden matrices" in text
