"""docs/guide/own-runs.md: its commands print what it shows, and its target run is one."""

from __future__ import annotations

import re
import shlex
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
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


TARGET = """
name = "large"
batch = 768
tokens = 1_536_000
parametrization = "mup"
model = { width = 192 }
schedule = { name = "wsd", warmup_tokens = 15_360 }
"""


def table(widths: int, horizons: int, seeds: int, rates: int, swept: tuple[int, ...]) -> pl.DataFrame:
    """Made-up runs, with rates half an octave apart at the horizons `swept`, in steps."""
    rng, rows = np.random.default_rng(0), []
    ladder = product((32, 48, 64, 96, 128)[:widths], (250, 500, 1000, 2000)[-horizons:], range(seeds))
    for width, steps, seed in ladder:
        for offset in (np.arange(rates) - rates // 2) / 2 if steps in swept else (0.0,):
            params, tokens = 26 * width**2, 768 * steps
            loss = 0.9 + 12 / params**0.35 + 30 / tokens**0.35 + 0.03 * offset**2
            row = {"params": params, "tokens": tokens, "loss": loss * (1 + 0.002 * rng.standard_normal())}
            row |= {"lr": 2 ** (-7.5 + offset), "batch": 768, "schedule": "wsd", "width": width, "seed": seed}
            rows.append(row | {"precision": "fp32", "parametrization": "mup"})
    return pl.DataFrame(rows)


@pytest.mark.parametrize(
    ("runs", "left_out", "refused"),
    [
        (table(5, 4, 3, 9, (500, 2000)), [], []),
        (table(4, 3, 2, 7, (2000,)), [], ["forecast_certified"]),
        (table(4, 3, 2, 7, (2000,)), ["seed", "precision"], ["one_precision", "seeds", "forecast_certified"]),
    ],
    ids=["300 runs", "72 runs", "columns left out"],
)
def test_the_columns_that_the_guide_names_make_a_table_promotable(
    guide: str,
    runs: pl.DataFrame,
    left_out: list[str],
    refused: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    uses = re.findall(r"^\| (?:fit and forecast|be promoted.*?) \| (.*?) \|", guide, re.MULTILINE)
    named = re.findall(r"`(\w+)`", " ".join(uses))
    assert f"{runs.height} runs" in guide.replace("\n", " ")
    monkeypatch.chdir(tmp_path)
    Path("large.toml").write_text(TARGET, encoding="utf-8")
    runs.select(name for name in named if name in runs.columns and name not in left_out).write_csv("runs.csv")
    assert main(["fit", "--from", "runs.csv", "--out", "history", "--target", "large.toml"]) == 0
    assert main(["promote", "history", "--for", "external"]) == (3 if refused else 0)
    assert re.findall(r"^  (\w+): ", capsys.readouterr().err, re.MULTILINE) == refused
