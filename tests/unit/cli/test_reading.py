"""What froude fit --from says of the table that it read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from froude.cli import main

pytestmark = pytest.mark.slow


def imported(tmp_path: Path, content: str, *options: str) -> tuple[int, list[str]]:
    (tmp_path / "runs.csv").write_text(content)
    command = ["fit", "--from", str(tmp_path / "runs.csv"), "--out", str(tmp_path / "study"), *options]
    return main(command), command


def summary(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    code, _ = imported(tmp_path, content, "--json", *options)
    assert code == 0
    return json.loads(capsys.readouterr().out)["table"]


TABLE = """N,tokens,loss,lr,State,note
1e6,1e8,3.1,0.01,COMPLETED,a
1e6,2e8,2.9,0.02,COMPLETED,b
2e6,2e8,,0.02,COMPLETED,c
4e6,2e8,2.7,0.02,crashed,d
"""


def test_it_is_said_how_a_table_was_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = imported(tmp_path, TABLE, "--columns", "params=N,status=State")
    assert code == 0
    assert capsys.readouterr().out.splitlines()[:4] == [
        "table           4 rows: 2 finished, 1 diverged, 1 failed",
        "columns         params ← N, tokens, loss, status ← State, lr; ignored: note",
        "ranges          params 1e+06 to 2e+06, tokens 1e+08 to 2e+08, loss 2.9 to 3.1",
        "settings        these vary: lr",
    ]


def test_the_reading_is_in_the_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = summary(tmp_path, TABLE, capsys, "--columns", "params=N,status=State")
    assert found == {
        "rows": 4,
        "status": {"finished": 2, "diverged": 1, "failed": 1},
        "columns": {"params": "N", "tokens": "tokens", "loss": "loss", "status": "State", "lr": "lr"},
        "ignored": ["note"],
        "ranges": {"params": [1e6, 2e6], "tokens": [1e8, 2e8], "loss": [2.9, 3.1]},
        "vary": ["lr"],
        "warnings": [],
    }


@pytest.mark.parametrize(
    ("column", "name"),
    [
        *((column, "status") for column in ("State", "Status", "STATUS", "info.state", "run_state")),
        *((column, "lr") for column in ("params.lr", "learning_rate", "LR", "config/lr", "peak_lr")),
    ],
)
def test_an_ignored_status_or_rate_is_pointed_out(
    column: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = f"params,tokens,loss,{column}\n1e6,1e8,3.1,1\n2e6,2e8,2.9,2\n"
    (warning,) = summary(tmp_path, content, capsys)["warnings"]
    assert f"--columns {name}={column}?" in warning


@pytest.mark.parametrize("column", ["optimizer_state", "warmup_lr", "min_lr", "statement", "color"])
def test_other_columns_are_not(column: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = f"params,tokens,loss,{column}\n1e6,1e8,3.1,1\n2e6,2e8,2.9,2\n"
    assert summary(tmp_path, content, capsys)["warnings"] == []


def test_a_column_that_is_left_out_on_purpose_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = "params,tokens,loss,status,State\n1e6,1e8,3.1,1,1\n2e6,2e8,2.9,2,2\n"
    assert summary(tmp_path, content, capsys, "--columns", "status=")["warnings"] == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("params,tokens,loss\n60,1e9,3.1\n7000,2e9,2.9\n", "params are as few as 60; are they millions?"),
        ("params,tokens,loss\n6e7,20,3.1\n7e9,140,2.9\n", "tokens are as few as 20; are they billions?"),
        ("params,tokens,loss,batch\n6e7,2e9,3.1,256\n7e9,2e9,2.9,512\n", "is it sequences?"),
        (
            "params,tokens,loss,batch,steps\n6e7,2.56e10,3.1,256,100000000\n7e9,2.56e10,2.9,256,100000000\n",
            "",
        ),
        ("params,tokens,loss,batch\n6e7,2e9,3.1,262144\n7e9,2e9,2.9,524288\n", ""),
    ],
)
def test_units_that_are_probably_others_are_pointed_out(
    content: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert imported(tmp_path, content)[0] == 0
    printed = capsys.readouterr().out
    assert words in printed
    assert ("warning" in printed) == bool(words)


UNTOLD = "params,tokens,loss\n" + "".join(
    f"{size:g},{tokens:g},{0.9 + 12 / size**0.35 + 30 / tokens**0.35 + off}\n"
    for size in (1e6, 2e6, 4e6, 8e6, 1.6e7, 3.2e7)
    for tokens in (1e8, 2e8, 4e8)
    for off in (0, 0.3)
)


def test_runs_that_nothing_tells_apart_are_not_certified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("froude.laws.loss.law.REPLICATES", 20)
    assert imported(tmp_path, UNTOLD, "--predict", "params=5e7,tokens=1e9")[0] == 0
    printed = capsys.readouterr().out
    (warning,) = [line for line in printed.splitlines() if line.startswith("warning")]
    assert "(18 of these, e.g. params 1e+06, tokens 1e+08)" in warning
    (forecast,) = [line for line in printed.splitlines() if line.startswith("forecast")]
    assert "not certified" in forecast
    assert "the table does not say how several runs" in forecast


@pytest.mark.parametrize("column", ["seed", "lr"])
def test_runs_that_a_column_tells_apart_are_believed(
    column: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head, *rows = UNTOLD.splitlines()
    told = "\n".join([f"{head},{column}", *(f"{row},{1 + n % 2}" for n, row in enumerate(rows))])
    assert imported(tmp_path, told)[0] == 0
    assert "warning" not in capsys.readouterr().out


def test_a_loss_column_without_a_number_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert imported(tmp_path, "params,tokens,loss\n1e6,1e8,\n2e6,2e8,nan\n")[0] == 1
    said = capsys.readouterr().err
    assert "2 diverged" in said
    assert "loss column has no finite number" in said
    assert "--columns loss=" in said
    assert "sweep again" not in said


def test_a_wrong_mapping_is_replaced_with_fresh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = "params,tokens,loss,ce\n1e6,1e8,9,3.1\n2e6,2e8,9,2.9\n"
    assert imported(tmp_path, wrong)[0] == 0
    code, command = imported(tmp_path, wrong, "--columns", "loss=ce")
    assert code == 2
    assert "replace that study with --fresh" in capsys.readouterr().err
    (tmp_path / "study" / "report.html").write_text("of the wrong study")
    bad = [*command[:-1], "loss=none", "--fresh"]
    assert main(bad) == 2
    assert (tmp_path / "study" / "report.html").exists(), "nothing is replaced by a table that cannot be read"
    assert main([*command, "--fresh"]) == 0
    assert "loss 2.9 to 3.1" in capsys.readouterr().out
    assert not (tmp_path / "study" / "report.html").exists()


def test_an_import_that_was_interrupted_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, command = imported(tmp_path, TABLE, "--columns", "params=N,status=State")
    assert (code, main(command)) == (0, 0), "the table is there as it was read"
    (tmp_path / "study" / "study.json").unlink()
    assert main(command) == 0, "what an import left that was ended before its end"
    (tmp_path / "runs.csv").write_text(TABLE.replace("3.1", "3.2"))
    capsys.readouterr()
    assert main(command) == 2
    assert "one of another table" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("held", "again"), [("recipe.toml", 0), ("runs/large/log", 0), ("trials/other.parquet", 2)]
)
def test_fresh_replaces_nothing_but_a_table(
    held: str, again: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it the same table goes on with its study, which may have been promoted since."""
    code, command = imported(tmp_path, TABLE, "--columns", "params=N,status=State")
    assert code == 0
    place = tmp_path / "study" / held
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("kept")
    capsys.readouterr()
    assert main(command) == again
    assert "--fresh" not in capsys.readouterr().err
    assert main([*command, "--fresh"]) == 2
    assert "more than a study that was made of a table" in capsys.readouterr().err
    assert place.read_text() == "kept"


def test_fresh_is_for_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "study", "--fresh"]) == 2
    assert "--fresh are for a table of runs" in capsys.readouterr().err
