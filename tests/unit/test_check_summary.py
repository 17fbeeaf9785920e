"""The check of a quickstart's summary.json must pass a healthy one, and notice each thing that is wrong."""

from __future__ import annotations

import copy
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HEALTHY: dict[str, Any] = {
    "trials": {"finished": 70, "diverged": 1, "failed": 0},
    "seconds": {"sweep": 150.0, "fit": 4.0, "promote": 2.0, "train": 90.0, "total": 246.0},
    "best": {"lr": 0.0055, "warmup_tokens": 49920, "beta2": 0.95, "batch": 768, "schedule": "wsd"},
    "lr_transfer": {
        "mup": {"slope": -0.08, "low": -0.28, "high": 0.12},
        "sp": {"slope": -1.08, "low": -1.22, "high": -0.94},
    },
    "critical_batch": {"b_crit": 338.0, "low": 240.0, "high": 470.0, "status": "ok"},
    "forecast": {
        "loss": 1.298, "low": 1.251, "high": 1.341, "level": 0.9, "certified": False, "naive": 1.36,
        "sha256": "ab" * 32, "comparator": 1.30, "proxy_cost": 3.1,
        "reach": {"params": 2.8, "tokens": 1.0, "compute": 2.9},
    },
    "actual": {"loss": 1.28, "inside": True, "relative_error": 0.015},
    "elastic": {
        "run": "large", "world_sizes": [3, 2, 3], "restarts": 2, "recovery_seconds": [9.0, 8.1],
        "tokens_expected": 998400, "tokens_skipped": 0, "tokens_repeated": 0, "tokens_skipped_by_policy": 0,
        "digest": None, "undisturbed_digest": None,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def script(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_summary", root / "tests" / "check_summary.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PLANNED = 998400


def failures(script: ModuleType, summary: dict[str, Any], planned: int | None = PLANNED) -> list[str]:
    return [what for what, passed, _ in script.checks(summary, planned) if not passed]


def written(folder: Path, summary: dict[str, Any]) -> Path:
    """The summary as a quickstart leaves it, its recipe beside it."""
    (folder / "recipe.toml").write_text(f"[run]\ntokens = {PLANNED}\n")
    path = folder / "summary.json"
    path.write_text(json.dumps(summary))
    return path


def test_a_healthy_summary_passes(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(written(tmp_path, HEALTHY)) == 0
    assert "FAIL" not in capsys.readouterr().out


def test_what_one_seed_cannot_show_is_printed_and_fails_nothing(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = copy.deepcopy(HEALTHY)
    summary["actual"]["inside"] = False
    assert script.main(written(tmp_path, summary)) == 0
    out = capsys.readouterr().out
    assert "actual inside the interval: False" in out
    assert "error of the forecast: +1.4%" in out
    assert "error of the largest proxy's loss: +6.2%" in out


def test_tokens_without_a_recipe_to_compare_with_fail(script: ModuleType) -> None:
    assert failures(script, HEALTHY, None) == ["tokens expected are the recipe's None"]


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("trials.failed", 1, "no trial failed"),
        ("trials.finished", 0, "some trials finished"),
        ("lr_transfer.sp.slope", -0.5, "SP slope"),
        ("lr_transfer.sp.slope", None, "SP slope"),
        ("lr_transfer.mup.slope", 0.36, "muP slope in"),
        ("lr_transfer.mup.slope", -0.5, "exceeds"),
        ("critical_batch.status", "edge", "status ok"),
        ("critical_batch.b_crit", 950.0, "150, 900"),
        ("forecast.sha256", "", "sealed"),
        ("actual.relative_error", None, "within ±3%"),
        ("actual.relative_error", 0.031, "within ±3%"),
        ("actual.relative_error", -0.031, "within ±3%"),
        ("elastic.restarts", 1, "two restarts"),
        ("elastic.world_sizes", [3, 3], "3, 2, 3"),
        ("elastic.world_sizes", [3, 2], "3, 2, 3"),
        ("elastic.tokens_expected", 0, "expected"),
        ("elastic.tokens_expected", 998400 - 768, "expected"),
        ("elastic.tokens_skipped", 64, "tokens_skipped"),
        ("elastic.tokens_repeated", 64, "tokens_repeated"),
    ],
)
def test_each_defect_is_noticed(
    script: ModuleType, tmp_path: Path, path: str, value: object, named: str
) -> None:
    summary = copy.deepcopy(HEALTHY)
    *groups, key = path.split(".")
    group = summary
    for name in groups:
        group = group[name]
    group[key] = value
    assert any(named in what for what in failures(script, summary))
    assert script.main(written(tmp_path, summary)) == 1


@pytest.mark.parametrize(
    ("group", "key"),
    [(group, key) for group in ("trials", "seconds", "best", "elastic") for key in HEALTHY[group]],
)
def test_each_missing_key_is_noticed(script: ModuleType, group: str, key: str) -> None:
    summary = copy.deepcopy(HEALTHY)
    del summary[group][key]
    assert any(what.startswith(f"{group} has") for what in failures(script, summary))


def test_an_empty_summary_fails_without_a_traceback(script: ModuleType) -> None:
    assert len(failures(script, {})) > 15


def test_an_attempt_at_the_same_size_does_not_hide_the_others(script: ModuleType) -> None:
    summary = copy.deepcopy(HEALTHY)
    summary["elastic"]["world_sizes"] = [3, 2, 2, 3]
    assert not failures(script, summary)
