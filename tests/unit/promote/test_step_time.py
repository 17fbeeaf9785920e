"""How long steps take, read off a study's own trials: trunks are trained once, their branches' tails besides."""

from __future__ import annotations

import polars as pl
import pytest

from froude.promote.choice.step_time import of_trials

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
            rows.append((*of, seconds, tail))
    for number in range(alone):
        steps, per_step = 50 * (number + 1), 3e8 / (number + 1) ** 2
        seconds = START + steps * (OVERHEAD + PER_FLOP * per_step)
        rows.append((f"run{number}", f"run{number}", "finished", 1, steps, steps * per_step, seconds, tail))
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def test_a_trunk_and_its_tails_are_counted_once() -> None:
    found = of_trials(trials())
    assert found is not None
    assert found.overhead == pytest.approx(OVERHEAD, rel=1e-6)
    assert found.per_flop == pytest.approx(PER_FLOP, rel=1e-6)


def test_trunks_that_do_not_say_how_long_their_tails_are_do_not_count() -> None:
    found = of_trials(trials(tail=None))
    assert found is not None
    assert "6 trials" in found.source
    assert found.overhead == pytest.approx(OVERHEAD, rel=1e-6)


def test_too_few_trials_tell_nothing() -> None:
    assert of_trials(trials(trunks=2, alone=2)) is None
