"""Did a recipe's forecast come from the trials beside it? Trials and recipes forged, with every hash made to fit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from earlier_study import OVERRIDES, copied

from froude.checkpoint.commit import CommitLog
from froude.config import ConfigError
from froude.promote import recipe as recipes
from froude.promote.choice.worth import with_batch
from froude.promote.promotion import promote
from froude.promote.recipe import Recipe
from froude.promote.verify import locate, verify_run
from froude.store import Location
from froude.study import Study

pytestmark = pytest.mark.slow

ORIGIN, MATERIAL = "the forecast is that of the study's trials", "the run had the study's corpus and code"
#: What this version asks more than the one that made the study.
LATER = dict.fromkeys(("lr_transfers", "forecast_interval"), "the study is here for its files")


@pytest.fixture(scope="module")
def promoted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copied(tmp_path_factory.mktemp("origin"))
    shutil.rmtree(folder / "runs")
    for name in ("recipe.toml", "forecast.json"):
        (folder / name).unlink()
    promote(Study(folder), overrides=OVERRIDES | LATER)
    return folder


@pytest.fixture
def study(promoted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(promoted, tmp_path / "study"))


def origin(folder: Path) -> tuple[bool | None, str]:
    """The verdict of a run that has begun with the recipe there."""
    recipe = recipes.read(str(folder))
    log = Location.parse(folder) / "runs" / "large"
    if not log.exists():
        CommitLog(log).open_attempt("large", recipe.sha256, 1, {"material": dict(recipe.material)})
    found = {check.name: check for check in verify_run(*locate(str(folder)))}
    return found[ORIGIN].passed, found[ORIGIN].seen


def reseal(folder: Path, change: Callable[[Recipe], Recipe]) -> None:
    changed = change(recipes.read(str(folder)))
    replace(changed, sha256=recipes.digest(changed.content())).write(Location.parse(folder) / recipes.FILE)


def edit(folder: Path, pattern: str, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    """Change the rows of a trial's files, their description kept."""
    for file in folder.glob(pattern):
        table = pq.read_table(file)
        rows = pl.from_arrow(table)
        assert isinstance(rows, pl.DataFrame)
        pq.write_table(
            change(rows).to_arrow().cast(table.schema).replace_schema_metadata(table.schema.metadata), file
        )


def test_an_honest_recipe_is_that_of_its_trials(study: Path) -> None:
    passed, seen = origin(study)
    assert (passed, "sealed" in seen) == (True, False)


def test_a_batch_that_hours_chose_is_taken_as_it_is(study: Path) -> None:
    batch = 2 * recipes.read(str(study)).run.batch
    reseal(study, lambda recipe: replace(recipe, prefer="time", run=with_batch(recipe.run, batch)))
    passed, seen = origin(study)
    assert passed is not False
    assert "where the trials give" not in seen


def test_a_forecast_that_was_written_by_hand_is_caught(study: Path) -> None:
    reseal(
        study, lambda recipe: replace(recipe, forecast=replace(recipe.forecast, loss=3.0, low=2.9, high=3.1))
    )
    passed, seen = origin(study)
    assert passed is False
    assert seen.endswith("3.0000 [2.9000, 3.1000] sealed; what is sealed is not of these trials")


def test_another_setting_than_the_trials_give_is_told(study: Path) -> None:
    reseal(study, lambda recipe: replace(recipe, run=recipe.run.replace({"optimizer.lr": 0.5}, name="large")))
    passed, seen = origin(study)
    assert (passed, "`optimizer.lr` is 0.5, where the trials give" in seen) == (None, True)


@pytest.mark.parametrize("column", ["loss", "lr", "width"])
def test_a_row_that_contradicts_its_description_or_its_evaluation_is_caught(study: Path, column: str) -> None:
    edit(
        study,
        "trials/law-w8*",
        lambda rows: rows.with_columns((pl.col(column) * 2).cast(rows.schema[column])),
    )
    passed, seen = origin(study)
    assert passed is False
    assert f" has {column} " in seen
    shutil.rmtree(study / "runs")
    if column == "loss":
        with pytest.raises(ConfigError, match=r"evaluated to, but the row of trial law-w8.* has loss "):
            promote(Study(study), overrides=OVERRIDES | LATER)


def test_another_count_of_parameters_gives_another_forecast(study: Path) -> None:
    edit(study, "trials/law-*", lambda rows: rows.with_columns(pl.col("params") * 4))
    assert origin(study)[0] is not True


def test_trials_that_are_gone_are_unknown(study: Path) -> None:
    next(study.glob("trials/law-*")).unlink()
    assert origin(study)[0] is None
    shutil.rmtree(study / "trials")
    assert origin(study) == (None, "no trials are beside the run")


def test_a_run_on_another_corpus_than_the_studys_is_caught(study: Path) -> None:
    corpus = {**recipes.read(str(study)).material, "corpus": {"corpus": "f" * 64}}
    origin(study)
    recipe = recipes.read(str(study))
    changed = replace(recipe, material=corpus)
    found = {check.name: check.passed for check in verify_run(Study(study), changed)}
    assert found[MATERIAL] is False
