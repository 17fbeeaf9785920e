"""Scores of finished studies: kept once, read by reports, and refused where they are not what froude wrote."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from matplotlib.figure import Figure
from s3_server import empty_bucket, s3_server

from froude import Study, schemas
from froude.cli import main
from froude.config import ConfigError
from froude.promote.recipe import read
from froude.register import keep, row_of, scores
from froude.report import register_section as section
from froude.report.view import View
from froude.store import Location
from froude.sweep.spent import proxies_over_target

if TYPE_CHECKING:
    Promoted = Any  # of conftest.py, which is no module to import from

__all__ = ["s3_server"]
pytestmark = pytest.mark.slow


@pytest.fixture
def register(tmp_path: Path) -> Location:
    return Location.parse(tmp_path / "register")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are laid out but not drawn: that takes most of a report's time."""
    monkeypatch.setattr(
        Figure, "savefig", lambda self, sink, **_: sink.write('<svg viewBox="0 0 1 1"></svg>')
    )


def test_a_score_has_the_sealed_forecast_and_what_came(finished: Study, register: Location) -> None:
    assert keep(register, finished)
    found = scores(register)
    assert found.columns == schemas.SCORES.names
    row, recipe = found.row(0, named=True), read(finished.location)
    assert found.height == 1
    assert (row["study"], row["run"], row["recipe"]) == ("towing-tank", recipe.run.name, recipe.sha256)
    assert (row["forecast"], row["low"], row["high"]) == (
        recipe.forecast.loss,
        recipe.forecast.low,
        recipe.forecast.high,
    )
    assert (row["comparator"], row["naive"]) == (recipe.forecast.comparator, recipe.forecast.naive)
    assert row["loss"] == 1.245
    assert row["relative_error"] == pytest.approx(row["forecast"] / 1.245 - 1)
    assert row["inside"] == (row["low"] <= 1.245 <= row["high"])
    assert row["reach_compute"] == recipe.extrapolation["compute"]
    assert row["proxy_cost"] == pytest.approx(proxies_over_target(finished, recipe.run))
    assert set(row["overrides"]) == {"forecast_certified", "lr_points"}
    assert row["sealed_at"].isoformat()[:19] == recipe.sealed_at[:19]
    assert [name for name, value in row.items() if value is None] == ["trainer"]


def test_a_part_is_written_once(finished: Study, register: Location) -> None:
    assert keep(register, finished)
    part = register.path / f"{read(finished.location).sha256}.parquet"
    before = part.stat()
    assert keep(register, finished)
    assert (part.stat().st_ino, part.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert len(register.children()) == 1


def test_the_first_outcome_of_a_recipe_stays(
    finished: Study, register: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert keep(register, finished)
    monkeypatch.setattr("froude.register.row_of", lambda *_, **__: pytest.fail("it was worked out again"))
    assert keep(register, finished)


def test_there_is_no_score_before_the_run_is_finished(
    promoted: Promoted, tmp_path: Path, register: Location
) -> None:
    for lives in (0, 2):
        study = promoted.copy(tmp_path / f"study-{lives}", lives=lives)
        assert row_of(study, promoted.recipe) is None
        assert not keep(register, study)
    assert not register.exists()
    assert scores(register).is_empty()
    edited = promoted.copy(tmp_path / "edited", lives=3)
    recipe = edited.location.path / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("beta1 = 0.9", "beta1 = 0.8"))
    assert not keep(register, edited)


def test_a_register_on_s3(finished: Study, s3_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    register = empty_bucket(s3_server, monkeypatch) / "scores"
    assert keep(register, finished)
    assert keep(register, finished)
    assert scores(register)["study"].to_list() == ["towing-tank"]


@pytest.mark.parametrize("kind", ["garbage", "torn", "unmarked", "renamed", "not finite"])
def test_a_part_that_is_no_score_is_named(finished: Study, register: Location, kind: str) -> None:
    assert keep(register, finished)
    part = register.path / f"{read(finished.location).sha256}.parquet"
    content, table = part.read_bytes(), pq.read_table(part)
    if kind == "garbage":
        part.write_bytes(b"garbage")
    elif kind == "torn":
        part.write_bytes(content[: len(content) // 2])
    elif kind == "unmarked":
        pq.write_table(table.replace_schema_metadata(None), part)
    elif kind == "renamed":
        part = part.rename(part.with_name("0" * 64 + ".parquet"))
    else:
        index = table.column_names.index("loss")
        nothing = pl.Series("loss", [None], pl.Float64).to_arrow()
        pq.write_table(table.set_column(index, "loss", nothing), part)
    with pytest.raises(ConfigError, match=r"must be a score that froude wrote.*move it away") as error:
        scores(register)
    assert str(part) in str(error.value)
    assert "\n" not in str(error.value)


def test_columns_of_other_versions(finished: Study, register: Location) -> None:
    """What an earlier version did not know is null; what a later one adds is passed over."""
    assert keep(register, finished)
    part = register.path / f"{read(finished.location).sha256}.parquet"
    table = pq.read_table(part)
    table = table.append_column("added_later", table["run"]).drop_columns(["overrides", "proxy_cost"])
    pq.write_table(table, part)
    found = scores(register)
    assert found.columns == schemas.SCORES.names
    assert found.select("overrides", "proxy_cost").row(0) == (None, None)
    assert "–" in section.table(view_of(found)).rows[0]  # type: ignore[union-attr]


def view_of(found: pl.DataFrame) -> View:
    return View("a", "/a", {}, pl.DataFrame(), register="/scores", scores=found)


def many(finished: Study, errors: list[float], peer: float = 0.02) -> View:
    """A register whose forecasts erred so, beside a comparator that errs always as much."""
    one = row_of(finished, read(finished.location))
    assert one is not None
    rows = [
        {
            **one,
            "forecast": 1 + error,
            "low": 0.99 + error,
            "high": 1.01 + error,
            "loss": 1.0,
            "inside": abs(error) <= 0.01,
            "relative_error": error,
            "comparator": 1 + peer,
            "certified": True,
        }
        for error in errors
    ]
    found = pl.from_arrow(schemas.table(schemas.SCORES, rows))
    assert isinstance(found, pl.DataFrame)
    return view_of(found)


def test_few_scores_are_said_to_tell_little(finished: Study) -> None:
    view = many(finished, [0.005, -0.03, 0.0])
    words = " ".join(section.notes(view))
    assert "2 of 3 losses inside the interval, nominal 90%" in words
    assert "anywhere from 9% to 99%" in words
    assert "nearer than published exponents in 2 of 3" in words
    assert "neither can be called better" in words
    assert "err together" in words
    assert [tile.value for tile in section.tiles(view)] == ["2 of 3", "0.5%", "2 of 3"]
    assert view.scores is not None
    none = replace(view, scores=view.scores.with_columns(certified=False))
    assert "None of these forecasts was certified." in section.notes(none)[0]
    assert section.table(view).tones == ("", "bad", "")  # type: ignore[union-attr]


def test_many_scores_tell_more(finished: Study) -> None:
    words = " ".join(section.notes(many(finished, [0.005] * 27 + [0.03] * 3)))
    assert "27 of 30 losses" in words
    assert "from 73% to 98%" in words
    assert "Of the certified forecasts: 27 of 30" in words
    assert "neither can be called better" not in words


def test_others_are_compared_on_the_studies_that_have_them(finished: Study) -> None:
    view = many(finished, [0.01, 0.03])
    assert view.scores is not None
    one_has_it = pl.Series([1.02, None], dtype=pl.Float64)
    view = replace(view, scores=view.scores.with_columns(comparator=one_has_it, compute_line=None))
    rows = {row[0]: row[1:] for row in section.others(view).rows}  # type: ignore[union-attr]
    assert rows["published exponents"] == ("1", "2.0%", "1.0%", "1 of 1")
    assert "a line in compute" not in rows


def test_the_report_shows_the_section_and_feeds_the_register(
    promoted: Promoted, tmp_path: Path, register: Location, undrawn: None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = promoted.copy(tmp_path / "study", lives=3).location.path
    assert main(["report", str(folder)]) == 0
    assert 'id="register"' not in (folder / "report.html").read_text()
    assert main(["report", str(folder), "--register", register.url]) == 0
    html = (folder / "report.html").read_text()
    assert 'id="register"' in html
    assert 'href="#register"' in html
    assert "No fit, forecast or check reads it." in html
    assert len(register.children()) == 1
    capsys.readouterr()


def test_the_environment_names_a_register(
    promoted: Promoted,
    tmp_path: Path,
    register: Location,
    undrawn: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = promoted.copy(tmp_path / "study")
    monkeypatch.setenv("FROUDE_REGISTER", register.url)
    assert main(["report", study.location.url]) == 0
    html = (study.location.path / "report.html").read_text()
    assert f"No score is kept in {register} yet" in html


def test_a_finished_run_is_kept_by_train(
    promoted: Promoted, tmp_path: Path, register: Location, capsys: pytest.CaptureFixture[str]
) -> None:
    study = promoted.copy(tmp_path / "study", lives=3)
    command = ["train", f"{study.location}/recipe.toml", "--simulate", "1", "--register", register.url]
    for _ in range(2):
        assert main([*command, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["score_kept"] is True
    assert scores(register)["loss"].to_list() == [1.245]
    # What happens to the register meanwhile does not undo the run.
    part = next(register.path.iterdir())
    part.write_bytes(b"garbage")
    assert main(command) == 1
    err = capsys.readouterr().err
    assert err.startswith("froude: the run is finished, its score not kept: a register's part must be")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("verb", ["train", "report"])
def test_a_bad_register_is_refused_before_anything_starts(
    promoted: Promoted,
    tmp_path: Path,
    finished: Study,
    verb: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study = promoted.copy(tmp_path / "study", lives=3 if verb == "report" else 0)
    target = study.location / "recipe.toml" if verb == "train" else study.location
    more = ["--simulate", "1"] if verb == "train" else []
    (tmp_path / "file").write_text("")
    for url, words in {
        str(tmp_path / "file" / "below"): "must be writable, but",
        f"{study.location}/register": "outside the studies",
        finished.location.url: "must hold only its own parts",
        "ftp://somewhere": "a local path or s3://",
    }.items():
        assert main([verb, target.url, *more, "--register", url]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert words in captured.err
        assert len(captured.err.splitlines()) == 1
    assert not (study.location / "report.html").exists()
