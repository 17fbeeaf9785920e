"""A seal in a second store: written once, before the recipe, and compared again when the run is verified."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from honest_run import sealed
from s3_server import empty_bucket, place, refusing_server, s3, s3_server

from froude.checkpoint.commit import CommitLog
from froude.cli import main
from froude.config import ConfigError
from froude.promote import witness
from froude.promote.promotion import promote
from froude.promote.recipe import Recipe, read
from froude.promote.verify import locate, verify_run
from froude.store import Location
from froude.study import Study

__all__ = ["place", "refusing_server", "s3", "s3_server"]

OVERRIDE = {"forecast_certified": "a study of minutes"}
PROMOTE = ["--override", "forecast_certified", "--reason", "minutes"]


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return sealed(tmp_path / "study")


@pytest.fixture
def study(tmp_path: Path) -> Location:
    return Location.parse(tmp_path / "study")


def put(recipe: Recipe, folder: Location, study: Location, begun: bool = False) -> witness.Witnessed:
    note = witness.attest(recipe, witness.place_of(folder, study, recipe), study, begun=begun)
    witness.remember(study, note)
    return note


def test_the_same_seal_again_is_fine_and_leaves_the_first_in_place(
    place: Location, study: Location, recipe: Recipe
) -> None:
    first = put(recipe, place, study)
    assert first.url == f"{place}/study.large.json"
    content = json.loads(Location.parse(first.url).read())
    assert content["sha256"] == recipe.sha256
    assert (content["study"], content["run"]) == ("study", "large")
    assert content["seals"] == {"loss": 1.298, "low": 1.251, "high": 1.341, "level": 0.9, "certified": False}
    assert put(recipe, place, study) == first == witness.remembered(study)
    assert witness.compared(study, recipe, first.time + timedelta(seconds=1)) is not None
    Study(study)  # the note is no foreign file


def test_another_seal_there_is_an_error_and_stays(place: Location, study: Location, recipe: Recipe) -> None:
    first = put(recipe, place, study)
    before = Location.parse(first.url).read()
    with pytest.raises(ConfigError, match=rf"is seal {recipe.sha256[:12]} of .*; name another folder"):
        put(sealed(study), place, study)
    assert Location.parse(first.url).read() == before


def test_another_file_there_is_an_error(place: Location, study: Location, recipe: Recipe) -> None:
    there = witness.place_of(place, study, recipe)
    there.replace(b"garbage")
    with pytest.raises(ConfigError, match="is another file, not seal"):
        put(recipe, place, study)
    assert there.read() == b"garbage"


def test_a_seal_is_not_witnessed_once_its_run_has_begun(
    place: Location, study: Location, recipe: Recipe
) -> None:
    with pytest.raises(ConfigError, match="before its run begins"):
        put(recipe, place, study, begun=True)
    assert not witness.place_of(place, study, recipe).exists()
    first = put(recipe, place, study)
    assert put(recipe, place, study, begun=True) == first


def test_the_same_recipe_takes_the_seal_that_its_witness_has(
    place: Location, study: Location, recipe: Recipe
) -> None:
    """As when a promotion was killed after it had told the witness: only the time of the seal differs."""
    put(recipe, place, study)
    there = witness.place_of(place, study, recipe)
    again = sealed(study)
    assert again.sha256 != recipe.sha256
    assert witness.as_sealed_before(again, there) == recipe
    other = sealed(study, run=recipe.run.replace({"seed": 1}))
    assert witness.as_sealed_before(other, there) == other
    there.replace(b"[1, 2]")
    assert witness.as_sealed_before(again, there) == again


@pytest.mark.parametrize("url", ["", "/witness", "/runs/large"])
def test_a_witness_is_outside_its_study(study: Location, url: str) -> None:
    with pytest.raises(ConfigError, match="outside the study"):
        witness.folder_of(study.url + url, study)
    assert witness.folder_of(f"{study}-witness", study).url == f"{study}-witness"


def test_what_the_witness_says_later(place: Location, study: Location, recipe: Recipe) -> None:
    assert witness.compared(study, recipe, None) is None
    note = put(recipe, place, study)
    there, soon = Location.parse(note.url), note.time + timedelta(minutes=1)

    def asked(begun: datetime | None = soon) -> tuple[bool | None, str]:
        answer = witness.compared(study, recipe, begun)
        assert answer is not None
        return answer

    passed, seen = asked()
    assert passed
    assert f"seal {recipe.sha256[:12]} in {note.url} since {note.time:%Y-%m-%d %H:%M:%S} UTC" in seen
    assert asked(None)[0]
    late = asked(note.time - timedelta(hours=1))
    assert late[0] is False
    assert late[1].endswith("too late")
    kept = there.read()
    there.replace(kept.replace(recipe.sha256.encode(), b"0" * 64))
    assert asked()[0] is False
    assert "is seal 000000000000 of 20" in asked()[1]
    there.replace(b"\xff")
    assert "is another file" in asked()[1]
    there.delete()
    assert asked()[0] is False
    assert "is gone" in asked()[1]


def test_a_seal_that_was_written_again_is_no_witness(tmp_path: Path, study: Location, recipe: Recipe) -> None:
    note = put(recipe, Location.parse(tmp_path / "second"), study)
    os.utime(note.url, (0, note.time.timestamp() + 60))
    answer = witness.compared(study, recipe, None)
    assert answer is not None
    assert answer[0] is False
    assert "written again since" in answer[1]


def test_a_witness_that_cannot_be_reached_is_no_failure(
    tmp_path: Path, study: Location, recipe: Recipe
) -> None:
    put(recipe, Location.parse(tmp_path / "second"), study)
    shutil.rmtree(tmp_path / "second")
    answer = witness.compared(study, recipe, None)
    assert answer is not None
    assert answer[0] is None
    assert "can't be reached" in answer[1]


def test_an_s3_witness_that_refuses_is_no_failure(
    s3: Location, study: Location, recipe: Recipe, refusing_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(recipe, s3 / "seals", study)
    monkeypatch.setenv("AWS_ENDPOINT_URL", refusing_server)
    answer = witness.compared(study, recipe, None)
    assert answer is not None
    assert answer[0] is None
    assert "refuses the keys" in answer[1]


@pytest.mark.parametrize("content", [b"", b"{}", b'{"schema": 9}', b"\xff"])
def test_a_note_that_cannot_be_read_is_a_failure(study: Location, recipe: Recipe, content: bytes) -> None:
    (study / witness.FILE).replace(content)
    answer = witness.compared(study, recipe, None)
    assert answer is not None
    assert answer[0] is False
    assert "restore it" in answer[1]


def test_a_note_of_another_seal_is_a_failure(tmp_path: Path, study: Location, recipe: Recipe) -> None:
    put(recipe, Location.parse(tmp_path / "second"), study)
    answer = witness.compared(study, sealed(study), None)
    assert answer is not None
    assert answer[0] is False


@pytest.mark.slow
def test_verify_run_has_a_row_for_the_witness(
    tmp_path: Path, study: Location, recipe: Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    CommitLog(study / "runs" / "large").open_attempt("large", recipe.sha256, 1)

    def row() -> list[bool | None]:
        found = verify_run(*locate(study.url))
        return [check.passed for check in found if check.name == "the witness has the seal"]

    assert row() == []
    note = put(recipe, Location.parse(tmp_path / "second"), study)
    assert row() == [True]
    os.unlink(note.url)
    assert row() == [False]
    os.rmdir(tmp_path / "second")
    assert row() == [None]
    assert main(["verify-run", study.url]) == 1  # the run is not finished
    out = capsys.readouterr().out
    assert "?     the witness has the seal: unknown: " in out
    assert out.rstrip().endswith("checks passed, 2 unknown")


@pytest.mark.long
def test_promotion_tells_the_witness_first(
    tmp_path: Path,
    study_factory: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, second = study_factory(tmp_path / "study"), tmp_path / "second"
    command = ["promote", str(folder), *PROMOTE, "--witness", str(second)]
    before = sorted(path.name for path in folder.iterdir())

    # Whatever the witness refuses, nothing is left in the study.
    (tmp_path / "file").write_text("")
    for url, words in {
        str(tmp_path / "file" / "below"): "a witness must be a store",
        str(folder / "second"): "outside the study",
        "gs://bucket": "a local path or s3://",
    }.items():
        assert main([*command[:-1], url]) == 2
        assert words in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == before

    def killed(self: Recipe, location: Location) -> None:
        assert (second / "study.large.json").exists()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Recipe, "write", killed)
        assert main(command) == 130
    assert not (folder / "recipe.toml").exists()
    there = json.loads((second / "study.large.json").read_text())
    capsys.readouterr()
    assert main(command) == 0
    out = capsys.readouterr().out
    recipe = read(str(folder))
    assert recipe.sha256 == there["sha256"]
    assert f"seal      {recipe.sha256}: " in out
    assert f"witness   {second}/study.large.json, {datetime.now(UTC):%Y-}" in out
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["witness"]["sha256"] == recipe.sha256

    # Another recipe needs another witness, and leaves no note of the first without one.
    study, other = Study(folder), {"forecast_certified": "another reason"}
    with pytest.raises(ConfigError, match="the first seal that it was given"):
        promote(study, overrides=other, witnessed_by=str(second))
    assert read(str(folder)) == recipe
    assert promote(study, overrides=other).sha256 != recipe.sha256
    assert witness.remembered(study.location) is None
    third = promote(study, overrides=other, witnessed_by=str(tmp_path / "third"))
    assert third == read(str(folder))


@pytest.mark.long
def test_an_s3_witness_that_does_not_answer_leaves_nothing(
    tmp_path: Path,
    study_factory: Callable[..., Path],
    s3_server: str,
    refusing_server: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = study_factory(tmp_path / "study")
    command = ["promote", str(folder), *PROMOTE, "--witness"]
    bucket = empty_bucket(s3_server, monkeypatch)
    for url, endpoint in (("s3://no-such-bucket-here", s3_server), (bucket.url, refusing_server)):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        assert main([*command, url]) == 2
        err = capsys.readouterr().err
        assert err.startswith("froude: a witness must be a store that can be written and read, but s3://")
        assert len(err.splitlines()) == 1
    assert not (folder / "recipe.toml").exists()
    assert not (folder / witness.FILE).exists()
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    assert main([*command, bucket.url]) == 0
    assert f"witness   {bucket}/study.large.json" in capsys.readouterr().out
