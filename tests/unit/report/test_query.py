"""The account of tokens that a reader runs, in README.md and in the report: counts of long runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from froude.promote.recipe import seal
from froude.report.view import gather
from froude.report.words import query

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    Promoted = Any  # of conftest.py, which is no module to import from


def test_the_account_counts_beyond_2_to_the_31_tokens(promoted: Promoted, tmp_path: Path, root: Path) -> None:
    batch = 768 << 12
    run = promoted.recipe.run.replace(batch=batch, tokens=1300 * batch)
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
    (readme,) = re.findall(r"```python\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)
    code = readme.replace('"runs/quickstart"', repr(study.location.url))
    assert run.tokens > 2**31
    whole = {"expected": run.tokens, "skipped": 0, "repeated": 0, "skipped_by_policy": 0}
    for each in (code, query(gather(study, fits=promoted.fits))):
        shown: list[pl.DataFrame] = []
        exec(compile(each or "", "query", "exec"), {"print": shown.append})
        assert shown[0].row(0, named=True) == whole
