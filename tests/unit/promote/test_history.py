"""Other people's runs become a study that can be fitted, forecast and, with a target, promoted."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from froude import laws, schemas
from froude.cli import main
from froude.config import ConfigError, Run
from froude.promote import gate
from froude.promote.fits import fit
from froude.promote.imported_runs.history import best, make_study, rates, settings
from froude.promote.promotion import predict, promote
from froude.report import write as write_report
from froude.study import Study

pytestmark = pytest.mark.slow

GEMSTONES = {"params": "params_N", "tokens": "tokens_D", "run": "run_name"}
BEST_LR = 2**-7.5
LARGE: dict[str, Any] = {"schedule": {"warmup_tokens": 768 * 13}, "model": {"width": 192}}
TARGET = Run(name="large", batch=768, slots=12, tokens=768 * 1300, **LARGE)


def law(params: float, tokens: float) -> float:
    return 0.9 + 12 / params**0.35 + 30 / tokens**0.35


def grid(**more: Any) -> pl.DataFrame:
    """Rows of four sizes and four horizons, at three rates each at the longest: a history worth the name."""
    rows = []
    for width in (32, 48, 64, 96):
        for steps in (200, 400, 700, 1000):
            for octaves in (-2, -1, 0, 1, 2) if steps == 1000 else (0,):
                params = 26 * width**2
                loss = law(params, 768 * steps) + 0.03 * octaves**2
                row = {"params": params, "tokens": 768 * steps, "loss": loss, "width": width}
                rows.append(row | {"lr": BEST_LR * 2.0**octaves, "batch": 768, "steps": steps} | more)
    return pl.DataFrame(rows)


def made(tmp_path: Path, table: pl.DataFrame, target: Run | None = None, **columns: str) -> Study:
    table.write_parquet(tmp_path / "runs.parquet")
    return make_study(str(tmp_path / "runs.parquet"), str(tmp_path / "study"), columns=columns, target=target)


def refused(tmp_path: Path, table: pl.DataFrame, **columns: str) -> str:
    with pytest.raises(ConfigError) as error:
        made(tmp_path, table, **columns)
    assert not (tmp_path / "study").exists()
    assert 1 <= len(str(error.value).splitlines()) <= 2
    return str(error.value)


@pytest.fixture(scope="module")
def gemstones(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    source = root / "tests" / "data" / "gemstones_hot.csv"
    return make_study(str(source), str(tmp_path_factory.mktemp("gemstones") / "study"), columns=GEMSTONES)


def test_the_rows_are_those_of_a_study(gemstones: Study) -> None:
    frame = gemstones.trials().collect()
    assert frame.columns == schemas.TRIALS.names
    assert frame.height == 220
    assert frame["run"].n_unique() == 220
    assert frame["trial"].n_unique() == 22
    assert frame["fingerprint"].n_unique() == 220
    assert set(frame["status"]) == {"finished"}
    assert frame["flops"][0] == 6 * frame["params"][0] * frame["tokens"][0]
    assert gemstones.meta["stages"]["history"] == {"role": "history", "trials": 22, "extends": False}
    assert gemstones.steps().collect().height == 0


def test_published_runs_give_the_published_law(gemstones: Study) -> None:
    """McLeish et al. 2502.06857; the rows are resampled by model, since its horizons are one run's."""
    fits = fit(gemstones)
    assert fits.loss is not None
    assert fits.loss.status == "ok"
    assert fits.loss.objective <= 0.0019816129 * (1 + 1e-6)
    assert fits.loss.alpha == pytest.approx(0.2928687, abs=5e-4)
    assert math.log(fits.loss.E) == pytest.approx(0.7622637, abs=5e-4)
    assert (fits.large, fits.best, fits.peak_lr, dict(fits.transfer)) == (None, None, None, {})
    assert fits.summary()["loss_law"]["status"] == "ok"


@pytest.mark.long
def test_without_a_target_it_is_forecast_and_reported_but_not_promoted(
    gemstones: Study, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("froude.laws.loss.law.REPLICATES", 20)
    place = gemstones.location.url
    assert main(["fit", place, "--predict", "params=7e9,tokens=1.4e11", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["prediction"]
    assert said["low"] < said["loss"] < said["high"]
    assert said["loss"] == pytest.approx(2.38, rel=0.01)  # the free fit says 2.478
    assert said["extrapolation"]["params"] == pytest.approx(7e9 / 2.1e9, rel=0.1)
    assert said["certified"] or said["reasons"]
    assert main(["promote", place]) == 2
    assert "--target target.toml" in capsys.readouterr().err
    assert main(["plan", "--next", place]) == 2
    assert "--target params=N,tokens=D" in capsys.readouterr().err
    assert main(["status", place]) == 0
    assert "history" in capsys.readouterr().out
    write_report(gemstones)


def test_with_a_target_the_gate_speaks(tmp_path: Path) -> None:
    study = made(tmp_path, grid(schedule="wsd", parametrization="muP"), TARGET)
    fits = fit(study)
    assert fits.transfer["mup"].slope.value == pytest.approx(0, abs=1e-6)
    assert fits.peak_lr is not None
    assert fits.peak_lr.value == pytest.approx(BEST_LR, rel=1e-6)
    assert fits.best is not None
    assert (fits.best["beta2"], fits.best["warmup_tokens"]) == (0.95, 7680)  # the target's, and 1% of 768000
    with pytest.raises(gate.Refused) as refusal:
        promote(study)
    names = {check.name for check in refusal.value.checks if check.refuses}
    assert "lr_points" in names
    recipe = promote(study, overrides=dict.fromkeys(names, "a history"))
    # The target is 1.3 times as long as the table's runs, which have one horizon: the prior's exponent moves the rate.
    assert recipe.run.optimizer.lr == pytest.approx(BEST_LR * 1.3**-0.1, rel=1e-5)


def test_the_loss_law_reads_the_best_settings_of_each_point_with_all_their_seeds(tmp_path: Path) -> None:
    twice = pl.concat([grid(seed=0), grid(seed=1).with_columns(pl.col("loss") + 0.01)])
    rows = best(made(tmp_path, twice).trials().collect())
    assert rows.height == 2 * 16
    assert set(rows["lr"]) == {BEST_LR}


def test_rates_are_of_one_horizon(tmp_path: Path) -> None:
    few = grid().filter((pl.col("width") != 96) | (pl.col("lr") == BEST_LR))
    rows = made(tmp_path, few).trials().collect()
    chosen, others = rates(rows, "sp")
    assert others.is_empty()
    assert set(chosen["width"]) == {32, 48, 64}
    assert set(chosen["tokens"]) == {768_000}
    assert rates(rows, "mup")[0].is_empty()
    assert settings(rows, None).height == 0


@pytest.mark.parametrize("lost", [None, math.nan, math.inf])
def test_a_loss_that_is_none_means_diverged(tmp_path: Path, lost: float | None) -> None:
    table = grid().with_columns(loss=pl.when(pl.col("lr") > 3 * BEST_LR).then(lost).otherwise("loss"))
    frame = made(tmp_path, table).trials().collect()
    assert frame.filter(status="diverged").height == 4
    assert frame.filter(status="diverged")["loss"].null_count() == 4
    assert frame.filter(pl.col("status") == "finished")["loss"].is_finite().all()


def test_a_row_says_why_it_has_no_loss_and_keeps_its_fingerprint(tmp_path: Path) -> None:
    """The fingerprints are those that 0.1 gave these rows: a recipe of such a study names them."""
    (tmp_path / "runs.csv").write_text(
        "params,tokens,loss,status\n1000000,1000000,3.0,finished\n1000000,2000000,,finished\n"
        "1000000,3000000,9.5,diverged\n1000000,4000000,,failed\n1000000,5000000,4,running\n"
    )
    frame = make_study(str(tmp_path / "runs.csv"), tmp_path / "study").trials().collect()
    assert frame.select("status", "loss", "last_loss", "reason", "fingerprint").rows() == [
        ("finished", 3.0, 3.0, None, "0f4d600526aae200"),
        ("diverged", None, None, "no finite loss in the table", "5d6538974550e1cb"),
        ("diverged", None, 9.5, "its status in the table", "e703c754f41caebb"),
        ("failed", None, None, "its status in the table", "9469522c8c7f51ce"),
        ("running", None, 4.0, None, "c8b304e99df0f6b5"),
    ]


def test_csv_and_parquet_give_the_same_study(tmp_path: Path) -> None:
    grid().write_csv(tmp_path / "runs.csv")
    one = make_study(str(tmp_path / "runs.csv"), str(tmp_path / "one")).trials().collect()
    assert one.equals(made(tmp_path, grid()).trials().collect())


def test_a_history_can_be_planned_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, grid(schedule="wsd", parametrization="mup", seed=3), TARGET)
    command = ["plan", "--next", str(tmp_path / "study"), "--json"]
    assert main(command) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["chosen"][0]["width"] % 16 == 0
    assert main([*command, "--write", str(tmp_path / "next.py")]) == 2
    assert "was made of a table, into which nothing can be swept" in capsys.readouterr().err
    assert not (tmp_path / "next.py").exists()


ROW = {"params": 1e6, "tokens": 1e7, "loss": 3.0}


@pytest.mark.parametrize(
    ("table", "columns", "words"),
    [
        (
            {"N": [1.0], "tokens": [1.0], "loss": [1.0]},
            {},
            ["'params' is missing", "N, tokens, loss", "--columns"],
        ),
        (
            {"params": [1.0], "tokens": [1.0], "loss": [1.0]},
            {"params": "N"},
            ["'N' (for params)", "params, tokens"],
        ),
        (
            {"params": [1.0], "tokens": [1.0], "loss": [1.0]},
            {"parms": "params"},
            ["'parms'", "known: params"],
        ),
        ({"params": ["7B"], "tokens": [1.0], "loss": [1.0]}, {}, ["'params'", "numeric"]),
        ({"params": [1.0], "tokens": [-1.0], "loss": [1.0]}, {}, ["'tokens'", "positive"]),
        ({"params": [1.0], "tokens": [1.0], "loss": [-1.0]}, {}, ["'loss'", "positive"]),
        ({"params": [1.0], "tokens": [1.0], "loss": ["low"]}, {}, ["'loss'", "numeric"]),
        ({"params": [None], "tokens": [1.0], "loss": [1.0]}, {}, ["'params'", "positive"]),
        ({"params": [], "tokens": [], "loss": []}, {}, ["must have rows"]),
        ({**{k: [v] for k, v in ROW.items()}, "lr": [0.0]}, {}, ["'lr'", "positive"]),
        ({**{k: [v] for k, v in ROW.items()}, "lr": ["fast"]}, {}, ["'lr'", "numeric"]),
        ({**{k: [v] for k, v in ROW.items()}, "seed": [-1]}, {}, ["'seed'", "zero or more"]),
        (
            {**{k: [v] for k, v in ROW.items()}, "status": ["done"]},
            {},
            ["'status'", "'done'", "finished, diverged"],
        ),
        ({**{k: [v] for k, v in ROW.items()}, "run": [None]}, {}, ["'run'", "empty"]),
        (
            {**{k: [v] for k, v in ROW.items()}, "batch": [64], "steps": [1000]},
            {},
            ["batch · steps", "sequences"],
        ),
        ({k: [v, v] for k, v in ROW.items()}, {}, ["must appear once", "rows 1 and 2"]),
        ({**{k: [v] * 3 for k, v in ROW.items()}, "run": ["a", "b", "b"]}, {}, ["run 'b'", "rows 2 and 3"]),
    ],
)
def test_bad_tables_are_refused(
    tmp_path: Path, table: dict[str, Any], columns: dict[str, str], words: list[str]
) -> None:
    said = refused(tmp_path, pl.DataFrame(table), **columns)
    assert all(word in said for word in words), said


def test_bad_files_are_refused(tmp_path: Path) -> None:
    for name, content, words in [
        ("runs.pkl", b"x", r"\.csv \(or \.tsv\), \.parquet, \.jsonl"),
        ("runs.parquet", b"no parquet", "must be valid"),
        ("runs.csv", b"", "must be valid"),
        ("runs.csv", b"params,tokens,loss\n1,2\n1,2,3,4,5\n", "must be valid"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=words):
            make_study(str(tmp_path / name), str(tmp_path / "study"))
    with pytest.raises(
        ConfigError, match=r"a table of runs must be there, but .*none\.csv is not; correct the path"
    ):
        make_study(str(tmp_path / "none.csv"), str(tmp_path / "study"))
    assert not (tmp_path / "study").exists()


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    study = made(tmp_path, grid())
    before = (tmp_path / "study" / "study.json").read_bytes()
    with pytest.raises(ConfigError, match="choose another directory"):
        made(tmp_path, grid().head(10))
    assert (tmp_path / "study" / "study.json").read_bytes() == before
    assert study.trials().collect().height == 32
    (tmp_path / "study" / "recipe.toml").touch()  # promoted since
    assert made(tmp_path, grid()).trials().collect().height == 32
    with pytest.raises(ConfigError, match=r"choose another directory$"):
        made(tmp_path, grid().head(10))
    (tmp_path / "study" / "recipe.toml").unlink()
    (tmp_path / "study" / "study.json").unlink()  # as an import that was killed before it wrote that
    grid().head(10).write_csv(tmp_path / "runs.csv")
    again = make_study(str(tmp_path / "runs.csv"), str(tmp_path / "study"), fresh=True)
    assert again.trials().collect().height == 10


def test_the_compute_of_a_row_that_does_not_tell_it_is_counted(tmp_path: Path) -> None:
    told = grid().with_columns(flops=pl.when(pl.int_range(pl.len()) == 0).then(pl.lit(6e14)))
    found = made(tmp_path, told).trials().collect()["flops"]
    assert found.null_count() == 0
    assert found[0] == 6e14


def test_few_rows_take_the_prior_and_say_so(tmp_path: Path) -> None:
    fits = fit(made(tmp_path, grid().filter(pl.col("width") < 60, pl.col("lr") == BEST_LR)))
    assert fits.loss is not None
    assert fits.loss.status == "prior_driven"
    # A forecast under a prior can be certified: the prior is the law's status, and no reason against it.
    forecast = predict(replace(fits, large=TARGET), 26 * 192**2)
    assert forecast is not None
    assert (forecast.status, forecast.certified) == ("prior_driven", False)
    assert forecast.reasons
    assert not any("prior" in reason for reason in forecast.reasons)
    truth = law(26 * 64**2, 768_000)
    assert fits.predict(params=26 * 64**2, tokens=768_000).loss == pytest.approx(truth, rel=0.02)
    with pytest.raises(ConfigError, match="too_few_points"):
        fit(made_again(tmp_path, grid().head(2))).predict(params=1e6, tokens=1e7)


def made_again(tmp_path: Path, table: pl.DataFrame) -> Study:
    buffer = io.BytesIO()
    table.write_csv(buffer)
    (tmp_path / "again.csv").write_bytes(buffer.getvalue())
    return make_study(str(tmp_path / "again.csv"), str(tmp_path / "again"))


@pytest.mark.parametrize("name", ["lr_curve", "optimum_law"])
def test_a_studys_frame_feeds_the_laws(gemstones: Study, name: str) -> None:
    if name == "optimum_law":
        rows = gemstones.trials().group_by("params", maintain_order=True).agg(pl.col("loss").min())
        assert np.isfinite(laws.optimum_law(rows, target="loss", over=["params"]).r2)
    else:
        with pytest.raises(ValueError, match="'lr'"):
            laws.lr_curve(gemstones.trials())


def test_counts_in_billions_are_refused_and_compute_over_size_is_not(tmp_path: Path) -> None:
    (tmp_path / "billions").mkdir()
    text = refused(tmp_path / "billions", grid().with_columns(pl.col("params") / 1e5))
    assert "whole counts" in text
    (tmp_path / "large").mkdir()
    assert "2^63" in refused(
        tmp_path / "large", grid().drop("batch", "steps").with_columns(tokens=pl.lit(1e20))
    )
    fractional = grid().drop("batch", "steps").with_columns(pl.col("tokens") + 0.3)
    assert made(tmp_path, fractional).trials().collect().height == fractional.height


def test_mup_may_be_written_with_a_letter_of_its_own(tmp_path: Path) -> None:
    assert "lr_transfer_mup" in fit(made(tmp_path, grid(parametrization="μP"))).rows
    (tmp_path / "odd").mkdir()
    assert "sp, mup, depth_mup or completep" in refused(tmp_path / "odd", grid(parametrization="ntk"))


def test_a_csv_may_write_nan_in_any_way_and_leave_columns_empty(tmp_path: Path) -> None:
    head = "params,tokens,loss,lr\n"
    rows = [
        f"{1000 * i},{30_000 * j},{3 / i + 1 / j if i + j < 6 else 'nan'},\n"
        for i in (1, 2, 3)
        for j in (1, 2, 3)
    ]
    (tmp_path / "runs.csv").write_text(head + "".join(rows))
    trials = make_study(str(tmp_path / "runs.csv"), str(tmp_path / "study")).trials().collect()
    assert trials.filter(pl.col("status") == "diverged").height == 1
    assert trials["lr"].null_count() == trials.height
