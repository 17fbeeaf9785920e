"""A run that an earlier version began, and that was killed: `froude train` takes it to the end it would have had."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from earlier_study import EXPECTED, FOLDER, STEPS, STOPPED, copied, log_of, same_build

from froude.checkpoint.tensors import digest
from froude.cli import main
from froude.store import Location
from froude.study import Study


def said(*command: str) -> dict[str, Any]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*command, "--json"]) == 0
    content: dict[str, Any] = json.loads(out.getvalue())
    return content


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The study with its run trained to the end by one worker, and what `train` said."""
    study = copied(tmp_path_factory.mktemp("earlier"))
    options = [] if same_build() else ["--other-build"]
    return study, said("train", str(study / "recipe.toml"), "--simulate", "1", "--no-spares", *options)


@pytest.fixture
def torch_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


def test_it_goes_on_from_the_stored_checkpoint(trained: tuple[Path, dict[str, Any]]) -> None:
    study, result = trained
    assert (result["finished"], result["step"], result["restarts"]) == (True, STEPS, 1)
    assert result["world_sizes"] == [2, 1]
    assert result["loss"] == pytest.approx(EXPECTED["undisturbed"]["loss"], rel=1e-3)
    before, records = log_of(FOLDER / "study").records(), log_of(study).records()
    assert records[: len(before)] == before
    opened = records[len(before)]
    assert (opened.kind, opened.attempt, opened.step) == ("attempt", 2, STOPPED)
    ledger = Study(study).ledger().collect()
    steps = {attempt: set(rows["step"]) for (attempt,), rows in ledger.group_by("attempt")}
    assert steps == {1: set(range(1, STOPPED + 1)), 2: set(range(STOPPED + 1, STEPS + 1))}


def test_every_check_of_it_passes(trained: tuple[Path, dict[str, Any]], torch_as_before: None) -> None:
    rerun = ["--rerun"] if same_build() else []
    checks = said("verify-run", str(trained[0]), *rerun)["checks"]
    # Of a checkout's files the times may say nothing, and another version's law gives another forecast.
    forecast = "the forecast is that of the study's trials"
    unknown = {check["name"] for check in checks if check["passed"] is None}
    assert unknown - {"the forecast was sealed before step 0"} == {forecast}
    assert all(check["passed"] for check in checks if check["name"] not in unknown)
    alike = ("every planned", "only what", "every digest")
    undisturbed = {check["name"]: check["seen"] for check in EXPECTED["undisturbed"]["checks"]}
    for check in checks:
        if check["name"].startswith(alike):
            assert check["seen"] == undisturbed[check["name"]]
    later = {
        "forecast.json says what was sealed",
        forecast,
        "the run had the study's corpus and code",
        "steps, evaluations and attempts are those of the records",
    }
    assert len(checks) == len(undisturbed) + len(later) + 2 * len(rerun)
    assert later <= {check["name"] for check in checks}


def test_it_ends_with_the_bits_of_an_undisturbed_run(trained: tuple[Path, dict[str, Any]]) -> None:
    if not same_build():
        pytest.skip("torch or processor round otherwise than where the run began")
    run = Location.parse(trained[0]) / "runs" / "large"
    assert digest(run, log_of(trained[0]).lineage()[-1]) == EXPECTED["undisturbed"]["digest"]


def test_status_and_train_know_it_for_finished(trained: tuple[Path, dict[str, Any]]) -> None:
    study, result = trained
    assert said("status", str(study))["finished"]
    length = len(log_of(study).records())
    assert said("train", str(study / "recipe.toml")) == result
    assert len(log_of(study).records()) == length
