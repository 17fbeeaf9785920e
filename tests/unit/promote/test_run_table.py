"""A table of runs as people export it: trackers' words, JSON, numbers with separators, and errors that name the row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from froude.cli import main
from froude.config import ConfigError, Run
from froude.promote.choice.recipe_run import beta2_at
from froude.promote.imported_runs.history import make_study, settings
from froude.promote.imported_runs.run_table import read

HEAD = "run,params,tokens,loss"


def trials(tmp_path: Path, content: str, name: str = "runs.csv", **columns: str) -> pl.DataFrame:
    (tmp_path / name).write_text(content)
    return make_study(str(tmp_path / name), str(tmp_path / "study"), columns=columns).trials().collect()


def refused(tmp_path: Path, content: str, name: str = "runs.csv", **columns: str) -> str:
    with pytest.raises(ConfigError) as error:
        trials(tmp_path, content, name, **columns)
    assert not (tmp_path / "study").exists()
    said = str(error.value)
    assert len(said.splitlines()) == 1
    return said


def test_a_column_is_not_two_of_those_that_are_needed(tmp_path: Path) -> None:
    said = refused(tmp_path, f"{HEAD}\na,1e6,1e7,3.1\nb,2e6,2e7,2.9\n", params="tokens")
    assert (
        said
        == "--columns must name a column for each, but 'tokens' is params and tokens; correct one of them"
    )


def test_a_run_without_a_name_is_refused(tmp_path: Path) -> None:
    pl.DataFrame({"run": ["a", " "], "params": [1e6, 2e6], "tokens": 1e7, "loss": [3.1, 2.9]}).write_parquet(
        tmp_path / "runs.parquet"
    )
    with pytest.raises(ConfigError, match="must name every run, but is empty in row 2"):
        make_study(str(tmp_path / "runs.parquet"), str(tmp_path / "study"))


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        # W&B's run states
        *(("finished", "finished"), ("crashed", "failed"), ("killed", "failed"), ("failed", "failed")),
        *(("running", "running"), ("pending", "running"), ("preempted", "failed"), ("preempting", "failed")),
        # MLflow's RunStatus
        *(("FINISHED", "finished"), ("FAILED", "failed"), ("KILLED", "failed")),
        *(("RUNNING", "running"), ("SCHEDULED", "running")),
        # Optuna's TrialState and Slurm's
        *(("COMPLETE", "finished"), ("PRUNED", "pruned"), ("FAIL", "failed"), ("WAITING", "running")),
        *((" Completed ", "finished"), ("TIMEOUT", "failed"), ("Diverged", "diverged")),
        *(("OUT_OF_MEMORY", "failed"), ("CANCELLED by 1000", "failed"), ("SUSPENDED", "running")),
    ],
)
def test_the_words_of_trackers_are_understood(tmp_path: Path, word: str, meant: str) -> None:
    found = trials(tmp_path, f"{HEAD},State\na,1e6,1e7,3.1,{word}\nb,2e6,2e7,2.9,finished\n", status="State")
    assert found["status"].to_list() == [meant, "finished"]
    assert found["loss"].to_list() == [3.1 if meant == "finished" else None, 2.9]


@pytest.mark.parametrize("name", ["run", "trial", "status", "schedule", "parametrization"])
@pytest.mark.parametrize("odd", [[["a"], ["b"]], [b"\xff", b"\xfe"]])
def test_a_column_of_words_that_holds_none_is_named(tmp_path: Path, name: str, odd: list[Any]) -> None:
    frame = pl.DataFrame({"params": [10**6, 2 * 10**6], "tokens": 10**7, "loss": 3.0, "theirs": odd})
    frame.write_parquet(tmp_path / "runs.parquet")
    source, place = str(tmp_path / "runs.parquet"), tmp_path / "study"
    with pytest.raises(ConfigError, match=rf"column 'theirs' \({name}\) must be text, but is (List|Binary)"):
        make_study(source, str(place), columns={name: "theirs"})
    assert not place.exists()
    assert make_study(source, str(place), columns={name: ""}).exists


def test_a_run_that_did_not_end_needs_no_numbers(tmp_path: Path) -> None:
    found = trials(tmp_path, f"{HEAD},status\na,1e6,1e7,3.1,finished\nb,2e6,,,crashed\n")
    assert found["status"].to_list() == ["finished", "failed"]
    assert found["tokens"].to_list() == [10_000_000, None]


def test_a_table_may_tell_its_corpus_and_a_schedule_without_a_tail(tmp_path: Path) -> None:
    head = f"{HEAD},corpus,schedule,decay_fraction"
    found = trials(tmp_path, f"{head}\na,1e6,1e7,3.1,c4,cosine,0\nb,2e6,2e7,2.9,c4,wsd,.2\n")
    assert found["corpus"].to_list() == ["c4", "c4"]
    assert found["decay_fraction"].to_list() == [0.0, 0.2]


def test_a_beta2_that_a_table_does_not_tell_has_one_half_life() -> None:
    """The target's: at whatever batch its rows were trained, promote takes it back to that."""
    target = Run(batch=1024, tokens=1024 * 100, optimizer={"beta2": 0.95})
    rows = pl.DataFrame(
        {
            "batch": [1024, 512, None],
            "beta2": [None, None, None],
            "warmup_tokens": [0, 0, 0],
            "tokens": [1, 1, 1],
        },
        schema_overrides={"beta2": pl.Float64},
    )
    filled = settings(rows, target)["beta2"].to_list()
    assert filled == pytest.approx([0.95, 0.95**0.5, 0.95])
    assert beta2_at(filled[1], 2.0) == pytest.approx(0.95, rel=1e-5)


@pytest.mark.parametrize("word", ["terminated", "1", ""])
def test_an_unknown_status_names_its_row_and_the_way_out(tmp_path: Path, word: str) -> None:
    table = f"{HEAD},State\na,1e6,1e7,3.1,finished\nb,2e6,2e7,2.9,{word}\n"
    said = refused(tmp_path, table, status="State")
    held = f"holds {word!r}" if word else "is empty"
    assert "column 'State' (status) must be one of finished, diverged, failed, pruned, running" in said
    assert f"row 2 (run 'b') {held}" in said
    assert "--columns status=" in said
    assert trials(tmp_path, table, status="")["status"].to_list() == ["finished", "finished"]


def test_the_command_line_may_ignore_a_column_but_no_needed_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out = tmp_path / "runs.csv", tmp_path / "out"
    table.write_text(f"{HEAD},status\na,1e6,1e7,3.1,odd\nb,2e6,2e7,2.9,odd\n")
    assert main(["fit", "--from", str(table), "--out", str(out), "--columns", "loss="]) == 2
    assert "loss=; map it" in capsys.readouterr().err
    assert not out.exists()
    assert main(["fit", "--from", str(table), "--out", str(out), "--columns", "status="]) == 0
    assert main(["fit", str(out), "--predict", "params=,tokens=1"]) == 2
    assert "name=value" in capsys.readouterr().err


ROWS: list[dict[str, Any]] = [
    {
        "name": "a",
        "params": 1_000_000,
        "tokens": 1e7,
        "loss": 3.1,
        "config": {"lr": 0.1},
        "state": "finished",
    },
    {"name": "b", "params": "2,000,000", "tokens": 2e7, "loss": float("nan"), "state": "finished"},
    {"name": "c", "params": 3e6, "tokens": 3e7, "loss": None, "state": "crashed", "tags": ["x"]},
    {"name": "d", "params": 4e6, "tokens": 3e7, "loss": "NaN", "state": "finished"},
]


@pytest.mark.parametrize("name", ["runs.jsonl", "runs.ndjson", "runs.json"])
def test_json_is_read_with_the_nan_that_python_writes(tmp_path: Path, name: str) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    found = trials(
        tmp_path, json.dumps(ROWS) if name == "runs.json" else lines, name, run="name", status="state"
    )
    assert found["run"].to_list() == ["a", "b", "c", "d"]
    assert found["params"].to_list() == [1_000_000, 2_000_000, 3_000_000, 4_000_000]
    assert found["status"].to_list() == ["finished", "diverged", "failed", "diverged"]
    assert found["loss"].to_list() == [3.1, None, None, None]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("runs.jsonl", '{"params": 1}\nparams 2\n', "must be valid, but .* line 2: "),
        ("runs.jsonl", "[1, 2]\n", "a run must be an object"),
        ("runs.json", '["a"]', "a run must be an object"),
        ("runs.json", "[]", "is missing; the file has: no columns"),
        ("runs.json", '{"params": [1, 2], "tokens": [1, 2], "loss": [1, 2]}', "is one object of columns"),
    ],
)
def test_json_that_is_no_table_is_refused(tmp_path: Path, name: str, content: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        trials(tmp_path, content, name)


@pytest.mark.parametrize(
    "written", ["30,000,000", "30 000 000", "30_000_000", "30\u202f000\u202f000", " 3e7 "]
)
def test_thousands_may_be_set_apart_in_counts(tmp_path: Path, written: str) -> None:
    found = trials(tmp_path, f'{HEAD},flops\na,"{written}",1e7,3.1,"1e18"\nb,2e6,"2,000,000",2.9,2e18\n')
    assert found["params"].to_list() == [30_000_000, 2_000_000]
    assert found["tokens"].to_list() == [10_000_000, 2_000_000]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("b,7B,2e7,2.9,1e-3", "column 'N' (params) must be numeric, but row 2 (run 'b') holds '7B'; write 7e9"),
        ("b,1.3 M,2e7,2.9,1e-3", "row 2 (run 'b') holds '1.3 M'; write 1.3e6"),
        ("b,2e6,20 tokens,2.9,1e-3", "column 'tokens' must be numeric, but row 2 (run 'b') holds '20 tokens'"),
        ('b,2e6,2e7,"2,905",1e-3', "column 'loss' must be numeric, but row 2 (run 'b') holds '2,905'; write a plain"),
        ('b,"3,00",2e7,2.9,1e-3', "row 2 (run 'b') holds '3,00'; write a plain number"),
        ("b,2e6,-1,2.9,1e-3", "column 'tokens' must be positive and finite, but row 2 (run 'b') holds -1"),
        ("b,2e6,,2.9,1e-3", "column 'tokens' must be positive and finite, but row 2 (run 'b') is empty; correct"),
        ("b,2e6,2e7,-3,1e-3", "column 'loss' must be positive (nats per token), but row 2 (run 'b') holds -3"),
        ("b,2e6,2e7,2.9,0", "column 'lr' must be positive and finite, but row 2 (run 'b') holds 0"),
        ("b,0.4,2e7,2.9,1e-3", "whole counts below 2^63, but row 2 (run 'b') holds 0.4; write 1.3 billion"),
        (",2e6,2e7,2.9,1e-3", "column 'run' must name every run, but is empty in row 2"),
    ],
)  # fmt: skip
def test_a_number_that_is_none_names_row_column_and_remedy(tmp_path: Path, row: str, words: str) -> None:
    said = refused(tmp_path, f"run,N,tokens,loss,lr\na,1e6,1e7,3.1,1e-3\n{row}\n", params="N")
    assert words in said
    assert "Cast it" not in said


def test_a_batch_in_sequences_names_its_row(tmp_path: Path) -> None:
    said = refused(tmp_path, f"{HEAD},batch,steps\na,1e6,1e6,3.1,1e3,1e3\nb,1e6,2e6,2.9,64,1e3\n")
    assert "row 2 (run 'b') has 64 · 1000 against 2e+06" in said


def test_a_missing_file_is_called_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing, out = tmp_path / "none.csv", tmp_path / "out"
    assert main(["fit", "--from", str(missing), "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert f"{missing} is not; correct the path" in said
    assert "free it" not in said
    assert not out.exists()


def test_a_mixture_of_experts_is_refused_by_name(tmp_path: Path) -> None:
    head = "run,params,n_active,tokens,loss"
    dense = f"{head}\na,1e6,1e6,1e7,3.1\nb,2e6,,2e7,2.9\n"
    sparse = f"{dense}c,7e9,1.3e9,3e7,2.5\n"
    said = refused(tmp_path, sparse, active_params="n_active")
    assert "must be dense" in said
    assert "row 3 (run 'c') has 1.3e+09 active of 7e+09 parameters; leave" in said
    assert trials(tmp_path, dense, active_params="n_active")["params"].to_list() == [10**6, 2 * 10**6]


@pytest.mark.parametrize(
    "column,has",
    [
        ("activated_params", "1.3e+09 active of 7e+09 parameters"),
        ("num_experts", "1.3e+09 in column 'num_experts'"),
        ("config.n_routed_experts", "1.3e+09 in column 'config.n_routed_experts'"),
    ],
)
def test_experts_are_seen_without_being_mapped(tmp_path: Path, column: str, has: str) -> None:
    table = f'run,params,{column},tokens,loss\na,1e6,,1e7,3.1\nb,7e9,"1,300,000,000",3e7,2.5\n'
    said = refused(tmp_path, table)
    assert f"row 2 (run 'b') has {has}; leave such runs out" in said
    assert trials(tmp_path, table, **{column: ""}).height == 2


def test_a_spread_of_the_loss_is_no_validation_set(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_text("params,tokens,loss,loss_std,loss_kind,loss_code\n1e6,1e8,3.1,0,smoothed,2.2\n")
    runs = read(str(file), {})
    assert runs.sets["split"].to_list() == ["code"]
    assert set(runs.ignored) == {"loss_std", "loss_kind"}
    mapped = read(str(file), {"loss_std": "loss_code"})
    assert mapped.sets["split"].to_list() == ["std"]
