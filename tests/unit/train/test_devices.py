"""What does not depend on there being a GPU: who computes where, and what must be set before one is used."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from froude.config import ConfigError, Run
from froude.launch.elastic import device_of, worker_resources
from froude.promote.verify import _rerun_device
from froude.runlog import Record
from froude.train import build, trainer
from froude.train.parallel import resolve_device
from froude.train.trainer import Trainer

VARIABLE = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what torch says of itself: nothing is computed."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setenv(VARIABLE, "")


def test_a_gpu_that_is_not_there_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == torch.device("cpu")
    with pytest.raises(ConfigError, match=r'"cuda", but torch finds no GPU .* use "auto"'):
        resolve_device("cuda")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("before", "after"), [("", ":4096:8"), (":16:8", ":16:8"), (":4096:2:16:8", ":4096:8")]
)
def test_any_process_with_a_gpu_may_become_exact(
    monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    monkeypatch.setenv(VARIABLE, before)
    assert resolve_device("auto") == torch.device("cuda")
    assert os.environ[VARIABLE] == after


@pytest.mark.usefixtures("gpu")
def test_a_rerun_on_the_gpu_of_the_run_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(name="large", tokens=768, reduction="exact")
    meta = {"build": build.describe(resolve_device("cuda"))}
    assert meta["build"]["device"] == "a GPU"
    where = ("large", 1, None, 1, 1, "", "finished", run.steps, run.tokens, datetime.now(UTC), 1, "recipe")
    monkeypatch.delenv(VARIABLE)  # as in a new process
    recipe: Any = SimpleNamespace(run=run)
    assert _rerun_device(recipe, Record(*where, meta=meta), other_build=False) == torch.device("cuda")


def test_a_worker_computes_on_what_it_reserved() -> None:
    assert device_of(worker_resources("auto", {"CPU": 8})) == "cpu"
    assert device_of(worker_resources("auto", {"CPU": 8, "GPU": 1})) == "cuda"
    assert device_of(worker_resources("cpu", {"CPU": 8, "GPU": 1})) == "cpu"


def test_an_evaluation_in_small_passes_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tokens=768, eval_windows=100, model={"width": 16, "head_dim": 8})
    made = Trainer(run)
    whole = made.evaluate()
    monkeypatch.setattr(trainer, "EVAL_LOGITS", 7 * run.model.context * run.model.vocab)
    assert made.evaluate() == pytest.approx(whole, rel=1e-6)
