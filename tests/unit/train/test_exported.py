"""An exported file says what its weights alone do not: with its multipliers they give the run's logits, bit for bit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from honest_run import FORECAST
from safetensors import safe_open

from froude.checkpoint.run_store import RunStore
from froude.cli import main
from froude.config import Run
from froude.promote.recipe import seal
from froude.store import Location
from froude.train.api import build_model
from froude.train.model import Transformer

FOREIGN = {"model": {"factory": "foreign_model:factory", "width": 96, "base_width": 32}}
MUP = {"model": {"width": 96, "base_width": 32, "head_dim": 16, "base_head_dim": 8, "readout_sd": 0.1}}


def exported(folder: Path, content: Mapping[str, Any], *, json_: bool = False) -> tuple[Run, Location]:
    """A sealed study whose run has one checkpoint, of its untrained model, and the file that the command line makes."""
    run = Run(name="large", tokens=768 * 5, batch=768, slots=12, **content)
    recipe = seal(
        run=run, profile="production", fits={}, fingerprints={}, extrapolation={}, checks=(), forecast=FORECAST
    )  # fmt: skip
    study, target = Location.parse(folder / "study"), Location.parse(folder / "out.safetensors")
    recipe.write(study / "recipe.toml")
    store = RunStore(study / "runs" / "large", "large")
    store.open_attempt(recipe.sha256)
    state = {f"model.{name}": value.detach() for name, value in build_model(run).named_parameters()}
    store.save(state, step=5, tokens=run.tokens, tables={})
    assert main(["checkpoints", "export", study.url, "--out", target.url, *(["--json"] * json_)]) == 0
    return run, target


def about(file: Location) -> dict[str, Any]:
    with safe_open(file.url, "pt") as opened:
        found: dict[str, Any] = json.loads(opened.metadata()["froude"])
    return found


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    tokens = torch.arange(64).view(2, 32) * 37 % 256
    return model(tokens)  # type: ignore[no-any-return]


def test_the_multipliers_of_a_file_give_the_logits_of_its_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file = exported(tmp_path, MUP)
    said = about(file)
    assert said["multipliers"] == {
        "embedding": 1.0,
        "residual": 1.0,
        "attention": 8**0.5 / 16,
        "logits": 32 / 96,
    }
    plain = Transformer(Run(tokens=768, parametrization="sp", **MUP))  # as a loader that knows nothing of muP
    with safe_open(file.url, "pt") as opened:
        plain.load_state_dict({name: opened.get_tensor(name) for name in opened.keys()})  # noqa: SIM118
    wanted = logits(build_model(run))
    assert wanted.abs().max() > 0
    assert not torch.equal(logits(plain), wanted)
    for block in plain.layers:
        block.scale = said["multipliers"]["attention"]
    assert torch.equal(logits(plain) * said["multipliers"]["logits"], wanted)
    warned = capsys.readouterr().err
    assert "do not give this model's logits" in warned
    assert "logits by 0.333333 (muP at width 96 with base width 32)" in warned
    assert "attention scores by 0.176777" in warned


def test_a_file_says_whose_weights_it_holds(tmp_path: Path) -> None:
    run, file = exported(tmp_path, MUP | {"data": {"sha256": "a" * 64}, "precision": "bf16"})
    said = about(file)
    assert (said["run"], said["step"], said["fingerprint"]) == ("large", 5, run.fingerprint)
    assert (said["parametrization"], said["width"], said["base_width"]) == ("mup", 96, 32)
    assert (said["factory"], said["precision"]) == ("froude.train.model:Transformer", "bf16")
    assert said["corpus"] == {"source": "froude.train.data.kjv:KingJames", "file": "", "sha256": "a" * 64}


@pytest.mark.parametrize(
    "content",
    [
        {"parametrization": "sp", "model": {"width": 96, "base_width": 32}},
        {"model": {"width": 32, "base_width": 32, "head_dim": 8}},
    ],
    ids=["SP", "muP at its base width"],
)
def test_weights_that_say_it_all_need_no_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: dict[str, Any]
) -> None:
    _, file = exported(tmp_path, content)
    assert about(file)["multipliers"]["logits"] == 1.0
    assert about(file)["note"] == ""
    assert capsys.readouterr().err == ""


def test_of_a_foreign_model_it_is_said_what_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, file = exported(tmp_path, FOREIGN)
    said = about(file)
    assert said["multipliers"] is None
    assert (
        "the factors in the forward pass of foreign_model:factory are neither in the weights nor known here"
        in said["note"]
    )
    assert "muP at width 96 with base width 32 asks for logits times 0.333333" in said["note"]
    assert said["note"] in capsys.readouterr().err


def test_a_script_reads_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, file = exported(tmp_path, MUP, json_=True)
    captured = capsys.readouterr()
    printed = json.loads(captured.out)
    assert printed["about"].items() <= about(file).items()
    assert captured.err == ""


def test_without_its_recipe_nothing_is_claimed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exported(tmp_path, MUP)
    capsys.readouterr()
    shutil.move(tmp_path / "study" / "runs" / "large", tmp_path / "alone")
    target = Location.parse(tmp_path / "alone.safetensors")
    assert main(["checkpoints", "export", str(tmp_path / "alone"), "--out", target.url]) == 0
    assert "multipliers" not in about(target)
    assert "this run has no recipe next to it" in capsys.readouterr().err
