"""A forecast for each validation set: from a table's columns, from training, into the recipe and the report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from froude import laws, report, schemas
from froude.attempts import history
from froude.checkpoint.run_store import RunStore
from froude.cli import main
from froude.config import ConfigError, Run
from froude.promote.choice.target_loss import widened
from froude.promote.fits import fit
from froude.promote.forecast import Forecast
from froude.promote.imported_runs.history import make_study
from froude.promote.ladder.validation_sets import SetForecast
from froude.promote.promotion import promote
from froude.promote.recipe import read
from froude.store import Location
from froude.study import Study
from froude.sweep import trial_store
from froude.train.api import Unsupervised
from froude.train.trial import run_trial
from froude.train.worker import run_worker

RUN = Run(
    tokens=128 * 6, batch=128, slots=2, eval_windows=16, norms_every=0,
    model={"width": 16, "factory": "foreign_model:factory"}, data={"source": "foreign_model:TwoSets"},
)  # fmt: skip


def law(params: float, tokens: float, floor: float) -> float:
    return floor + 400 / params**0.34 + 400 / tokens**0.3


def table(**more: object) -> pl.DataFrame:
    rows = [
        {
            "params": n,
            "tokens": d,
            "loss": law(n, d, 1.7),
            "loss_code": law(n, d, 0.8),
            "loss_web": law(n, d, 2.2),
        }
        for n in (10**7, 3 * 10**7, 10**8, 3 * 10**8)
        for d in (10**9, 3 * 10**9, 10**10)
    ]
    return pl.DataFrame(rows).with_columns(**more)


def made(tmp_path: Path, rows: pl.DataFrame, *, fresh: bool = False, **columns: str) -> Study:
    rows.write_csv(tmp_path / "runs.csv")
    return make_study(str(tmp_path / "runs.csv"), str(tmp_path / "study"), columns=columns, fresh=fresh)


@pytest.mark.slow
def test_each_column_of_losses_has_a_law_and_a_forecast(tmp_path: Path) -> None:
    study = made(tmp_path, table())
    assert study.evals().group_by("split").len().sort("split").collect().rows() == [("code", 12), ("web", 12)]
    fits = fit(study)
    found = fits.predict_sets(params=10**9, tokens=2 * 10**10)
    for name, floor in (("code", 0.8), ("web", 2.2)):
        assert found[name].loss == pytest.approx(law(10**9, 2 * 10**10, floor), rel=0.01)
        assert found[name].low < law(10**9, 2 * 10**10, floor) < found[name].high
    assert fits.predict(params=10**9, tokens=2 * 10**10).loss == pytest.approx(
        law(10**9, 2 * 10**10, 1.7), rel=0.01
    )
    other = fit(made(tmp_path, table(loss_code=pl.col("loss_code") * 1.01), fresh=True))
    changed = {name for name, mark in fits.fingerprints.items() if other.fingerprints[name] != mark}
    assert changed == {"loss_law code"}


def test_a_table_without_such_columns_leaves_nothing_of_one_before(tmp_path: Path) -> None:
    made(tmp_path, table())
    study = made(tmp_path, table().drop("loss_code"), fresh=True, loss_web="")
    assert study.evals().collect().height == 0
    assert fit(study).sets == {}


def test_a_set_is_read_where_it_was_measured_and_its_odd_values_are_named(tmp_path: Path) -> None:
    few = table(
        loss_code=pl.when(pl.col("params") > 10**8).then(pl.col("loss_code")), CodeLoss=pl.col("loss_web")
    )
    study = made(tmp_path, few.drop("loss_web"), loss_web="CodeLoss")
    assert study.evals().group_by("split").len().sort("split").collect().rows() == [("code", 3), ("web", 12)]
    found = fit(study)
    assert found.sets["code"].status == "too_few_points"
    assert set(found.predict_sets(params=10**9, tokens=10**10)) == {"web"}
    odd = table(loss_scale=pl.lit(-1.0))
    with pytest.raises(
        ConfigError, match=r"column 'loss_scale' must be positive .*, but row 1 .*--columns loss_scale="
    ):
        made(tmp_path, odd, fresh=True)


def test_a_column_that_is_mapped_to_the_loss_is_no_set_of_its_own(tmp_path: Path) -> None:
    study = made(tmp_path, table().drop("loss", "loss_web"), loss="loss_code")
    assert study.evals().collect().height == 0
    assert study.meta["table"]["columns"]["loss"] == "loss_code"


@pytest.mark.slow
def test_the_command_line_tells_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table().rename({"loss_code": "loss_program_text"}).write_csv(tmp_path / "runs.csv")
    arguments = [
        "fit",
        "--from",
        str(tmp_path / "runs.csv"),
        "--out",
        str(tmp_path / "s"),
        "--predict",
        "params=1e9,tokens=2e10",
    ]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "loss law        of set program_text: E " in text
    assert "in comparison   the largest proxy's loss " in text
    for name in ("web     ", "program_text"):
        (line,) = (line for line in text.splitlines() if line.startswith(f"on set {name} "))
        assert "; published exponents " in line
        assert "; noise of a run " in line
    assert main([*arguments, "--fresh", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert set(content["sets"]) == set(content["sets_prediction"]) == {"program_text", "web"}


def test_a_sources_own_sets_are_evaluated_at_the_end_of_every_run(tmp_path: Path) -> None:
    branches = [RUN.replace(name="short", tokens=128 * 4), RUN.replace(name="long")]
    evals = pl.DataFrame(run_trial(branches, trial="t").evals)
    assert evals.select("run", "step", "split").rows() == [
        *(("short", 4, "validation"), ("short", 4, "backwards")),
        *(("long", 6, "validation"), ("long", 6, "backwards")),
    ]
    last = dict(evals.filter(run="long").select("split", "loss").iter_rows())
    assert last["backwards"] > last["validation"] + 0.01  # it learns to count upwards

    run, place = RUN.replace(name="large", eval_every=3), Location.parse(tmp_path)
    store = RunStore(place / "runs" / run.name, run.name)
    loss = run_worker(run, store, Unsupervised(store.open_attempt("recipe")), device="cpu")
    elastic = history(Study(place), "large")
    assert elastic is not None
    assert elastic.loss == loss
    assert elastic.set_losses == {"backwards": pytest.approx(last["backwards"], rel=1e-5)}
    assert Study(place).evals().filter(split="backwards").collect().height == 1


@pytest.mark.parametrize("name", ["train", "validation", "on code", "", 7])
def test_a_sets_name_must_be_one_of_a_column(name: str | int) -> None:
    with pytest.raises(ConfigError, match="must be a string of letters, digits and _"):
        run_trial([RUN.replace({"data.options": {"set": name}})], trial="t")


@pytest.mark.long
def test_the_recipe_seals_a_forecast_of_each_and_the_report_shows_them(
    tmp_path: Path, study_factory: Callable[..., Path]
) -> None:
    folder = study_factory(tmp_path / "study")
    place = Location.parse(folder)
    for name, stored in trial_store.read_all(place).items():
        rows = [
            {"run": row["run"], "attempt": 1, "step": row["steps"], "tokens": row["tokens"], "split": "code",
             "loss": 0.8 * row["loss"]}
            for row in stored.rows.to_pylist()
            if row["stage"] == "law"
        ]  # fmt: skip
        if rows:
            (place / "evals" / f"{name}.parquet").replace(
                schemas.to_bytes(schemas.table(schemas.EVALS, rows))
            )
    sealed = promote(Study(folder), overrides={"forecast_certified": "a study of minutes"}).forecast
    assert sealed.sets["code"].loss == pytest.approx(0.8 * sealed.loss, rel=0.01)
    assert sealed.sets["code"].certified == sealed.certified
    assert read(str(folder)).forecast == sealed
    html = report.render(Study(folder))
    assert "On each validation set" in html
    assert sealed.sets["code"].comparator == pytest.approx(0.8 * sealed.comparator, rel=0.05)
    assert ">code<" in html


def test_what_is_not_known_of_the_batch_widens_the_interval_of_each() -> None:
    found = laws.loss_law(table()).predict(params=1e9, tokens=2e10)
    each = widened(found, 0.02)
    assert each.low < found.low < found.high < each.high
    assert widened(found, 0.0) == found


def test_a_set_is_scored() -> None:
    forecast = SetForecast(2.0, 1.9, 2.1, True)
    assert forecast.scored(2.05) == (True, pytest.approx(-0.0244, abs=1e-4))
    assert forecast.scored(2.2)[0] is False
    content = Forecast(3.0, 2.9, 3.1, 0.9, False, "ok", (), 3.2).to_dict()
    assert "sets" not in content
