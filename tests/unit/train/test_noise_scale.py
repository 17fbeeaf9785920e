"""The noise scale during training: norms of slots, their averages, and that measuring changes no bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from froude import laws
from froude.checkpoint.run_store import RunStore
from froude.config import Run
from froude.runlog import LogReader
from froude.store import Location
from froude.study import Study
from froude.train.api import Unsupervised
from froude.train.exact.torch_internals import unpacked
from froude.train.objective import summed_loss
from froude.train.observers.noise_scale import NoiseScale
from froude.train.trainer import Trainer
from froude.train.worker import run_worker

pytestmark = pytest.mark.slow

RUN = Run(
    name="large",
    tokens=768 * 40,
    batch=768,
    slots=12,
    reduction="exact",
    noise_every=1,
    checkpoint_every=30,
    eval_windows=16,
    parametrization="sp",
    model={"factory": "spiky:Spiky", "width": 16},
    optimizer={"lr": 1e-2},
    schedule={"warmup_tokens": 768 * 10},
)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


def test_norms_are_those_of_each_slots_own_gradient_and_of_the_batchs() -> None:
    trainer = Trainer(RUN)
    windows = trainer.draw(0).windows
    found = trainer.reduction.backward(windows, noise=True)
    parameters = list(trainer.model.parameters())
    gradients = []
    for slot in windows.split(RUN.windows_per_slot):
        loss = summed_loss(trainer.model, slot, RUN) / (RUN.batch / RUN.slots)
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]).double())
    whole = torch.stack(gradients)
    assert found.slot_square == pytest.approx(float(whole.square().sum(1).mean()), rel=1e-5)
    assert found.norm == pytest.approx(float(whole.mean(0).norm()), rel=1e-5)


def test_what_is_measured_changes_no_bit_of_the_training() -> None:
    watched, alone = Trainer(RUN), Trainer(RUN)
    for step in range(4):
        a, b = watched.step(RUN, step, noise=True), alone.step(RUN, step)
        assert (a.loss, a.grad_norm) == (b.loss, b.grad_norm)
        assert (a.slot_square is None, b.slot_square is None) == (False, True)
    other = alone.state()
    assert all(torch.equal(tensor, other[name]) for name, tensor in watched.state().items())


def test_a_fast_run_has_no_gradients_of_slots() -> None:
    run = RUN.replace(reduction="fast")
    assert Trainer(run).step(run, 0, noise=True).slot_square is None


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
def test_gradients_come_whole_out_of_what_fsdp_packs(world: int) -> None:
    shapes = [torch.Size(s) for s in ((5,), (4, 3), (7, 2, 2), (1, 6))]
    gradients = [torch.randn(shape) for shape in shapes]
    ranks = []
    for rank in range(world):
        for g in gradients:
            most = -(-len(g) // world)
            rows = g[rank * most : (rank + 1) * most]
            ranks.append(torch.cat([rows, rows.new_zeros(most - len(rows), *g.shape[1:])]).flatten())
    found = unpacked(torch.cat(ranks), shapes, world)
    for whole, gradient in zip(found, gradients, strict=True):
        assert torch.equal(whole.view_as(gradient), gradient)


def test_the_trace_is_the_same_whatever_the_slots_size() -> None:
    """Windows are independent draws, so the variance of a slot's gradient goes as one over its tokens."""
    found = []
    for slots in (12, 4):
        run = RUN.replace(slots=slots)
        trainer, rows = Trainer(run), []
        for batch in range(100):
            totals = trainer.reduction.backward(trainer.draw(batch).windows, noise=True)
            trainer.optimizer.zero_grad()
            rows.append(
                {"step": batch + 1, "small_sq_norm": totals.slot_square, "big_sq_norm": totals.norm**2}
            )
        frame = pl.DataFrame(rows).with_columns(batch_small=run.batch // slots, batch_big=run.batch)
        found.append(laws.noise_scale(frame))
    fine, coarse = found
    assert fine.trace.value == pytest.approx(coarse.trace.value, rel=0.1)
    assert fine.grad_sq.value == pytest.approx(coarse.grad_sq.value, rel=0.02)


def drawn(steps: int, seed: int = 0) -> list[tuple[float, float]]:
    """Squared norms of 8 micro-batches of 8 and of their mean: |G|² = 4, covariance 2 I in 1,000 dimensions."""
    rng = np.random.default_rng(seed)
    mean = 2 / 64 * rng.noncentral_chisquare(1000, 4 / (2 / 64), steps)
    return list(zip((mean + 2 / 8 * rng.chisquare(7000, steps) / 8).tolist(), mean.tolist(), strict=True))


def test_averages_give_the_noise_scale_when_they_tell_enough() -> None:
    noise, seen = NoiseScale(RUN.replace(tokens=768 * 100_000)), []
    for step, (small, big) in enumerate(drawn(3000), 1):
        noise.add(step, 8, 64, small, big)
        seen.append(noise.value)
    assert seen[:99] == [None] * 99
    assert seen[-1] == pytest.approx(500, rel=0.02)
    silent = NoiseScale(RUN)
    for step in range(1, 300):
        silent.add(step, 8, 64, 8.0 + (-1) ** step, 1.0)  # |G|² = 0
    assert silent.value is None


def test_averages_go_on_from_a_checkpoint_as_if_there_had_been_none() -> None:
    rows = drawn(400)
    through = NoiseScale(RUN)
    for step, (small, big) in enumerate(rows, 1):
        through.add(10 * step, 8, 64, small, big)
        if step == 250:
            again = NoiseScale(RUN, json.loads(json.dumps(through.state())))
    for step, (small, big) in enumerate(rows[250:], 251):
        again.add(10 * step, 8, 64, small, big)
    assert through.state() == again.state()
    assert through.value == again.value


class StopsAt(Unsupervised):
    def __init__(self, attempt: int, step: int) -> None:
        super().__init__(attempt)
        self.step = step

    def poll(self, step: int) -> Any:
        return "stop" if step == self.step else "none"


def train(folder: Path, run: Run, stop: int = 0) -> Study:
    store = RunStore(Location.parse(folder) / "runs" / run.name, run.name)
    run_worker(run, store, StopsAt(store.open_attempt("recipe"), stop), device="cpu")
    return Study(folder)


NORMS = ("step", "batch_small", "batch_big", "small_sq_norm", "big_sq_norm", "noise_scale")


def test_a_run_that_was_interrupted_has_the_same_noise_scale_at_every_step(tmp_path: Path) -> None:
    run = RUN.replace({"batch": 256, "slots": 4, "tokens": 256 * 130, "schedule.warmup_tokens": 2560})
    train(tmp_path / "two", run, stop=110)
    studies = [train(tmp_path / "one", run), train(tmp_path / "two", run)]
    one, two = (study.steps().sort("step").select(NORMS).collect() for study in studies)
    assert one.equals(two)
    assert one["noise_scale"].is_null()[:99].all()
    assert not one["noise_scale"].is_null().all()
    states = [LogReader(s.location / "runs" / "large").lineage()[-1].scalars["noise"] for s in studies]
    assert states[0] == states[1]
    assert states[0]["count"] == 130
    law = laws.noise_scale(one, half_life=100)
    assert law.trend["noise_scale"].fill_null(0.0).to_list() == pytest.approx(
        one["noise_scale"].fill_null(0.0).to_list(), rel=1e-9
    )


def test_other_steps_are_not_measured(tmp_path: Path) -> None:
    steps = train(tmp_path, RUN.replace(noise_every=10)).steps().sort("step").collect()
    measured = steps.drop_nulls("small_sq_norm")
    assert measured["step"].to_list() == [10, 20, 30, 40]
    assert measured["batch_small"].unique().to_list() == [64]
    assert (measured["big_sq_norm"].sqrt() - measured["grad_norm"]).abs().max() < 1e-12
    without = train(tmp_path / "none", RUN.replace(noise_every=0)).steps().collect()
    assert without["small_sq_norm"].is_null().all()
