"""A trial by a command: finished, diverged or failed, as the page on trainers of one's own says."""

from __future__ import annotations

import os

import pytest

from froude.external import process
from froude.external.trial import METRICS, Failed, folder_of, run_trial, set_aside
from froude.material import Material
from froude.section import ConfigError
from froude.space import Trial

FINISH = "\ntell(step=10, validation_loss=3.0)\n"


def train(place, *runs, **more):
    return run_trial(Trial("t", runs, **more), place, material=Material(), roots=[os.getcwd()])


def test_a_finished_run_has_rows_like_those_of_froude(tmp_path, commanded):
    run = commanded(seed=7)
    rows = train(tmp_path, run)
    (row,) = rows.trials
    assert row | {
        "run": "r", "status": "finished", "loss": 3.07, "params": 100, "flops": 600.0 * run.tokens, "attempts": 1,
        "trial": "t", "trainer": "external", "corpus": None, "steps": 10, "reason": None, "last_loss": 3.07,
    } == row  # fmt: skip
    assert [step["step"] for step in rows.steps] == list(range(1, 11))
    assert rows.steps[0] | {"lr": run.optimizer.lr, "tokens": 768, "loss": 3.9, "attempt": 1} == rows.steps[0]
    assert [(each["step"], each["split"], each["loss"]) for each in rows.evals] == [(10, "validation", 3.07)]


@pytest.mark.parametrize("end", ["", "sys.exit(1)", "os.kill(os.getpid(), 9)", FINISH])
def test_a_diverged_run_is_a_row_however_its_command_ends(tmp_path, commanded, end):
    run = commanded("tell(step=1, loss=4.0); tell(step=2, loss=float('nan'))\n" + end, trainer__retries=3)
    (row,) = train(tmp_path, run).trials
    assert (row["status"], row["loss"], row["last_loss"], row["attempts"]) == (
        "diverged",
        None,
        *row_end(end),
        1,
    )
    assert row["reason"] == "the loss was not finite at step 2"


def row_end(end: str) -> tuple[float]:
    return (3.0,) if end == FINISH else (4.0,)


def test_a_run_that_ends_above_its_start_has_diverged(tmp_path, commanded):
    code = "\nfor step in range(1, 11): tell(step=step, loss=3.0 + step)\ntell(step=10, validation_loss=13.0)"
    (row,) = train(tmp_path, commanded(code)).trials
    assert (row["status"], "above its start" in row["reason"]) == ("diverged", True)


def test_a_command_that_fails_is_tried_again_and_may_go_on_where_it_was(tmp_path, commanded):
    code = """
for step in range(1 + 4 * (attempt - 1), 11):
    tell(step=step, loss=4.0 - attempt / 10)
    if attempt < 3 and step == 5 * attempt:
        os.kill(os.getpid(), 9)
"""
    rows = train(tmp_path, commanded(code + FINISH, trainer__retries=2))
    assert (rows.trials[0]["status"], rows.trials[0]["attempts"]) == ("finished", 3)
    assert [row["step"] for row in rows.steps] == list(range(1, 11))
    assert [row["loss"] for row in rows.steps] == [3.9] * 4 + [3.8] * 4 + [3.7] * 2


def test_evaluations_before_a_restart_stay_and_those_after_its_checkpoint_do_not(tmp_path, commanded):
    code = """
if attempt == 1:
    for step in range(1, 7):
        tell(step=step, loss=4.0)
        tell(step=step, validation_loss=4.0 + step)
    sys.exit(1)
for step in range(5, 11):
    tell(step=step, loss=3.0)
tell(step=10, validation_loss=3.0)
"""
    rows = train(tmp_path, commanded(code, trainer__retries=1))
    assert [(each["step"], each["loss"]) for each in rows.evals] == [
        *((step, 4.0 + step) for step in range(1, 5)),
        (10, 3.0),
    ]


def test_a_command_that_fails_in_each_attempt_tells_its_last_line(tmp_path, commanded):
    with pytest.raises(Failed, match='exited with 3, and wrote at last "attempt 2"') as caught:
        train(tmp_path, commanded("print('attempt', attempt); sys.exit(3)", trainer__retries=1))
    assert caught.value.attempts == 2


def test_a_command_that_hangs_is_ended_by_its_time_limit(tmp_path, commanded, monkeypatch):
    monkeypatch.setattr(process, "POLL_SECONDS", 0.05)
    with pytest.raises(Failed, match=r"time limit of 0\.2 s"):
        train(tmp_path, commanded("time.sleep(600)", trainer__time_limit=0.2))


@pytest.mark.parametrize(
    ("code", "changes", "words"),
    [
        ("pass", {}, "validation_loss of its last step, 10, .* wrote nothing"),
        ("tell(step=9, validation_loss=2.0)", {}, "its last is of step 9"),
        (FINISH, {"trainer__params": 0}, r'"params": N'),
        ("tell(params=99)" + FINISH, {}, "`trainer.params` says, 100 for r, but its command tells 99"),
        ("print('{', file=open(os.environ['FROUDE_METRICS'], 'a'))", {}, "must be a JSON object"),
    ],
)
def test_what_breaks_a_rule_is_told_at_once_and_not_tried_again(tmp_path, commanded, code, changes, words):
    with pytest.raises(ConfigError, match=words):
        train(tmp_path, commanded(code, trainer__retries=5, **changes))
    assert len(list(tmp_path.rglob("metrics-*"))) == 0


def test_what_an_earlier_sweep_left_is_no_result_of_this_one(tmp_path, commanded):
    run = commanded(
        "if attempt == 1 and not os.path.exists('seen'):\n    open('seen', 'w')"
        + FINISH.replace("\n", "\n    ")
        + "\n    sys.exit(1)"
    )
    for why in (Failed, ConfigError):  # the second finds nothing new to tell
        with pytest.raises(why):
            train(tmp_path, run)
    folder = folder_of(tmp_path, Trial("t", (run,)), run)
    assert (folder / "seen").exists()
    with pytest.raises(ConfigError, match="wrote nothing"):
        train(tmp_path, run)
    other = run.replace({"trainer.params": 101}, name="r")
    with pytest.raises(Failed):  # of another run nothing is left
        train(tmp_path, other)


def test_branches_are_runs_of_their_own_up_to_the_loss_that_was_asked_for(tmp_path, commanded):
    code = "n = json.load(open(os.environ['FROUDE_RUN']))['tokens'] // 768\n"
    code += "tell(step=n, validation_loss=4 - n / 10)"
    runs = [commanded(code, name=f"n{n}", steps=n) for n in (5, 10, 20)]
    told: list[tuple[int, int]] = []
    rows = run_trial(
        Trial("t", tuple(runs), stop_loss=3.0), tmp_path, material=Material(), roots=["."],
        progress=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    assert [(row["run"], row["loss"]) for row in rows.trials] == [("n5", 3.5), ("n10", 3.0)]
    assert {total for _, total in told} <= {35}


def test_metrics_may_be_parquet(tmp_path, commanded):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"step": [10], "validation_loss": [2.5]}), tmp_path / "made.parquet")
    copy = f"import shutil; shutil.copy({str(tmp_path / 'made.parquet')!r}, 'metrics.parquet')"
    (row,) = train(tmp_path / "trials", commanded(copy)).trials
    assert row["loss"] == 2.5
    assert not (tmp_path / "trials" / "t" / METRICS).exists()


def test_lines_and_parquet_of_one_attempt_are_set_aside_together(tmp_path):
    lines, parquet = tmp_path / METRICS, (tmp_path / METRICS).with_suffix(".parquet")
    lines.write_text("first")
    assert [file.name for file in set_aside(tmp_path)] == ["metrics-001.jsonl"]
    lines.write_text("second")
    parquet.write_text("second")
    assert [file.name for file in set_aside(tmp_path)] == ["metrics-001.jsonl", "metrics-002.parquet"]
    assert not lines.exists()
    assert not parquet.exists()
    assert [file.name for file in set_aside(tmp_path)] == ["metrics-001.jsonl", "metrics-002.parquet"]
