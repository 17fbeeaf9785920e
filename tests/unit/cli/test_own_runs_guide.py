"""docs/guide/own-runs.md: its commands print what it shows, and its target run is one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from froude.cli import main
from froude.config import Run
from froude.promote.promotion import parameters

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def guide(root: Path) -> str:
    return (root / "docs/guide/own-runs.md").read_text(encoding="utf-8")


def blocks(guide: str, language: str = "") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)


def test_the_example_prints_what_the_guide_shows(
    guide: str,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command, shown = blocks(guide)[:2]
    (tmp_path / "tests").symlink_to(root / "tests")
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command.replace("\\\n", " "))[1:]) == 0
    printed = capsys.readouterr().out.splitlines()
    # the last digits of a fit are the processor's
    assert [numberless(line) for line in printed] == [numberless(line) for line in shown.splitlines()]


def numberless(line: str) -> str:
    return re.sub(r"[\d.]+", "#", line)


def test_the_large_run_is_one(guide: str) -> None:
    (content,) = blocks(guide, "toml")
    run = Run.from_toml(content)
    assert run.precision == "bf16"
    assert f"{parameters(run) / 1e9:.2f}e9" in guide
