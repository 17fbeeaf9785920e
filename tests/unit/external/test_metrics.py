"""What a trainer may tell, and what is an error that names the line, the rule and the remedy."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from froude.config import Run
from froude.external.follow import Tail
from froude.external.metrics import read
from froude.section import ConfigError

RUN = Run(tokens=7680, name="r")


def told(folder: Path, *lines: object) -> Path:
    file = folder / "metrics.jsonl"
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    file.write_text("".join(f"{line}\n" for line in text))
    return file


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("step 1 loss 2", "must be a JSON object.*line 1"),
        ("[1, 2]", "must be a JSON object"),
        ("9" * 5000, "must be a JSON object"),
        ('{"step": 1, "lo', "must be a JSON object"),
        ('{"step": 1, "more": {"loss": 1.0}', "must be a JSON object"),
        ('[{"step": 1}, {"step": 2, "loss": 1.0}', "must be a JSON object"),
        ('step 1 {"step": 1, "loss": 2.0}', "must be a JSON object"),
        ({"loss": 2.0}, "must have its `step`"),
        ({"step": 0, "loss": 2.0}, "1 to 10, but line 1 .* has 0; count from 1"),
        ({"step": 11, "loss": 2.0}, "1 to 10, .*has 11"),
        ({"step": 1.5, "loss": 2.0}, "has 1.5"),
        ({"step": 1, "loss": "low"}, "`loss` must be a number.*'low'"),
        ({"step": 1, "loss": True}, "`loss` must be a number"),
        ({"step": 1, "loss": -1.0}, "nats per token"),
        ({"step": 2, "loss": 2.0, "tokens": 768}, "1,536 at step 2"),
        ({"params": 0}, "`params` must be a whole number above 0"),
        ({"params": 1.5}, "whole number"),
        ({"flops_per_token": math.inf}, "number above 0"),
        ({"step": 1, "validation_loss": [2]}, "must be a number"),
    ],
)
def test_a_line_that_breaks_a_rule_is_named(tmp_path, line, words):
    with pytest.raises(ConfigError, match=words):
        read(told(tmp_path, line), RUN)


def test_lines_become_steps_evaluations_and_a_size(tmp_path):
    file = told(
        tmp_path,
        {"params": 5e3, "flops_per_token": 3e4, "anything": "else"},
        "",
        {"step": 1, "tokens": 768, "loss": 5, "lr": 0.1, "seconds": "0.5"},
        {"step": 4, "loss": 3.0},
        {"step": 4, "validation_loss": 3.5, "validation_loss_code": 2.5},
        {"validation_loss": 3.25, "step": 10},
    )
    found = read(file, RUN)
    assert found.size == {"params": 5000, "flops_per_token": 30000}
    assert [(row["step"], row["tokens"], row["loss"]) for row in found.steps.values()] == [
        (1, 768, 5.0),
        (4, 3072, 3.0),
    ]
    assert found.steps[1] | {"lr": 0.1, "seconds": 0.5} == found.steps[1]
    assert found.evals == {(4, "validation"): 3.5, (4, "code"): 2.5, (10, "validation"): 3.25}
    assert (found.final, found.why_diverged) == (3.25, "")


def test_a_trainer_that_goes_back_takes_back_what_it_told(tmp_path):
    steps = [{"step": step, "loss": float(step)} for step in (1, 2, 3, 4)]
    again = [{"step": 3, "loss": 9.0}]
    found = read(told(tmp_path, *steps, {"step": 4, "validation_loss": 1.0}, *again), RUN)
    assert {step: row["loss"] for step, row in found.steps.items()} == {1: 1.0, 2: 2.0, 3: 9.0}
    assert found.evals == {}


@pytest.mark.parametrize(
    "loss", ["NaN", "Infinity", "-Infinity", '"nan"', "null", "1" + "0" * 400], ids=lambda text: text[:9]
)
def test_a_loss_that_is_no_number_has_diverged_unless_the_trainer_went_back(tmp_path, loss):
    if loss == "-Infinity":
        with pytest.raises(ConfigError, match="nats per token"):
            read(told(tmp_path, f'{{"step": 2, "loss": {loss}}}'), RUN)
        return
    line = f'{{"step": 2, "loss": {loss}}}'
    assert read(told(tmp_path, line), RUN).why_diverged == "the loss was not finite at step 2"
    assert read(told(tmp_path, line, {"step": 2, "loss": 1.0}), RUN).why_diverged == ""
    evaluated = read(told(tmp_path, line.replace("loss", "validation_loss")), RUN)
    if loss == "null":  # of a step without an evaluation
        assert (evaluated.evals, evaluated.why_diverged) == ({}, "")
    else:
        assert "validation loss was not finite" in evaluated.why_diverged


def test_a_trainer_may_say_that_it_diverged(tmp_path):
    said = {"status": "diverged", "reason": "loss above 20"}
    assert read(told(tmp_path, said), RUN).why_diverged == "loss above 20"
    before, after = {"step": 3, "loss": 30.0}, {"step": 2, "loss": 3.0}
    assert read(told(tmp_path, before, said, after), RUN).why_diverged == ""  # it went back, and goes on
    again = {"step": 5, "loss": 9.1}
    assert read(told(tmp_path, again, again | said), RUN).why_diverged == "loss above 20"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "it wrote nothing; append"),
        ([{"step": 9, "loss": 1.0}], "losses up to step 9"),
        ([{"step": 9, "validation_loss": 1.0}], "its last is of step 9"),
        ([{"step": 10, "val_loss": 1.0}], "has only val_loss .*name it validation_loss"),
    ],
)
def test_what_an_unfinished_run_lacks_is_told(tmp_path, lines, words):
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(read(told(tmp_path, *lines), RUN).lacking())


def test_what_a_folder_lacks_is_told_as_of_a_folder(tmp_path):
    told(tmp_path, {"step": 9, "loss": 1.0})
    (tmp_path / "metrics").mkdir()
    assert (
        "(the folder metrics beside it is not read); append"
        in read(tmp_path / "metrics.jsonl", RUN).lacking()
    )
    assert (
        read(tmp_path / "metrics", RUN).lacking().endswith("it has nothing; log validation_loss at that step")
    )


def test_a_line_that_is_being_written_is_left_for_later(tmp_path):
    file = told(tmp_path, {"step": 1, "loss": 2.0})
    file.write_text(file.read_text() + '{"step": 2, "lo')
    assert list(read(file, RUN).steps) == [1]


ROW = '{"step": 3, "loss": 1.0, "more": {"step": 9}}'


@pytest.mark.parametrize(
    ("line", "steps"),
    [
        ('{"step": 8, "lo' + ROW, [3]),
        ('{"step": 8, "loss": ' + ROW, [3]),
        ('{"step": 8, "more": {"step": 1}, "reason": "caf\u00e9 {' + ROW, [3]),
        ('{"step": 2, "loss": 2.0}' + ROW, [2, 3]),
        ('{"step": 2, "loss": 2.0} {"step": 8, "lo' + ROW, [2, 3]),
        ('{"step": 8, "lo{"params": 5}', []),
    ],
)
def test_a_killed_trainer_s_half_line_is_left_out_and_what_the_next_one_appended_to_it_counts(
    tmp_path, line, steps
):
    file = told(tmp_path, {"step": 1, "loss": 3.0}, line, {"step": 4, "loss": 1.0})
    assert list(read(file, RUN).steps) == [1, *steps, 4]
    assert Tail(file, RUN, 0).read().steps == read(file, RUN).steps
    named = RUN.replace({"trainer": {"command": ["train"], "series": {"step": "at"}}}, name="r")
    file.write_text(file.read_text().replace('"step"', '"at"'))
    assert list(read(file, named).steps) == [1, *steps, 4]
    with pytest.raises(ConfigError, match="line 4 of"):
        read(told(tmp_path, {"step": 1, "loss": 3.0}, line, "", "no line"), RUN)


def test_parquet_tells_the_same(tmp_path):
    lines = [{"params": 7}, {"step": 1, "loss": 2.0}, {"step": 10, "validation_loss": 1.5}]
    table = pa.table(
        {
            "params": pa.array([7, None, None], pa.int64()),
            "step": pa.array([None, 1, 10], pa.int64()),
            "loss": pa.array([None, 2.0, None], pa.float64()),
            "validation_loss": pa.array([None, None, 1.5], pa.float64()),
        }
    )
    pq.write_table(table, tmp_path / "m.parquet")
    one, other = read(tmp_path / "m.parquet", RUN), read(told(tmp_path, *lines), RUN)
    assert (one.steps, one.evals, one.size) == (other.steps, other.evals, other.size)
    (tmp_path / "m.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match="whole Parquet file"):
        read(tmp_path / "m.parquet", RUN)


LINES = st.lists(
    st.one_of(
        st.builds(
            lambda step, loss: {"step": step, "loss": loss}, st.integers(1, 10), st.floats(0, 9, width=16)
        ),
        st.builds(
            lambda step, loss: {"step": step, "validation_loss": loss},
            st.integers(0, 10),
            st.floats(0, 9, width=16),
        ),
        st.just({}),
    ),
    max_size=20,
)


@pytest.mark.slow
@given(lines=LINES, cuts=st.lists(st.integers(0, 2000), max_size=5))
def test_a_file_read_in_pieces_tells_what_it_tells_in_one(tmp_path_factory, lines, cuts):
    whole = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = tmp_path_factory.mktemp("tail") / "metrics.jsonl"
    tail = Tail(file, RUN, 0)
    for cut in [*sorted(min(cut, len(whole)) for cut in cuts), len(whole)]:
        file.write_bytes(whole[:cut])
        found = tail.read()
    expected = read(file, RUN)
    assert (found.steps, found.evals, found.step) == (expected.steps, expected.evals, expected.step)
    # Each step that is kept has the loss that was told of it last.
    last = {line["step"]: line["loss"] for line in lines if "loss" in line}
    assert all(row["loss"] == last[step] for step, row in found.steps.items())


def test_another_file_in_its_place_is_read_from_its_beginning(tmp_path):
    file = told(tmp_path, *({"step": step, "loss": 1.0, "note": "old"} for step in range(1, 9)))
    tail = Tail(file, RUN, 0)
    assert tail.read().step == 8
    told(tmp_path, {"step": 1, "loss": 2.0})
    assert [row["loss"] for row in tail.read().steps.values()] == [2.0]


@pytest.mark.parametrize("renamed", [False, True])
def test_a_file_that_was_written_anew_is_not_taken_for_one_that_has_grown(tmp_path, renamed):
    # Alike in what was there when it was first read, or in all by which one file is known again.
    first = {"params": 100, "note": "the same" * 9 * renamed}
    file = told(tmp_path, first)
    tail = Tail(file, RUN, 0)
    tail.read()
    told(tmp_path, first, *({"step": step, "loss": 1.0} for step in range(1, 5)))
    assert tail.read().step == 4
    if renamed:
        file.rename(tmp_path / "old.jsonl")
    told(tmp_path, first, *({"step": step, "loss": 2.0} for step in range(1, 9)))
    found = tail.read()
    assert ([row["loss"] for row in found.steps.values()], found.went_back) == ([2.0] * 8, True)


def test_a_writer_that_replaces_its_file_each_time_goes_on_with_it(tmp_path):
    rows = [{"step": step, "loss": 1.0} for step in range(1, 9)]
    file = told(tmp_path, *rows[:4])
    tail = Tail(file, RUN, 0)
    tail.read()
    file.rename(tmp_path / "old.jsonl")  # which keeps its inode from being used again
    told(tmp_path, *rows)
    found = tail.read()
    assert (found.step, found.went_back) == (8, False)
