"""Diagnosis: bugs planted in the code of model and optimizer are named first, and correct code has none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from froude.cli import main
from froude.config import Run
from froude.promote import diagnosis
from froude.promote.diagnosis import comparable, diagnose
from froude.train import parametrization
from froude.train.api import Kind
from froude.train.parametrization import Scales

WIDTHS = (16, 32, 64)
BASE = Run(
    batch=256,
    tokens=256 * 100,
    model={"depth": 2, "context": 32, "head_dim": 4, "base_width": 16},
    optimizer={"lr": 2**-7.5},
)
TIED = {"model.tied": True, "model.readout_sd": 0.5}


def runs(**changes: object) -> list[Run]:
    return [BASE.replace({"model.width": width, **changes}) for width in WIDTHS]


def growing(heads: int = 4, **changes: object) -> list[Run]:
    """As many heads at each width, so that their dimension grows."""
    return [
        run.replace({"model.head_dim": run.model.width // heads, "model.base_head_dim": 4})
        for run in runs(**changes)
    ]


def factory(name: str) -> dict[str, object]:
    return {"model.factory": f"planted:{name}"}


def named(found: list[Run]) -> list[str]:
    return [cause.name for cause in diagnose(found).code]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("found", "bug"),
    [
        (runs(**factory("output_multiplier")), "output_multiplier"),
        (runs(**factory("initialisation")), "initialisation"),
        (growing(**factory("attention_scale")), "attention_scale"),
        (runs(**TIED, **factory("tied_twice")), "tied_embeddings"),
    ],
    ids=["output multiplier", "initialisation", "attention scale", "tied twice"],
)
def test_a_bug_in_the_models_code_is_named_first(found: list[Run], bug: str) -> None:
    assert named(found)[:1] == [bug]


def wrong(kinds: tuple[Kind, ...], **factors: float) -> Callable[[Run, Kind], Scales]:
    """The rules of the parametrization, but for these kinds."""
    right = parametrization.scales
    return lambda run, kind: replace(right(run, kind), **factors) if kind in kinds else right(run, kind)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rules", "changes", "bug"),
    [
        (wrong(("hidden",), lr=1.0), {}, "hidden_lr"),
        (wrong(("hidden",), weight_decay=1.0), {}, "weight_decay"),
        (wrong(("hidden", "embedding", "readout", "norm"), eps=1e5), {}, "epsilon"),
        (lambda run, kind: SCALES(run, "hidden" if kind == "embedding" else kind), TIED, "tied_embeddings"),
    ],
    ids=["hidden rate", "decay", "epsilon", "tied twice"],
)
def test_a_bug_in_the_optimizers_groups_is_named_first(
    rules: Callable[[Run, Kind], Scales],
    changes: dict[str, object],
    bug: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parametrization, "scales", rules)
    assert named(runs(**changes))[:1] == [bug]


SCALES = parametrization.scales


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(("power", "bugs"), [(-0.5, []), (-1.0, ["attention_scale"])])
def test_attention_without_a_fused_kernel_is_seen_too(power: float, bugs: list[str]) -> None:
    found = growing(
        parametrization="sp", **factory("manual_attention"), **{"model.options": {"power": power}}
    )
    assert named(found) == bugs


@pytest.mark.slow
def test_sgd_and_a_model_of_ones_own_under_sp_have_no_bug() -> None:
    changes = {"parametrization": "sp", "optimizer.name": "sgd", "optimizer.lr": 0.1}
    assert named(runs(**changes)) == []
    foreign = {"model.factory": "foreign_model:factory", "data.source": "foreign_model:Counting"}
    assert named(runs(**foreign, parametrization="sp")) == []


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


@pytest.mark.slow
def test_fit_diagnoses_a_study(
    small_study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "WIDTHS", 2)  # the third takes half a minute
    monkeypatch.setattr(diagnosis, "SEEDS", 1)
    assert main(["fit", str(small_study), "--diagnose"]) == 0
    text = capsys.readouterr().out
    for name in ("mup", "sp"):
        assert f"diagnosis of {name}, widths 32, 64: no cause found" in text
    assert "rate of hidden matrices" in text
