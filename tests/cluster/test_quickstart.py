"""The loop from fit to summary on simulated nodes: the sweep's rows are known, the target run is real."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from froude import Study
from froude.cli import main
from froude.launch.display import Display
from froude.promote.recipe import read
from froude.promote.token_audit import account
from froude.quickstart import whole as loop
from froude.runlog import LogReader

#: The new node comes at .6 of the steps, and must have joined before the last: on a busy machine 60 steps were too few.
TOKENS = 768 * 240
SPACE = """
import importlib.util
spec = importlib.util.spec_from_file_location("small_study", {source!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
TARGET = module.TARGET.replace(
    {{"model.width": 32, "tokens": {tokens}, "schedule.warmup_tokens": 768 * 10, "checkpoint_every": 10}}
)

def space(seed=0):
    return module.make_space(seed, rates=5, target=TARGET)
"""


def parquet(study: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(study.rglob("*.parquet"))
    }


@pytest.fixture(scope="module")
def space(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("space") / "space.py"
    file.write_text(SPACE.format(source=str(root / "tests" / "data" / "small_study.py"), tokens=TOKENS))
    return file


@pytest.fixture(scope="module")
def swept(space: Path, study_factory: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose sweep is done."""
    spec = importlib.util.spec_from_file_location("space_of_test", space)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return study_factory(tmp_path_factory.mktemp("swept") / "study", rates=5, target=module.TARGET)


@pytest.fixture(scope="module")
def passed(space: Path, swept: Path) -> tuple[Path, dict[str, Any], str]:
    """The study after a whole pass, its summary, and what was printed."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FROUDE_INSTALL_SECONDS", "12")
        summary = loop.quickstart(str(swept), space=str(space), display=Display(out))
    return swept, summary, out.getvalue()


def test_the_summary_is_whole(passed: tuple[Path, dict[str, Any], str], root: Path) -> None:
    study, summary, _ = passed
    assert json.loads((study / "summary.json").read_text()) == summary
    spec = importlib.util.spec_from_file_location("check_summary", root / "tests" / "check_summary.py")
    assert spec is not None
    assert spec.loader is not None
    checker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(checker)
    # The proxies' losses are a formula's, so the real run's is not what they forecast: here alone that may fail.
    wrong = [(what, seen) for what, fine, seen in checker.checks(summary, TOKENS) if not fine]
    assert [(what, seen) for what, seen in wrong if not what.startswith("error of the forecast")] == []
    assert checker.planned_tokens(study / "recipe.toml") == TOKENS
    elastic = summary["elastic"]
    assert elastic["tokens_expected"] == TOKENS
    assert elastic["restarts"] >= 2
    assert len(elastic["recovery_seconds"]) >= 2
    assert len(elastic["digest"]) == 64
    assert summary["seconds"]["train"] > 0
    assert summary["seconds"]["sweep"] > 0  # the rows say how long each trial took


def test_the_closing_block_says_it_to_a_person(passed: tuple[Path, dict[str, Any], str]) -> None:
    study, summary, text = passed
    block = text[text.rindex("\ntrials ") :]
    assert "3 → 2 → 3" in block
    assert "0 skipped, 0 repeated" in block
    assert "12 s" in block
    assert str(study / "report.html") in block
    assert summary["forecast"]["sha256"][:12] in block
    reach = summary["forecast"]["extrapolation"]
    assert reach == pytest.approx(dict(read(str(study)).extrapolation), abs=1e-6)
    assert f"{reach['params']:.2f}x the parameters" in block
    assert f"{summary['forecast']['proxies_over_target']:.1f}x the target's compute, all together" in block
    assert "SIGKILL" in text


def test_the_forecast_was_sealed_before_step_0(passed: tuple[Path, dict[str, Any], str]) -> None:
    from datetime import datetime

    study, summary, _ = passed
    recipe = read(str(study))
    assert recipe.sha256 == summary["forecast"]["sha256"]
    first = LogReader(Study(study).location / "runs" / recipe.run.name).records()[0]
    assert (first.kind, first.step, first.recipe) == ("attempt", 0, recipe.sha256)
    assert datetime.fromisoformat(recipe.sealed_at) < first.time
    assert recipe.overrides
    assert recipe.overrides.items() <= loop.OVERRIDES.items()


def test_the_ledger_balances_and_a_tampered_one_does_not(passed: tuple[Path, dict[str, Any], str]) -> None:
    study = Study(passed[0])
    run = read(str(passed[0])).run
    ledger = study.ledger().filter(pl.col("run") == run.name).collect()
    assert account(ledger.lazy(), run).whole
    third = pl.col("step") == 3
    dropped = ledger.filter(~third)
    twice = pl.concat([ledger, ledger.filter(third)])
    swapped = ledger.with_columns(step=pl.col("step").replace({3: 70, 70: 3}))
    for tampered in (dropped, twice, swapped):
        assert not account(tampered.lazy(), run).whole


def test_a_second_pass_trains_nothing_and_changes_no_data(
    passed: tuple[Path, dict[str, Any], str], space: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, summary, _ = passed
    before = parquet(study)

    def no_cluster(*_: object, **__: object) -> None:
        raise AssertionError("a cluster was started")

    monkeypatch.setattr(loop, "simulated", no_cluster)
    again = loop.quickstart(str(study), space=str(space), display=Display(quiet=True))
    assert parquet(study) == before
    assert again == summary


def test_another_seed_is_refused(
    passed: tuple[Path, dict[str, Any], str], space: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quickstart", "--out", str(passed[0]), "--space", str(space), "--seed", "7"]) == 2
    assert "--fresh" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("signal_number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)],
)
def test_a_signal_leaves_a_state_that_resumes_and_no_process(
    signal_number: int, code: int, root: Path, tmp_path: Path
) -> None:
    import psutil

    command = [sys.executable, "-c", "from froude.cli import main; raise SystemExit(main())", "quickstart"]
    process = subprocess.Popen(
        [*command, "--out", tmp_path / "study"],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
        start_new_session=True,
    )
    assert process.stdout is not None
    seen = next((line for line in process.stdout if line.startswith("[cluster]")), "")
    assert seen, process.stderr.read()
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    process.send_signal(signal_number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code
    assert "Traceback" not in errors
    assert "the same command resumes" in errors
    _, alive = psutil.wait_procs(family, timeout=60)
    assert [child.cmdline() for child in alive] == []
    Study(tmp_path / "study").trials().collect()
