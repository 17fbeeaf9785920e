"""What a run went through, from its log and the times of its steps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from froude import Study
from froude.attempts import history, trace
from froude.runlog import NO_BASE, Record

BEGAN = datetime(2025, 3, 1, 12, tzinfo=UTC)
STEP = 0.05


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def record(
    seq: int, kind: str, attempt: int, step: int, seconds: float, world: int = 1, **meta: object
) -> Record:
    base = NO_BASE if kind == "attempt" or not step else seq - 2
    return Record(
        "r", seq, None, base, attempt, f"g{attempt}", kind, step, 10 * step, at(seconds), world, "", meta=dict(meta)
    )  # fmt: skip


def steps(*rows: tuple[int, float]) -> pl.DataFrame:
    return pl.DataFrame(
        {"attempt": [a for a, _ in rows], "time": [at(s) for _, s in rows]},
        schema={"attempt": pl.Int64, "time": pl.Datetime("us", "UTC")},
    )


def test_the_log_tells_the_world_sizes_and_what_each_restart_cost(finished: Study) -> None:
    run = history(finished, "large")
    assert run is not None
    assert run.world_sizes == [3, 2, 3]
    assert run.restarts == 2
    assert run.finished
    assert (run.step, run.loss) == (1300, 1.245)
    assert [attempt.step for attempt in run.attempts] == [0, 433, 900]
    last = 9.0 + 432 * STEP
    assert run.recovery_seconds == pytest.approx([47.5 - last, 101.0 - (47.5 + 466 * STEP)], abs=1e-5)
    whole = 101.0 + 399 * STEP
    assert run.seconds == pytest.approx(whole)
    assert run.goodput == pytest.approx(1 - sum(run.recovery_seconds) / (whole - 9.0))


def test_clocks_that_contradict_each_other_tell_no_recovery_and_no_goodput() -> None:
    """The first host is 30 s ahead of the second, and the pause was of 10."""
    records = [
        record(0, "attempt", 1, 0, 30),
        record(1, "checkpoint", 1, 2, 40),
        record(2, "attempt", 2, 2, 15),
    ]
    run = trace("r", records, steps((1, 31), (1, 40), (2, 20), (2, 70)))
    assert run is not None
    assert run.recovery_seconds == []
    assert run.goodput is None


def test_a_run_has_a_final_loss_once_it_is_finished(promoted: Any, tmp_path: Path) -> None:
    """Its evaluations on the way are none."""
    study = promoted.copy(tmp_path / "running", lives=2)
    run = history(study, "large")
    assert run is not None
    assert study.evals().filter(pl.col("run") == "large").collect().height == 9
    assert (run.finished, run.step, run.loss) == (False, 900, None)


def test_a_run_that_has_not_begun_has_no_history(tmp_path: Path) -> None:
    assert history(Study(tmp_path / "none"), "large") is None


def test_a_run_without_a_step_yet() -> None:
    run = trace("r", [record(0, "attempt", 1, 0, 0, run_id="a")], steps())
    assert run is not None
    assert (run.world_sizes, run.restarts, run.recovery_seconds) == ([], 0, [])
    assert (run.step, run.goodput, run.finished) == (0, None, False)


def test_recovery_counts_from_the_last_step_even_if_it_was_lost() -> None:
    log = [
        record(0, "attempt", 1, 0, 0, run_id="a"),
        record(1, "checkpoint", 1, 10, 20),
        record(2, "attempt", 2, 10, 35, run_id="a", alive=at(30).timestamp()),
    ]
    run = trace("r", log, steps((1, 10), (1, 20), (2, 40), (2, 50)))
    assert run is not None
    assert run.recovery_seconds == pytest.approx([10.0])
    assert run.goodput == pytest.approx((10 + 10) / 40)


def test_an_attempt_that_kept_no_step_prolongs_the_recovery() -> None:
    log = [
        record(0, "attempt", 1, 0, 0, 3, run_id="a"),
        record(1, "checkpoint", 1, 10, 20, 3),
        record(2, "attempt", 2, 10, 25, 2, run_id="a"),
        record(3, "attempt", 3, 10, 30, 3, run_id="a"),
    ]
    run = trace("r", log, steps((1, 10), (1, 20), (3, 36)))
    assert run is not None
    assert run.world_sizes == [3, 3]
    assert run.attempts[1].first is None
    assert run.recovery_seconds == pytest.approx([16.0])


def test_a_pause_between_two_drivers_is_no_recovery_and_no_time_of_the_run() -> None:
    log = [
        record(0, "attempt", 1, 0, 0, run_id="a"),
        record(1, "checkpoint", 1, 10, 20),
        record(2, "attempt", 2, 10, 9000, run_id="b"),
    ]
    run = trace("r", log, steps((1, 10), (1, 20), (2, 9006), (2, 9010)))
    assert run is not None
    assert run.attempts[1].resumed
    assert run.recovery_seconds == []
    assert run.attempts[1].start == pytest.approx(20.0)
    assert run.attempts[1].first == pytest.approx(26.0)
    assert run.seconds == pytest.approx(30.0)
