"""Branches from a checkpoint: what is compared, and what counts as no worse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from froude.checkpoint.run_store import RunStore
from froude.checkpoint.tensors import digest
from froude.cli import main
from froude.config import ConfigError, Run
from froude.runlog import LogReader
from froude.store import Location
from froude.train import step as train_step
from froude.train.api import Unsupervised
from froude.train.data.order import Batches, Slot
from froude.train.local_critical_batch import branch, largest_as_good
from froude.train.optimizers.composed import Composed
from froude.train.stability.spikes import LOWER, TIGHTEN, Place, Rollback, SpikePolicy
from froude.train.trainer import Trainer
from froude.train.worker import run_worker

pytestmark = pytest.mark.slow

RUN = Run(
    name="large",
    tokens=128 * 60,
    batch=128,
    slots=2,
    reduction="exact",
    eval_windows=16,
    norms_every=0,
    parametrization="sp",
    model={"factory": "spiky:Spiky", "width": 16},
    optimizer={"lr": 1e-2, "beta2": 0.9},
    schedule={"name": "constant"},
)


@pytest.mark.parametrize(
    ("losses", "place"),
    [
        ([2.0, 2.0, 2.0, 2.0], 3),
        ([2.0, 2.005, 2.02, 2.0], 1),
        ([2.0, 1.9, 1.905, 1.95], 2),
        ([2.0, 2.1, 1.9, 1.9], 0),
        ([2.0, float("nan"), 2.0, 2.0], 0),
    ],
)
def test_the_largest_batch_is_no_worse_than_any_smaller_one(losses: list[float], place: int) -> None:
    assert largest_as_good(losses) == place


@pytest.mark.long
def test_branches_see_the_same_tokens_and_leave_the_run_as_it_was(tmp_path: Path) -> None:
    place = Location.parse(tmp_path) / "runs" / RUN.name
    with pytest.raises(ConfigError, match="none yet"):
        branch(RUN, RunStore(place, RUN.name))
    store = RunStore(place, RUN.name)
    run_worker(RUN, store, Unsupervised(store.open_attempt("recipe")), device="cpu")
    torch.use_deterministic_algorithms(False)
    before = digest(place, LogReader(place).lineage()[-1])
    found = branch(RUN, RunStore(place, RUN.name), tokens=128 * 16)
    assert [(each.batch, each.steps) for each in found.branches] == [(128, 16), (256, 8), (512, 4), (1024, 2)]
    assert [each.lr / 1e-2 for each in found.branches] == pytest.approx([1, 2**0.5, 2, 8**0.5])
    assert found.step == 60
    assert found.tokens == 128 * 16
    assert found.critical in (128, 256, 512, 1024)
    assert found == branch(RUN, RunStore(place, RUN.name), tokens=128 * 16)
    assert digest(place, LogReader(place).lineage()[-1]) == before
    assert "critical batch" in found.lines()[-1]


def test_what_the_policy_has_lowered_and_left_out_holds_for_branches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is of a run that went back to before batch 22, at a lower rate, without batches 22 to 29."""
    policy, step = SpikePolicy(RUN, {"batch": 20}), 20
    policy.rollbacks = [
        Rollback(Place(5, 4), 0, 12, lowered=True),
        Rollback(Place(24, 23), 22, 30, lowered=False),
    ]
    store, trainer = RunStore(Location.parse(tmp_path), RUN.name), Trainer(RUN)
    store.open_attempt(RUN.fingerprint)
    scalars = {"stability": policy.state()}
    store.save(trainer.state(), step=step, tokens=step * 128, tables={}, scalars=scalars)
    torch.use_deterministic_algorithms(False)
    drawn, bounds = [], set()
    slot, clip = Batches.slot, train_step._clip

    def spied(self: Batches, batch: int, *more: int) -> Slot:
        drawn.append(batch)
        return slot(self, batch, *more)

    def clipped(model: nn.Module, optimizer: Composed, norm: float, norms: Any, bound: float) -> None:
        bounds.add(bound)
        clip(model, optimizer, norm, norms, bound)

    monkeypatch.setattr(Batches, "slot", spied)
    monkeypatch.setattr(train_step, "_clip", clipped)
    found = branch(RUN, RunStore(Location.parse(tmp_path), RUN.name), tokens=128 * 8)
    assert drawn == [20, 21, *range(30, 36)] * 4
    assert [each.lr / 1e-2 for each in found.branches] == pytest.approx(
        [LOWER * f**0.5 for f in (1, 2, 4, 8)]
    )
    assert bounds == {RUN.optimizer.clip * TIGHTEN}


def test_fit_measures_on_branches_once_there_is_a_checkpoint(
    small_study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", str(small_study), "--branches"]) == 2
    assert "has none yet; train it first" in capsys.readouterr().err
