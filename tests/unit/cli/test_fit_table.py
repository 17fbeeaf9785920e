"""froude fit on a table of somebody's runs, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from froude.cli import main

pytestmark = pytest.mark.slow

MAPPING = "params=params_N,tokens=tokens_D,run=run_name"


@pytest.fixture
def table(root: Path) -> str:
    return str(root / "tests" / "data" / "gemstones_hot.csv")


def test_a_table_is_fitted_and_stays_a_study(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("froude.laws.loss.law.REPLICATES", 20)
    out = str(tmp_path / "gemstones")
    command = ["fit", "--from", table, "--columns", MAPPING, "--out", out]
    assert main([*command, "--predict", "params=7e9,tokens=1.4e11"]) == 0
    printed = capsys.readouterr().out
    assert "alpha 0.293" in printed
    assert "forecast" in printed
    assert "certified" in printed
    assert "params 3.49×" in printed
    assert main(["fit", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loss_law"]["status"] == "ok"
    assert main(command) == 0, "the same table stays"
    other = ["--columns", MAPPING.replace("params_N", "params_N_no_embed")]
    assert main([*command, *other]) == 2
    assert "choose another directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give STUDY"),
        (["study", "--from", "TABLE", "--out", "OUT"], "give STUDY"),
        (["--from", "TABLE"], "--out STUDY"),
        (["--from", "TABLE", "--out", "OUT", "--columns", "params"], "name=value"),
        (["--from", "TABLE", "--out", "OUT", "--columns", "params=a,params=b"], "each name once"),
        (["--from", "TABLE", "--out", "OUT"], "'params' is missing"),
        (["--from", "TABLE", "--out", "OUT", "--target", "none.toml"], "none.toml"),
        (["study", "--columns", "params=N"], "--from"),
        (["study", "--predict", "params=7e9"], "tokens is missing"),
    ],
)
def test_bad_options_are_exit_code_2(
    arguments: list[str], words: str, table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"TABLE": table, "OUT": str(tmp_path / "out")}
    assert main(["fit", *(names.get(argument, argument) for argument in arguments)]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""
    assert not (tmp_path / "out").exists()


def test_a_forecast_that_fails_says_that_the_study_was_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out = tmp_path / "two.csv", tmp_path / "made"
    table.write_text("params,tokens,loss\n1e6,1e8,3.1\n2e6,2e8,2.9\n")
    command = ["fit", "--from", str(table), "--out", str(out), "--predict", "params=1e9,tokens=1e10"]
    assert main(command) == 2
    assert f"The study itself was made: `froude fit {out}`" in capsys.readouterr().err
    assert main(["fit", str(out)]) == 0
