"""docs/guide/checks.md lists every check of the gate, with the words and bounds that it prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from froude.config import Run
from froude.promote.checks import RULES
from froude.promote.gate import PRODUCTION
from froude.promote.planned import Planned
from froude.space import Grid, Space, Trial


@pytest.fixture(scope="module")
def listed(root: Path) -> list[list[str]]:
    """The cells of each row of the guide's tables that begins with a check's name."""
    text = (root / "docs/guide/checks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE)
    return [[name, *(cell.strip() for cell in cells.split(" | "))] for name, cells in rows]


def test_the_guide_lists_every_check_in_the_table_s_order(listed: list[list[str]]) -> None:
    assert [row[0] for row in listed] == [rule.name for rule in RULES]
    assert all(len(row) == 5 and all(row) for row in listed)


def test_the_guide_has_the_bounds_and_the_remedies_of_the_rules(listed: list[list[str]]) -> None:
    for rule, (_, _, bound, _, remedy) in zip(RULES, listed, strict=True):
        assert bound == rule.asked(PRODUCTION.bound(rule)), rule.name
        assert rule.remedy in remedy, rule.name


def test_the_guide_s_own_check_judges_a_study_and_foresees_a_plan(root: Path) -> None:
    text = (root / "docs/guide/checks.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    rule = names["SAME_OPTIMIZER"]
    assert rule.judge({"adamw"}, rule.bound).passed
    assert "but is adamw, sgd; train" in rule.judge({"sgd", "adamw"}, rule.bound).line()
    run = Run(name="x", model={"width": 32}, tokens=768 * 400)
    stage = Grid("search", lambda rows: [Trial("a", (run,))], role="search")
    assert rule.foresee(Planned(Space("own", 0, (stage,), run))) == {run.optimizer.name}
