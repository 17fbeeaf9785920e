"""What does not depend on there being a GPU: who computes where, and what must be set before one is used."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ray.train.constants import TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S

from froude.config import ConfigError, Run
from froude.hardware.sizes import EVAL_CHUNK, evaluated_windows
from froude.launch.elastic import device_of
from froude.launch.ray_internals.trainer import controller_environment
from froude.launch.threads import worker_resources
from froude.launch.tuning import Queue, Room
from froude.promote.verify.rerun import device_for
from froude.runlog import Record
from froude.space import Trial
from froude.store import Location
from froude.train import trainer
from froude.train.exact import environment
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
    meta = {"build": environment.describe(resolve_device("cuda"))}
    assert (meta["build"]["device"], meta["build"][VARIABLE]) == ("a GPU", ":4096:8")
    assert VARIABLE not in environment.describe(torch.device("cpu"))
    where = ("large", 1, None, 1, 1, "", "finished", run.steps, run.tokens, datetime.now(UTC), 1, "recipe")
    monkeypatch.delenv(VARIABLE)  # as in a new process
    recipe: Any = SimpleNamespace(run=run)
    whole = [Record(*where, meta=meta)]
    assert device_for(recipe, whole, other_build=False) == torch.device("cuda")
    began = Record(*where, meta={"build": {**meta["build"], "torch": "2.11.0"}})
    with pytest.raises(
        ConfigError, match=r"one build from its start, but large went on .* torch is .*'2\.11\.0'"
    ):
        device_for(recipe, [began, *whole], other_build=False)
    assert device_for(recipe, [began, *whole], other_build=True) == torch.device("cuda")


def test_a_worker_computes_on_what_it_reserved(tmp_path: Path) -> None:
    assert device_of(worker_resources("cpu", {"CPU": 8, "GPU": 1})) == "cpu"
    for cluster, device in (({"CPU": 2.0}, "cpu"), ({"CPU": 2.0, "GPU": 1.0}, "cuda")):
        agenda: Any = SimpleNamespace(
            retired="", done=False, changed={}, next=lambda: Trial("one", (Run(tokens=768, device="auto"),))
        )
        queue = Queue(agenda, Location.parse(tmp_path), 1, partial(Room, cluster, one_machine=False))
        assert queue.suggest("1")["device"] == device


def test_an_evaluation_on_a_gpu_bounds_its_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tokens=768, eval_windows=100, model={"width": 16, "head_dim": 8})
    assert evaluated_windows(run, gpu=False) == evaluated_windows(run, gpu=True) == EVAL_CHUNK
    large = run.replace({"model.vocab": 2**17, "model.context": 4096, "batch": 4096, "tokens": 4096})
    assert [evaluated_windows(large, gpu=gpu) for gpu in (False, True)] == [EVAL_CHUNK, 1]
    made = Trainer(run)
    whole = made.evaluate()
    monkeypatch.setattr(trainer, "evaluated_windows", lambda run, gpu: 7)
    passes: list[int] = []
    made.model.register_forward_hook(lambda module, tokens, logits: passes.append(len(tokens[0])))
    assert made.evaluate() == pytest.approx(whole, rel=1e-6)
    assert passes == [7] * 14 + [2]


def test_a_controller_of_gpus_gives_survivors_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S, raising=False)
    assert TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S not in controller_environment(gpu=False)
    assert controller_environment(gpu=True)[TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S] == "5"
    monkeypatch.setenv(TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S, "2")
    assert controller_environment(gpu=True)[TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S] == "2"
