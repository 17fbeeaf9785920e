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
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@pytest.fixture(scope="module")
def guide(root: Path) -> str:
    return (root / "docs/guide/own-runs.md").read_text(encoding="utf-8")


def blocks(guide: str, language: str = "") -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


def test_the_examples_print_what_the_guide_shows(
    guide: str,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "tests").symlink_to(root / "tests")
    monkeypatch.chdir(tmp_path)
    shown = blocks(guide)
    for first in ("froude fit --from", "froude plan --next"):
        number = next(number for number, block in enumerate(shown) if block.startswith(first))
        command, expected = shown[number : number + 2]
        assert main(shlex.split(command.replace("\\\n", " "))[1:]) == 0
        printed = capsys.readouterr().out
        assert NUMBER.sub("#", printed) == NUMBER.sub("#", expected)
        # the last digits of a fit are the processor's
        assert numbers(printed) == pytest.approx(numbers(expected), rel=0.03)


def numbers(text: str) -> list[float]:
    return [float(number) for number in NUMBER.findall(text)]


def test_the_large_run_is_one(guide: str) -> None:
    (content,) = blocks(guide, "toml")
    run = Run.from_toml(content)
    assert run.precision == "bf16"
    assert f"{parameters(run) / 1e9:.2f}e9" in guide
