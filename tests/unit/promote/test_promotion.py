"""From a study with known laws to its recipe, or to a refusal."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from small_study import TARGET

from froude.cli import main
from froude.cli.common import refused
from froude.config import ConfigError, Run
from froude.laws.loss.draws import WEAK
from froude.promote import gate
from froude.promote.checks import RULES
from froude.promote.choice.choose import choose
from froude.promote.fits import PRIOR, Fits, fit, fit_trials
from froude.promote.ladder import fingerprints, rates
from froude.promote.promotion import extrapolation, parameters, predict, promote
from froude.promote.recipe import read
from froude.report.view import gather
from froude.study import Study

pytestmark = pytest.mark.slow
OVERRIDE = {"forecast_certified": "a study of minutes"}


def promoted_run(fits: Fits) -> Run | None:
    """What is promoted at the target's own batch."""
    return choose(fits, 6e5, flops_per_token=4e6).run


def test_the_fits_find_the_laws_of_the_study(small_study: Path) -> None:
    fits = fit(Study(small_study))
    assert fits.best is not None
    assert fits.best_overall is not None
    assert (fits.best["run"], fits.best_overall["run"]) == ("search-0", "search-5")
    assert fits.transfer["mup"].slope.value == pytest.approx(0, abs=0.02)
    assert fits.transfer["sp"].slope.value == pytest.approx(-1, abs=0.02)
    assert fits.peak_lr is not None
    assert math.log2(fits.peak_lr.value) == pytest.approx(-7.5, abs=0.02)
    assert fits.critical is not None
    assert fits.critical.b_crit == pytest.approx(340, rel=0.01)
    assert fits.target_loss == 2.2
    assert fits.loss is not None
    # Rows without noise determine the exponents.
    assert fits.loss.status == "ok"
    assert pytest.approx(0.9, abs=1e-3) == fits.loss.E
    assert fits.largest is not None
    assert fits.largest["run"].startswith("w96-972")
    assert any("slope -1.0" in line for line in fits.lines())


def test_the_largest_proxy_is_the_one_of_most_compute(small_study: Path) -> None:
    fits = fit(Study(small_study))
    rows = fits.rows["loss_law"]
    short = rows.head(1).with_columns(
        run=pl.lit("short"), params=rows["params"].max() * 2, tokens=pl.lit(768)
    )
    found = replace(fits, rows={"loss_law": pl.concat([rows, short], how="vertical_relaxed")}).largest
    assert found is not None
    assert found["run"].startswith("w96-972")


def test_the_base_width_counts_for_both_parametrizations(small_study: Path) -> None:
    rows = Study(small_study).trials().filter(pl.col("stage") == "transfer").collect()
    for name in ("mup", "sp"):
        assert rates.transfer_rows(rows, name, 64)["width"].unique().sort().to_list() == [32, 64, 128]


def test_fits_need_no_stage_that_is_not_there_yet(small_study: Path) -> None:
    study = Study(small_study)
    fits = fit_trials(
        study.trials().filter(pl.col("stage") == "recipe").collect(),
        stages=study.meta["stages"],
        target=fit(study).target,
    )
    assert fits.best is not None
    assert (fits.critical, fits.loss, fits.peak_lr, dict(fits.transfer)) == (None, None, None, {})
    assert list(fits.summary()) == ["best", "best_overall"]


def test_fingerprints_see_rows_and_not_their_order(small_study: Path) -> None:
    rows = Study(small_study).trials().collect()
    assert fingerprints.fingerprint(rows) == fingerprints.fingerprint(rows.reverse())
    for other in (rows.head(rows.height - 1), rows.with_columns(pl.col("loss") + 1e-9)):
        assert fingerprints.fingerprint(rows) != fingerprints.fingerprint(other)


def test_rows_are_known_by_what_a_version_called_them_that_fitted_all_rates_as_one(small_study: Path) -> None:
    fits = fit(Study(small_study))
    now = dict(fits.fingerprints)
    assert "lr_drift_mup" in now
    before = {name: value for name, value in now.items() if "lr_drift" not in name}
    before |= {f"lr_transfer_{kind}": now[f"lr_drift_{kind}"] for kind in ("mup", "sp")}
    assert fits.of_rows(now)
    assert fits.of_rows(before)
    assert not fits.of_rows({**now, "loss_law": "0"})


def test_the_recipe_is_the_target_with_what_the_sweep_found(small_study: Path) -> None:
    fits = fit(Study(small_study))
    run = promoted_run(fits)
    assert run is not None
    assert run.optimizer.lr == pytest.approx(2**-7.5, rel=0.02)
    assert run.optimizer.beta2 == 0.93
    # The search's best warms up for 7680 of 130560 tokens.
    assert run.schedule.warmup_tokens / run.tokens == pytest.approx(7680 / 130560, abs=1e-3)
    same = ("name", "model", "batch", "slots", "tokens", "workers", "seed")
    assert all(getattr(run, key) == getattr(fits.target, key) for key in same)


def test_what_an_optimizer_of_matrices_leaves_has_the_rates_that_were_searched(small_study: Path) -> None:
    fits = fit(Study(small_study))
    assert fits.best is not None
    target = fits.target.replace({"optimizer.name": "muon"})
    best = {**fits.best, "optimizer": "muon", "rest_lr": 0.004, "rest_beta2": 0.97}
    run = promoted_run(replace(fits, large=target, best=best))
    assert run is not None
    assert (run.optimizer.rest.lr, run.optimizer.rest.beta2) == (0.004, 0.97)
    other = promoted_run(replace(fits, best=best))  # of a target that is trained with AdamW
    assert other == promoted_run(fits)


@pytest.mark.parametrize(("half_life", "beta2", "status"), [(1e4, 0.5**0.0768, "ok"), (1e3, 0.9, "prior")])
def test_a_half_life_stays_one_and_an_end_of_the_rule_is_no_result(
    tmp_path: Path, study_factory: Callable[..., Path], half_life: float, beta2: float, status: str
) -> None:
    def timed(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "beta2_half_life": half_life, "beta2": beta2} if row["run"] == "search-0" else row

    target = TARGET.replace({"optimizer.timescale": 0.2})
    fits = fit(Study(study_factory(tmp_path / "study", change=timed, target=target)))
    assert fits.summary()["beta2"] == {"half_life": half_life, "status": status}
    assert any("(prior)" in line for line in fits.lines()) == (status == "prior")
    run = promoted_run(fits)
    assert run is not None
    assert (run.optimizer.beta2_half_life, run.optimizer.beta2) == (half_life, pytest.approx(beta2))
    # The promoted rate has another decay over the same timescale.
    assert run.optimizer.weight_decay * run.optimizer.lr == pytest.approx(1 / (0.2 * run.steps))


def test_forecast_and_extrapolation(small_study: Path) -> None:
    fits = fit(Study(small_study))
    params = parameters(fits.target)
    forecast, ratios = predict(fits, params), extrapolation(fits, params)
    assert forecast is not None
    truth = 0.9 + 12 / params**0.35 + 30 / fits.target.tokens**0.35
    assert forecast.loss == pytest.approx(truth, abs=0.02)
    assert forecast.low < truth < forecast.high
    assert (forecast.certified, forecast.status) == (False, "ok")
    assert len(set(forecast.reasons)) == len(forecast.reasons)
    assert fits.largest is not None
    assert forecast.naive == fits.largest["loss"]
    assert ratios["params"] == pytest.approx(4, abs=0.02)
    assert ratios["tokens"] == pytest.approx(1300 / 972)
    assert ratios["compute"] == pytest.approx(ratios["params"] * ratios["tokens"])
    assert ratios["batch"] == 1
    assert PRIOR == WEAK


def test_without_an_override_nothing_is_written(small_study: Path) -> None:
    before = sorted(path.name for path in small_study.iterdir())
    with pytest.raises(gate.Refused) as refusal:
        promote(Study(small_study))
    assert [reason.split(":")[0] for reason in refusal.value.reasons] == ["forecast_certified"]
    assert sorted(path.name for path in small_study.iterdir()) == before


def test_a_promotion_is_sealed_and_says_what_was_overridden(
    tmp_path: Path, study_factory: Callable[..., Path]
) -> None:
    study = study_factory(tmp_path / "study")
    written = promote(Study(study), overrides=OVERRIDE)
    stored = read(str(study / "recipe.toml"))
    assert stored == written or stored.sha256 == written.sha256
    assert stored.overrides == OVERRIDE
    assert set(stored.fingerprints) == {
        "search",
        "lr_transfer_mup",
        "lr_transfer_sp",
        "lr_drift_mup",
        "lr_drift_sp",
        "critical_batch",
        "loss_law",
    }
    assert stored.fits["critical_batch"]["status"] == "ok"
    assert [check.name for check in stored.checks] == [rule.name for rule in RULES]
    below = next(check for check in stored.checks if check.name == "batch_below_critical")
    # 340 at the loss that the stage counts to, which takes 37,400 tokens at that batch; the target has 27 times those.
    assert below.value == "768 against 1540 tokens at the target's horizon"
    assert json.loads((study / "forecast.json").read_text())["sha256"] == stored.sha256
    Study(study)  # what was written is no foreign file


def test_few_rates_are_refused_and_can_be_overridden(
    tmp_path: Path, study_factory: Callable[..., Path]
) -> None:
    study = Study(study_factory(tmp_path / "study", rates=5))
    with pytest.raises(gate.Refused) as refusal:
        promote(study, overrides=OVERRIDE)
    assert [reason.split(":")[0] for reason in refusal.value.reasons] == ["lr_points"]
    assert promote(study, overrides={**OVERRIDE, "lr_points": "fitted jointly"}).overrides.keys() == {
        "lr_points",
        "forecast_certified",
    }


def test_rates_at_an_edge_are_refused_with_every_reason(
    tmp_path: Path,
    study_factory: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study = Study(study_factory(tmp_path / "study"))
    trials = (
        study.trials()
        .collect()
        .with_columns(
            loss=pl.when(pl.col("stage") == "transfer")
            .then(1 + 0.02 * (pl.col("lr").log() + 9) ** 2)
            .otherwise("loss")
        )
    )
    monkeypatch.setattr(Study, "trials", lambda self: trials.lazy())
    with pytest.raises(gate.Refused) as refusal:
        promote(study)
    names = {reason.split(":")[0] for reason in refusal.value.reasons}
    assert {"lr_edge", "lr_interval", "forecast_certified"} <= names
    assert all("nan" not in reason for reason in refusal.value.reasons)
    # Without a fitted rate there is nothing to promote, whatever is overridden; that is said, with the way out.
    with pytest.raises(gate.Refused) as beyond:
        promote(study, overrides={rule.name: "because" for rule in RULES})
    assert beyond.value.reasons == ()
    assert "no override helps" in beyond.value.beyond
    assert re.search(
        r"add rates below 0\.\d+ at width 32, below .* to stage `lr_transfer`", beyond.value.beyond
    )
    assert refused(beyond.value) == 3
    assert "all failed checks are overridden" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="did you mean `lr_edge`"):
        promote(study, overrides={"lr_edges": "because"})


def test_a_report_of_ones_own_model_has_the_gates_checks_when_it_is_trusted(
    tmp_path: Path, study_factory: Callable[..., Path]
) -> None:
    target = TARGET.replace({"model.factory": "foreign_model:factory"})
    study = Study(study_factory(tmp_path / "study", target=target))
    untrusted = gather(study)
    assert untrusted.checks == ()
    assert "pass --trust" in untrusted.problems[0]
    assert [check.name for check in gather(study, trust=True).checks] == [rule.name for rule in RULES]


def test_the_command_line_refuses_with_3_and_writes_with_0(
    tmp_path: Path, study_factory: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    study = study_factory(tmp_path / "study")
    assert main(["promote", str(study)]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "forecast_certified: must be" in captured.err
    assert not (study / "recipe.toml").exists()
    arguments = ["promote", str(study), "--override", "forecast_certified", "--reason", "minutes", "--json"]
    assert main(arguments) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["seal"]["sha256"] == read(str(study)).sha256
    told = content["forecast"]
    assert told["proxies_over_target"] > 1
    assert 0 < told["noise"] < 0.02
    assert main([argument for argument in arguments if argument != "--json"]) == 0
    text = capsys.readouterr().out
    cost = f"{told['proxies_over_target']:.3g}"
    assert f"compute {content['extrapolation']['compute']:.3g}×" in text
    assert f"the largest proxy; all proxies cost {cost}× the target's compute\n" in text
    assert f"others    the largest proxy's loss {told['naive']:.3f}, published exponents" in text
    assert f"noise     {100 * told['noise']:.2g}% of a run's loss by the law" in text
    assert main(["fit", str(study), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["critical_batch"]["status"] == "ok"


def test_an_unfinished_study_is_no_input_for_promotion(
    tmp_path: Path, study_factory: Callable[..., Path]
) -> None:
    study = study_factory(tmp_path / "study")
    for part in (study / "trials").glob("w*.parquet"):
        part.unlink()
    with pytest.raises(ConfigError, match=r"lacks loss_law; run `froude sweep`"):
        promote(Study(study))


def test_a_foreign_model_is_built_only_with_trust(small_study: Path) -> None:
    target = fit(Study(small_study)).target.replace({"model.factory": "somewhere.model:Net"})
    with pytest.raises(ConfigError, match="trust"):
        parameters(target)
