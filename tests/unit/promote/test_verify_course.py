"""What a run's log says of its steps, evaluations and attempts, forged with every hash made to fit again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from honest_run import failed, forge, records, rewrite

from froude.promote.verify import locate, verify_run
from froude.runlog import Record

pytestmark = pytest.mark.slow

COURSE = "steps, evaluations and attempts are those of the records"


def seen(folder: Path) -> str:
    return next(check.seen for check in verify_run(*locate(str(folder))) if check.name == COURSE)


Change = Callable[[pl.DataFrame], pl.DataFrame]
FORGED: dict[str, tuple[str, Change, str]] = {
    "no evaluation": ("evals", lambda rows: rows.clear(), "evaluation of step 5 is missing"),
    "a second one": ("evals", lambda rows: pl.concat([rows, rows]), "evaluation of step 5 is there twice"),
    "one too early": ("evals", lambda rows: rows.with_columns(step=3), "evaluation of step 5 is missing"),
    "a step left out": ("steps", lambda rows: rows.clear(), "step 5 is missing"),
    "a step twice": ("steps", lambda rows: pl.concat([rows, rows]), "step 5 is there twice"),
    "another's step": (
        "steps",
        lambda rows: rows.with_columns(run=pl.lit("other")),
        "1 steps are of another run",
    ),
    "another rate": ("steps", lambda rows: rows.with_columns(pl.col("lr") * 3), "step 5 has another rate"),
    "other tokens": (
        "steps",
        lambda rows: rows.with_columns(pl.col("tokens") * 10),
        "step 5 has tokens 38400, not 3840",
    ),
    "other workers": ("steps", lambda rows: rows.with_columns(world=64), "step 5 has world 64, not 1"),
    "an attempt": (
        "ledger",
        lambda rows: rows.with_columns(attempt=7),
        "the ledger's step 5 has attempt 7, not 1",
    ),
}


@pytest.mark.parametrize("case", FORGED)
def test_rows_that_are_not_of_the_records_are_caught(study: Path, case: str) -> None:
    kind, change, words = FORGED[case]
    forge(study, kind, lambda rows: change(rows).cast(rows.schema))
    assert failed(study) == [COURSE]
    assert seen(study).startswith(words)


def test_an_honest_run_is_counted(study: Path) -> None:
    assert failed(study) == []
    newest = records(study)[-1].digest[:12]
    assert seen(study) == f"5 steps; evaluations: 1; attempts: 1; the newest record is {newest}"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda record: replace(record, tokens=10 * record.tokens), "record 1 says 15,360 tokens at step 2"),
        (lambda record: replace(record, world=8 * record.world), "step 1 has world 1, not 8"),
    ],
)
def test_records_that_say_otherwise_are_caught(
    study: Path, change: Callable[[Record], Record], words: str
) -> None:
    rewrite(study, change)
    assert COURSE in failed(study)
    assert seen(study).startswith(words)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: replace(record, scalars={**record.scalars, "stability": 5}),
        lambda record: replace(record, meta={**record.meta, "material": 5}),
        lambda record: replace(record, step=2**62) if record.kind == "finished" else record,
    ],
)
def test_records_that_no_writer_leaves_fail_checks_and_end_none(
    study: Path, change: Callable[[Record], Record]
) -> None:
    names = [check.name for check in verify_run(*locate(str(study)))]
    rewrite(study, change)
    assert failed(study)
    assert [check.name for check in verify_run(*locate(str(study)))][-1] == names[-1].replace(
        "5", str(records(study)[-1].step)
    )
