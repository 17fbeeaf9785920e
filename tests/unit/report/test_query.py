"""The query that a report and README show: does it find what a ledger skips, repeats or leaves out?"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from froude import Study
from froude.promote.recipe import seal
from froude.report.query import query
from froude.report.view import View, gather

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    Promoted = Any  # of conftest.py, which is no module to import from


@pytest.fixture(scope="module")
def view(finished: Study, promoted: Promoted) -> View:
    return gather(finished, fits=promoted.fits)


def test_the_query_says_that_no_token_was_lost(view: View) -> None:
    assert answer(view) == {"expected": 998_400, "skipped": 0, "repeated": 0, "skipped_by_policy": 0}
    assert answer_of_readme(view.url) == answer(view)


@pytest.mark.parametrize(
    ("tamper", "skipped", "repeated", "by_policy"),
    [
        (lambda rows: rows.slice(1), 64, 0, 0),
        (lambda rows: pl.concat([rows, rows.slice(5, 2)]), 0, 128, 0),
        (lambda rows: rows.with_columns(first_sample=pl.col("first_sample").replace({7: 8})), 64, 64, 0),
        (lambda rows: rows.with_columns(step=pl.col("step").replace({3: 2})), 12 * 64, 12 * 64, 0),
        # The plan then begins after what was left out: all others are in another step than theirs.
        (
            lambda rows: rows.with_columns(disposition=pl.lit("skipped_by_policy")),
            1300 * 768,
            867 * 768,
            433 * 768,
        ),
    ],
    ids=["lost", "repeated", "another sample", "another step", "not trained"],
)
def test_the_query_finds_a_tampered_ledger(
    promoted, tmp_path: Path, tamper, skipped: int, repeated: int, by_policy: int
) -> None:
    study = promoted.copy(tmp_path / "tampered", lives=3)
    (file,) = (study.location / "runs" / "large" / "parts").path.glob("ledger-g1-*.parquet")
    tamper(pl.read_parquet(file)).write_parquet(file)
    view = gather(study, fits=promoted.fits)
    assert answer(view) == {
        "expected": 998_400,
        "skipped": skipped,
        "repeated": repeated,
        "skipped_by_policy": by_policy,
    }
    assert answer_of_readme(study.location.url) == answer(view)
    assert view.account is not None
    assert view.account.repeated == repeated
    assert not view.account.whole


LONG, RAMP = 768 << 12, [[768 * 300, 2], [768 * 1100, 3]]


@pytest.mark.parametrize(
    "change",
    [
        {"batch": LONG, "tokens": 1300 * LONG},  # beyond 2^31 tokens
        {"schedule.ramp": RAMP, "tokens": 768 * (300 + 2 * 400 + 3 * 600)},
    ],
    ids=["long", "ramped"],
)
def test_the_query_counts_the_tokens_of_any_run(
    promoted: Promoted, tmp_path: Path, change: dict[str, Any]
) -> None:
    run = promoted.recipe.run.replace(change)
    assert run.steps == 1300
    recipe = seal(
        run=run,
        profile="production",
        fits={},
        fingerprints={},
        extrapolation={},
        checks=(),
        forecast=promoted.recipe.forecast,
    )
    study = replace(promoted, recipe=recipe).copy(tmp_path / "long", lives=3)
    recipe.write(study.location / "recipe.toml")
    whole = {"expected": run.tokens, "skipped": 0, "repeated": 0, "skipped_by_policy": 0}
    assert answer_of_readme(study.location.url) == whole
    assert answer(gather(study, fits=promoted.fits)) == whole
    (file,) = (study.location / "runs" / "large" / "parts").path.glob("ledger-g1-*.parquet")
    rows = pl.read_parquet(file)
    pl.concat([rows.slice(1), rows.tail(1)]).write_parquet(file)
    due = run.batch // run.slots
    torn = whole | {"skipped": due, "repeated": due * rows["samples"][-1] // run.windows_per_slot}
    assert answer_of_readme(study.location.url) == torn
    assert answer(gather(study, fits=promoted.fits)) == torn


def answer(view: View) -> dict[str, int]:
    """Run the query that the report shows, and return what it prints."""
    code = query(view)
    assert code is not None
    return printed(code)


def answer_of_readme(study: str) -> dict[str, int]:
    """The same for the query in README.md, on this study."""
    text = (Path(__file__).parents[3] / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return printed(code.replace('"runs/quickstart"', repr(study)))


def printed(code: str) -> dict[str, int]:
    shown: list[pl.DataFrame] = []
    exec(compile(code, "query", "exec"), {"print": shown.append})
    (frame,) = shown
    return frame.row(0, named=True)
