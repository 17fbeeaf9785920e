"""How long steps take, read off a study's own trials: trunks are trained once, their branches' tails besides."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from froude.config import ConfigError, Run
from froude.laws.loss.trade import Part
from froude.promote.choice.step_time import FILE, StepTime, Timed, keep, of_cluster, of_study, of_trials
from froude.study import Study

TARGET = Run(name="target", tokens=768 * 100)

START, OVERHEAD, PER_FLOP, TAIL = 0.5, 0.004, 2e-11, 0.2
SCHEMA = {
    "run": pl.String,
    "trial": pl.String,
    "status": pl.String,
    "workers": pl.Int64,
    "steps": pl.Int64,
    "flops": pl.Float64,
    "seconds": pl.Float64,
    "decay_fraction": pl.Float64,
    "trainer": pl.String,
}


def trials(*, tail: float | None = TAIL, trunks: int = 6, alone: int = 6) -> pl.DataFrame:
    """Trunks of three branches, told as `run_trial` tells them, and trials of one run; all of one worker."""
    rows = []
    for number in range(trunks):
        done, per_step = 0, 1e7 * 2**number
        for steps in (100, 200, 400):
            start = round(steps * (1 - TAIL))
            made = max(start - done, 0) + steps - start
            done = max(start, done)
            seconds = START * (steps == 100) + made * (OVERHEAD + PER_FLOP * per_step)
            of = f"trunk{number}-n{steps}", f"trunk{number}", "finished", 1, steps, steps * per_step
            rows.append((*of, seconds, tail, None))
    for number in range(alone):
        steps, per_step = 50 * (number + 1), 3e8 / (number + 1) ** 2
        seconds = START + steps * (OVERHEAD + PER_FLOP * per_step)
        rows.append(
            (f"run{number}", f"run{number}", "finished", 1, steps, steps * per_step, seconds, tail, None)
        )
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def test_a_trunk_and_its_tails_are_counted_once() -> None:
    found = of_trials(trials())
    assert found is not None
    assert found.overhead == pytest.approx(OVERHEAD, rel=1e-6)
    assert found.per_flop == pytest.approx(PER_FLOP, rel=1e-6)


def test_trunks_that_do_not_say_how_long_their_tails_are_do_not_count() -> None:
    found = of_trials(trials(tail=None))
    assert found is not None
    assert found.overhead == pytest.approx(OVERHEAD, rel=1e-6)


def test_branches_that_a_command_trains_are_counted_whole() -> None:
    found = trials(trunks=0, alone=12).with_columns(
        trial=pl.concat_str(pl.lit("t"), (pl.int_range(pl.len()) // 2).cast(pl.String)),
        trainer=pl.lit("external"),
    )
    taken = of_trials(found.with_columns(seconds=pl.col("seconds") - START))
    assert taken is not None
    assert taken.overhead == pytest.approx(OVERHEAD, rel=1e-6)


def test_too_few_trials_tell_nothing() -> None:
    assert of_trials(trials(trunks=2, alone=2)) is None


def test_what_a_cluster_took_goes_by_its_number_of_workers() -> None:
    timed = [Timed(1, 100, 1.1), Timed(1, 300, 3.1), Timed(4, 100, 0.5), Timed(4, 300, 0.9)]
    found = of_cluster(timed, StepTime(0.1, 0.001, "trials"))
    run = [Part(3600 * 200.0, 200)]
    assert found.hours(run, flops_per_token=10.0, workers=1) == pytest.approx(2.1)
    assert found.hours(run, flops_per_token=10.0, workers=4) == pytest.approx(0.7)
    assert found.hours(run, flops_per_token=10.0, workers=2) == pytest.approx(0.1 + 0.001 * 10 * 200 / 2)
    assert "by 1 and 4 workers" in found.source


@pytest.mark.parametrize(("small", "large"), [(2.0, 1.0), (1.0, 4.0)])
def test_no_step_is_said_to_take_less_than_nothing(small: float, large: float) -> None:
    """Steps of the larger batch that were quicker, or grew by more than the batch did, are noise."""
    found = of_cluster([Timed(1, 100, small), Timed(1, 300, large)], None).measured[1]
    assert found.overhead >= 0
    assert found.per_token >= 0
    assert found.overhead + 300 * found.per_token == pytest.approx(large)


def test_a_study_keeps_what_was_measured_for_its_target(tmp_path: Path) -> None:
    study = Study(tmp_path)
    assert of_study(study, TARGET) is None
    keep(study, TARGET, [Timed(2, 768, 0.5)])
    found = of_study(Study(tmp_path), TARGET)
    assert found is not None
    assert found.measured[2] == (0.5, 0.0)
    assert of_study(study, TARGET.replace(seed=1)) is None  # another run's steps may take another time
    for changes in ({"workers": 4}, {"device": "cuda"}, {"compute.checkpointing": "blocks"}):
        assert of_study(study, TARGET.replace(changes)) is None
    (tmp_path / FILE).write_text("{")
    with pytest.raises(ConfigError, match="delete it"):
        of_study(study, TARGET)
