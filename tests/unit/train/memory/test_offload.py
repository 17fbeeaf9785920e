"""Offloading the optimizer's state: the same bits from states that are moved to the weights a few at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from froude.config import Run
from froude.optimizers import OPTIMIZERS
from froude.train import parallel
from froude.train.optimizers import offloaded
from froude.train.optimizers.composed import Rows
from froude.train.optimizers.offloaded import Offloaded
from froude.train.parallel import World
from froude.train.trainer import Trainer

BASE = Run(
    tokens=768 * 4,
    batch=768,
    slots=4,
    eval_windows=20,
    parametrization="sp",
    model={"width": 32, "depth": 2, "readout_sd": 1.0},
    optimizer={"lr": 2**-7},
)


def run_of(name: str) -> Run:
    spec = OPTIMIZERS[name]
    options = {"every": 2} if "every" in spec.options else {}
    return BASE.replace(
        {
            "optimizer": {"name": name, "options": options},
            "schedule.name": spec.schedules[0] if spec.schedules else "wsd",
        }
    )


def trained(run: Run) -> tuple[list[Any], dict[str, torch.Tensor], Trainer]:
    trainer = Trainer(run)
    results = [trainer.step(run, step) for step in range(run.steps)]
    return [(r.loss, r.grad_norm) for r in results] + [trainer.evaluate()], trainer.state(), trainer


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_has_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    series, state, _ = trained(run_of(name))
    monkeypatch.setattr(offloaded, "offloads", lambda run, world: True)
    monkeypatch.setattr(offloaded, "OFFLOADED", 5000)  # a few parameters together, some alone
    found, its, trainer = trained(run_of(name))
    assert found == series
    assert its.keys() == state.keys()
    assert all(torch.equal(its[key], tensor) for key, tensor in state.items())
    rows = [part for part in trainer.optimizer.parts if isinstance(part, Rows)]
    assert all(isinstance(part, Offloaded) for part in rows)
    assert len(rows) != 1 or OPTIMIZERS[name].unit in ("model", "matrix")


def test_states_stay_in_their_own_memory_and_are_elsewhere_in_a_step_a_bucket_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offloaded, "offloads", lambda run, world: True)
    monkeypatch.setattr(offloaded, "OFFLOADED", 5000)
    run = run_of("adamw")
    trainer = Trainer(run)
    home = {key: tensor.data_ptr() for key, tensor in trainer.optimizer.state().items() if tensor.ndim}
    moved: list[int] = []
    step = torch.optim.AdamW.step

    def watched(optimizer: torch.optim.AdamW) -> None:
        tensors = [t for state in optimizer.state.values() for t in state.values() if t.ndim]
        assert not {t.data_ptr() for t in tensors} & {*home.values()}
        moved.append(sum(t.numel() for t in tensors))
        step(optimizer)

    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    trainer.step(run, 0)
    largest = max(p.numel() for p in trainer.model.parameters())
    assert sum(moved) == 2 * sum(p.numel() for p in trainer.model.parameters())
    assert max(moved) <= 2 * max(largest, 5000)
    assert len(moved) > 3
    after = {key: tensor for key, tensor in trainer.optimizer.state().items() if tensor.ndim}
    assert {key: tensor.data_ptr() for key, tensor in after.items()} == home
    assert all(parallel.local(tensor).any() for tensor in after.values())


def test_on_a_cpu_there_is_nowhere_else() -> None:
    run = BASE.replace({"compute.offload": True})
    assert [type(part) for part in Trainer(run).optimizer.parts] == [Rows]
    assert offloaded.offloads(run, World(device=torch.device("cuda")))
    assert not offloaded.offloads(BASE, World(device=torch.device("cuda")))
