"""Do a run's steps, evaluations and attempts make one course, the one that its records tell?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import polars as pl

from froude import schedules
from froude.config import Run
from froude.promote.monitor import RATE_TOLERANCE
from froude.promote.verify.verdict import Verdict
from froude.runlog import Record
from froude.study import Study

#: What is read of each table, of which a ledger may be long.
READ = {
    "steps": ["run", "step", "lr", "attempt", "tokens", "world", "workers"],
    "evals": ["step", "split", "attempt", "tokens"],
    "ledger": ["step", "attempt"],
}
COURSE = "steps, evaluations and attempts are those of the records"


def course(study: Study, run: Run, line: list[Record]) -> Iterator[Verdict]:
    """Whether each step up to the newest record is there once, with the attempt, workers, tokens and rate that it had.

    So are the evaluations that were due, and the ledger's attempts. Losses are not computed again.
    """
    if not line:
        return
    ends = [0, *(record.step for record in line)]
    if ends != sorted(ends) or ends[-1] > run.steps:
        yield Verdict(COURSE, False, f"the records' steps are {ends[1:]}, of {run.steps}")
        return
    due = _due(run, line)
    steps, evals, ledger = (
        study.committed(run.name, kind, line).select(names).collect() for kind, names in READ.items()
    )
    faults = [
        *_records(run, line),
        *_steps(run, steps, due),
        *_evals(run, evals, due, line),
        *(f"the ledger's step {step} has {what}" for step, what in _odd(ledger, due, ["attempt"])),
    ]
    attempts = due["attempt"].n_unique()
    seen = f"{steps.height} steps; evaluations: {evals.height}; attempts: {attempts}"
    seen += f"; the newest record is {line[-1].digest[:12]}"
    yield Verdict(COURSE, not faults, faults[0] if faults else seen)


def _due(run: Run, line: list[Record]) -> pl.DataFrame:
    """For each step up to the newest record: attempt and workers of the record that commits it, and its tokens."""
    ends = [record.step for record in line]
    told = pl.DataFrame(
        {
            "step": [range(before + 1, end + 1) for before, end in pairwise([0, *ends])],
            "attempt": [record.attempt for record in line],
            "world": [record.world for record in line],
        },
        schema={"step": pl.List(pl.Int64), "attempt": pl.Int64, "world": pl.Int64},
    )
    steps = told.explode("step").drop_nulls("step")
    return steps.with_columns(tokens=pl.Series(map(run.phases.tokens_at, steps["step"]), dtype=pl.Int64))


def _records(run: Run, line: list[Record]) -> Iterator[str]:
    for record in line:
        if record.tokens != run.phases.tokens_at(record.step):
            yield f"record {record.seq} says {record.tokens:,} tokens at step {record.step}"


def _odd(rows: pl.DataFrame, due: pl.DataFrame, names: list[str]) -> Iterator[tuple[int, str]]:
    """The first step of which a value is not what is due, by name; what is not recorded is not judged."""
    both = rows.join(due, on="step", suffix="_due")
    for name in names:
        wrong = both.filter(pl.col(name) != pl.col(f"{name}_due"))
        if wrong.height:
            first = wrong.sort("step").row(0, named=True)
            yield first["step"], f"{name} {first[name]}, not {first[f'{name}_due']}"


def _steps(run: Run, steps: pl.DataFrame, due: pl.DataFrame) -> Iterator[str]:
    if (others := steps.filter(pl.col("run").ne_missing(run.name))).height:
        yield f"{others.height} steps are of another run"
    yield from _once("step", steps["step"], due["step"])
    rates = pl.Series([run.optimizer.lr * schedules.at_step(run, step) for step in range(due.height)])
    above = pl.col("lr") - pl.col("lr_due")
    # The ladder of the spike policy lowers the rate for a while.
    off = above if run.stability == "ladder" else above.abs()
    wrong = steps.join(due.select("step", lr=rates), on="step", suffix="_due").filter(
        off > RATE_TOLERANCE * pl.col("lr_due")
    )
    if wrong.height:
        yield f"step {wrong['step'].min()!r} has another rate than the recipe's schedule"
    told = due.with_columns(workers="world")
    for step, what in _odd(steps, told, ["attempt", "tokens", "world", "workers"]):
        yield f"step {step} has {what}"


def _evals(run: Run, evals: pl.DataFrame, due: pl.DataFrame, line: list[Record]) -> Iterator[str]:
    own = evals.filter(split="validation")
    wanted = {step for step in due["step"] if run.eval_every and step % run.eval_every == 0}
    wanted |= {run.steps} if line[-1].kind == "finished" and line[-1].step == run.steps else set()
    yield from _once("evaluation of step", own["step"], pl.Series(sorted(wanted), dtype=pl.Int64))
    if evals.select("step", "split").is_duplicated().any():
        yield "a validation set is there twice for one step"
    for step, what in _odd(evals, due, ["attempt", "tokens"]):
        yield f"the evaluation of step {step} has {what}"


def _once(what: str, have: pl.Series, due: pl.Series) -> Iterator[str]:
    """What is missing, there twice, or not due, the first of each."""
    if (twice := have.filter(have.is_duplicated())).len():
        yield f"{what} {twice.min()!r} is there twice"
    if (missing := due.filter(~due.is_in(have.implode()))).len():
        yield f"{what} {missing.min()!r} is missing"
    if (more := have.filter(~have.is_in(due.implode()))).len() or have.null_count():
        yield f"{what} {more.min()!r} is not the run's"
