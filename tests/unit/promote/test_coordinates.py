"""The gate asks for a coordinate check of what was derived from a stranger's config, and coordcheck finds its bugs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from tiny_hf import config_file, run_of

from froude.cli import main
from froude.config import Run
from froude.promote import checks
from froude.promote.checks import coordinates
from froude.promote.checks.coordinates import COORDINATES
from froude.promote.ladder import shape
from froude.study import Study
from froude.train.api import material_of

pytestmark = pytest.mark.slow

CHECK = ("--widths", "32,64,128", "--seeds", "1", "--times", "1,3")


def study_of(run: Run, place: Path) -> Study:
    place.mkdir()
    meta = {"target": run.to_dict(), "material": material_of(run).to_dict(), "stages": {}}
    (place / "study.json").write_text(json.dumps(meta))
    return Study(str(place))


def judged(study: Study, run: Run) -> Any:
    case: Any = SimpleNamespace(study=study, target=run)
    return COORDINATES.judge(COORDINATES.measure(case), COORDINATES.bound)


def test_only_models_of_the_adapter_are_asked_for_it(tmp_path: Path) -> None:
    run = run_of(config_file(tmp_path, "llama"))
    assert checks.rules(run)[-1] is COORDINATES
    assert checks.rules(run.replace(parametrization="sp")) == checks.RULES
    assert checks.rules(Run(tokens=768)) == checks.RULES


def test_the_gate_refuses_until_a_check_of_this_very_model_has_passed(tmp_path: Path) -> None:
    config = config_file(tmp_path, "llama")
    run = run_of(config)
    study = study_of(run, tmp_path / "study")
    before = judged(study, run)
    assert before.refuses
    assert before.line() == (
        "coordinates: must be a passed coordinate check of the model, but is not checked; run `froude coordcheck` on "
        "the study, which names the rule that does not hold"
    )
    coordinates.keep(study, run, "failed", [64, 128, 256])
    assert judged(study, run).value == "failed"
    coordinates.keep(study, run, "passed", [64, 128, 256])
    assert judged(study, run).passed
    wider = run.replace({"model.width": 256, "model.depth": 4, "optimizer.lr": 1e-3})
    assert judged(study, wider).passed
    started = run.replace({"model.options": {**run.model.options, "init": "/from/here"}})
    assert judged(study, started).passed
    assert coordinates.from_seed(started) == run
    for change in ({"optimizer.name": "lion"}, {"model.base_width": 64}, {"parametrization": "completep"}):
        assert judged(study, run.replace(change)).refuses
    assert judged(Study(study.location.url), run).passed


def test_a_study_keeps_the_verdict_of_coordcheck(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(config_file(tmp_path, "qwen3"), "qwen3", context=16)
    study = study_of(run, tmp_path / "study")
    sizes = ("--widths", "32,64,96", "--seeds", "1", "--times", "1")
    main(["coordcheck", study.location.url, *sizes, "--json", "--plot", str(tmp_path / "x.svg")])
    assert judged(study, run).value == json.loads(capsys.readouterr().out)["verdict"] == "inconclusive"


@pytest.mark.parametrize(
    ("bug", "rule"),
    [
        ("Readout", "other_lr (lm_head.weight)"),
        pytest.param("Hidden", "hidden_lr (model.layers.0.mlp.down_proj", marks=pytest.mark.long),
    ],
)
def test_a_bug_planted_in_its_kinds_is_named(
    bug: str, rule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(config_file(tmp_path, "llama"), factory=f"planted_hf:{bug}", width=32, head_dim=8)
    (tmp_path / "run.toml").write_text(run.to_toml())
    plot = ("--plot", str(tmp_path / "x.svg"))
    assert main(["coordcheck", str(tmp_path / "run.toml"), "--trust", *CHECK, *plot]) == 1
    out = capsys.readouterr().out
    assert "coordinate check over width failed" in out
    assert f"1. {rule}" in out


def test_a_forecast_of_a_run_that_starts_from_a_checkpoint_is_not_certified(tmp_path: Path) -> None:
    run = run_of(config_file(tmp_path, "llama"))
    ladder = pl.DataFrame({"status": ["finished"], **{axis.column: [None] for axis in AXES}})
    assert shape.doubts(ladder, run) == ()
    started = run.replace({"model.options": {**run.model.options, "init": "/from/here"}})
    assert shape.doubts(ladder, started) == (
        "the target starts from the weights in /from/here, which the laws did not see: the proxies start from their "
        "seeds (score the run against the forecast, and expect to end below it)",
    )


AXES = (*shape.SIZED, shape.BATCH, *shape.KINDS)
