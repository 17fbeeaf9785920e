"""No run goes on with another's state: what is not its own is refused by name, and nothing of it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from froude.checkpoint.run_store import RunStore
from froude.config import ConfigError, Run
from froude.store import Location
from froude.train.trainer import Trainer

RUN = Run(
    name="large",
    tokens=128 * 4,
    batch=128,
    slots=2,
    eval_windows=16,
    model={"width": 16, "head_dim": 8},
    optimizer={"name": "muon", "lr": 0.02},
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Location:
    """Where a run has left a checkpoint of its first step."""
    found = Location.parse(tmp_path_factory.mktemp("resume"))
    trainer, store = Trainer(RUN), RunStore(found, RUN.name)
    store.open_attempt(RUN.fingerprint)
    trainer.step(RUN, 0)
    store.save(trainer.state(), step=1, tokens=RUN.batch, tables={})
    return found


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"optimizer.name": "adamw", "optimizer.lr": 1e-3},
            r"not in it: \['optimizer.layers.0.attention_out.exp_avg'",
        ),
        ({"optimizer.name": "normuon"}, r"not in it: .*second_moment'.* only in it: \[\] of 0"),
        (
            {"optimizer.options": {"heads": True}},
            r"not in it: \['optimizer.layers.0.qkv.k.0.momentum_buffer'",
        ),
        ({"model.depth": 3}, r"not in it: \['model.layers.2.attention_norm'"),
        (
            {"model.mlp_ratio": 2.0},
            r"`model.layers.0.down` is float32 \[16, 48\] there and float32 \[16, 32\] here",
        ),
    ],
    ids=["another optimizer", "more state", "other matrices", "other parameters", "other shapes"],
)
def test_another_state_is_refused_and_nothing_of_it_read(
    place: Location, changes: dict[str, Any], said: str
) -> None:
    trainer = Trainer(RUN.replace(changes))
    before = trainer.snapshot()
    with pytest.raises(ValueError, match=rf"{said}.*use the run's own recipe"):
        RunStore(place, RUN.name).load(trainer.state())
    assert all(torch.equal(before[name], tensor) for name, tensor in trainer.state().items())


def test_eight_bits_and_the_numbers_that_they_stand_for_are_not_each_others_state(tmp_path: Path) -> None:
    """Of a vector and of a matrix both keep moments of the same names."""
    run = RUN.replace({"optimizer.name": "adamw8bit", "optimizer.lr": 1e-3})
    store = RunStore(Location.parse(tmp_path), run.name)
    store.open_attempt(run.fingerprint)
    store.save(Trainer(run).state(), step=0, tokens=0, tables={})
    with pytest.raises(ValueError, match=r"only in it: \['optimizer.embedding.exp_avg_scale'"):
        store.load(Trainer(run.replace({"optimizer.name": "adamw"})).state())


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer.options": {"nesterov": False}},
        {"optimizer.lr": 0.03},
        {"optimizer.rest": {"lr": 1e-4}},
        {"seed": 1},
    ],
    ids=str,
)
def test_settings_that_no_state_shows_are_in_the_fingerprint_that_an_attempt_must_have(
    place: Location, changes: dict[str, Any]
) -> None:
    other = RUN.replace(changes)
    with pytest.raises(ConfigError, match=f"{RUN.fingerprint!r}, but got {other.fingerprint!r}"):
        RunStore(place, RUN.name).open_attempt(other.fingerprint)
