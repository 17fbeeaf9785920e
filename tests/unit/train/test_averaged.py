"""Schedule-Free AdamW: trained at one point, evaluated and exported at another, and none of that changes a bit."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import schedulefree
import torch
from safetensors.torch import load_file
from spiky import NAN, marked
from torch import nn

from froude.checkpoint.run_store import RunStore
from froude.checkpoint.tensors import Tensors, digest
from froude.checkpoint.tools import export
from froude.config import ConfigError, Run
from froude.launch.elastic import train
from froude.material import Material
from froude.optimizers import OPTIMIZERS
from froude.runlog import LogReader, Record
from froude.space import Choice, Search
from froude.store import Location
from froude.train.api import Unsupervised, material_of
from froude.train.loop import Loop
from froude.train.optimizers.composed import Rows, make
from froude.train.probe.contract import check_code_and_corpus
from froude.train.stability.spikes import Decision
from froude.train.trainer import Trainer
from froude.train.trial import InMemory
from froude.train.worker import run_worker

STEPS = 6
NAME = "schedule_free_adamw"
RUN = Run(
    name="large",
    tokens=128 * STEPS,
    batch=128,
    slots=2,
    reduction="exact",
    eval_windows=16,
    norms_every=0,
    model={"width": 16},
    optimizer={"name": NAME, "lr": 1e-2},
    schedule={"name": "constant", "warmup_tokens": 128 * 3},
)


class Stopping(Unsupervised):
    """A host that ends its attempt after a step."""

    def __init__(self, attempt: int, after: int) -> None:
        super().__init__(attempt)
        self.after = after

    def poll(self, step: int) -> Any:
        return "stop" if step == self.after else "none"


@pytest.fixture(autouse=True)
def as_before() -> Any:
    yield
    torch.use_deterministic_algorithms(False)


def trained(folder: Path, run: Run, *attempts: int, **options: Any) -> tuple[Location, Record, float]:
    """Where a run is, its newest checkpoint and its last loss, after attempts that stop at these steps."""
    place = Location.parse(folder) / "runs" / run.name
    for after in attempts:
        store = RunStore(place, run.name)
        loss = run_worker(run, store, Stopping(store.open_attempt("recipe"), after), device="cpu", **options)
    return place, LogReader(place).lineage()[-1], loss


def bits(place: Location, record: Record, loss: float) -> tuple[str, float]:
    return digest(place, record), loss


@pytest.mark.long
def test_neither_evaluations_nor_interruptions_change_a_bit(tmp_path: Path) -> None:
    whole = bits(*trained(tmp_path / "whole", RUN, STEPS))
    assert bits(*trained(tmp_path / "evaluated", RUN.replace(eval_every=1), STEPS)) == whole
    assert bits(*trained(tmp_path / "cut", RUN.replace(eval_every=2), 1, 3, STEPS)) == whole


@pytest.mark.slow
def test_an_export_is_what_was_evaluated(tmp_path: Path) -> None:
    place, record, loss = trained(tmp_path, RUN, STEPS)
    file = tmp_path / "out.safetensors"
    export(place, record, Location.parse(file))
    evaluated = Trainer(RUN.replace({"optimizer.name": "adamw"}))
    evaluated.model.load_state_dict(load_file(file))
    assert evaluated.evaluate() == loss
    with Tensors(place, record) as tensors:
        evaluated.model.load_state_dict(
            {name: tensors[f"model.{name}"] for name, _ in evaluated.model.named_parameters()}
        )
    assert evaluated.evaluate() != loss


def test_the_average_is_the_packages_and_what_is_trained_comes_back() -> None:
    trainer = Trainer(RUN)
    for step in range(STEPS):
        trainer.step(RUN, step)
    state = trainer.snapshot()
    with trainer.optimizer.averaged():
        average = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    assert same(trainer.state(), state)
    (rows,) = trainer.optimizer.parts
    assert isinstance(rows, Rows)
    package: Any = rows.optimizer
    package.eval()
    assert same(dict(trainer.model.named_parameters()), average)
    package.train()
    assert not same(trainer.state(), state)  # why it is kept


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_counters_are_of_the_state_and_weigh_by_the_rate() -> None:
    trainer = Trainer(RUN.replace(parametrization="sp"))
    for step in range(STEPS):
        trainer.step(RUN, step)
    shares = [1 / 6, 3 / 6, 5 / 6, 1, 1, 1]
    for name, _ in trainer.model.named_parameters():
        found = {key: trainer.state()[f"optimizer.{name}.{key}"] for key in OPTIMIZERS[NAME].counters}
        assert {tensor.dtype for tensor in found.values()} == {torch.float64}
        expected = [STEPS, sum((1e-2 * share) ** 2 for share in shares), 1e-2]
        assert [float(tensor) for tensor in found.values()] == pytest.approx(expected, rel=1e-12)


def test_a_warmup_of_the_run_is_the_packages() -> None:
    start, *gradients = torch.randn(13, 5, 7, generator=torch.Generator().manual_seed(0)).unbind()
    ours, theirs = (nn.Parameter(start.clone()) for _ in range(2))
    group = {"params": [ours], "lr": 1e-2, "weight_decay": 0.1}
    optimizer = make(RUN.optimizer, "auto", [group])
    betas = (RUN.optimizer.beta1, RUN.optimizer.beta2)
    package = schedulefree.AdamWScheduleFree([theirs], 1e-2, betas, weight_decay=0.1, warmup_steps=8)
    package.train()
    for step, gradient in enumerate(gradients):
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.param_groups[0]["lr"] = 1e-2 * min(1, (step + 1) / 8)
        optimizer.step()
        package.step()
    assert torch.equal(ours, theirs)


def test_what_the_policy_leaves_out_moves_nothing() -> None:
    trainer = Trainer(RUN)
    trainer.step(RUN, 0)
    state = trainer.snapshot()
    trainer.step(RUN, 1, judge=lambda loss, norm: Decision("skip"))
    assert same(trainer.state(), state)
    trainer.step(RUN, 1)
    assert not same(trainer.state(), state)


@pytest.mark.slow
def test_a_spike_is_left_out_of_the_counters_too(tmp_path: Path) -> None:
    run = marked({3: NAN}, RUN.replace({"model.factory": "spiky:Spiky", "data.source": "spiky:Marked"}))
    run = run.replace(parametrization="sp")
    spiky = bits(*trained(tmp_path / "spiky", run, STEPS))
    assert spiky == bits(*trained(tmp_path / "calm", run, STEPS, left_out=[(3, 4)]))


def test_a_run_that_goes_back_goes_on_as_it_did() -> None:
    loop = Loop(RUN, Trainer(RUN), InMemory(), ledger=False)
    ends = []
    for _ in range(2):
        while loop.step < STEPS:
            if loop.step == 2:
                loop.commit()
            loop.advance()
            loop.evaluate()
        ends.append((loop.trainer.snapshot(), loop.loss))
        loop.reload(2)
    (first, loss), (second, again) = ends
    assert same(first, second)
    assert loss == again


def test_other_schedules_are_refused() -> None:
    said = (
        '`schedule.name` must be "constant" with schedule_free_adamw, which does without others, but got "cosine"; set '
        "it, or use adamw"
    )
    with pytest.raises(ConfigError) as error:
        RUN.replace({"schedule.name": "cosine"})
    assert str(error.value) == said
    axes = {"schedule.name": Choice(("constant", "cosine"))}
    with pytest.raises(ConfigError, match=r"`schedule.name` must be"):
        Search("s", RUN, axes, 4, 2, {"schedule.name": "constant"})


def test_a_momentum_of_nothing_leaves_no_average() -> None:
    with pytest.raises(ConfigError, match=r"`optimizer.beta1` must be above 0 .*, but got 0; use e.g. 0.9"):
        RUN.replace({"optimizer.beta1": 0})


def test_only_rows_are_averaged() -> None:
    with pytest.raises(ConfigError, match='must have `unit` "row" or "model", but schedule_free_adamw has'):
        replace(OPTIMIZERS[NAME], unit="matrix")


def test_without_its_package_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "schedulefree", None)
    said = (
        "schedule_free_adamw needs the package schedulefree, which is not installed; "
        "pip install -e '.[optimizers]' in froude's checkout"
    )
    for start in (material_of, Trainer, lambda run: check_code_and_corpus([run], trust=False)):
        with pytest.raises(ConfigError) as error:
            start(RUN)
        assert str(error.value) == said


def test_its_package_is_in_the_record_and_stays_what_it_was(tmp_path: Path) -> None:
    here = material_of(RUN)
    assert here.versions["schedulefree"] == version("schedulefree")
    assert "schedulefree" not in material_of(RUN.replace({"optimizer.name": "adamw"})).versions
    here.same_library("schedulefree", here.to_dict(), "the driver's")
    other = Material(here.corpus, here.modules, {**here.versions, "schedulefree": "1.2"})
    store = RunStore(Location.parse(tmp_path) / "runs" / RUN.name, RUN.name)
    store.open_attempt(RUN.fingerprint, {"material": other.to_dict()})
    with pytest.raises(
        ConfigError,
        match=r"must have one version of schedulefree, .* has .*, a library of another version than the "
        r"checkpoint's, 1.2; pip install schedulefree==1.2",
    ):
        train(RUN, Location.parse(tmp_path), cluster=None)  # type: ignore[arg-type]
