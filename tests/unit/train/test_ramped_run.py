"""A run whose batch is ramped, trained: what its steps have, what is recorded, and what its ledger proves."""

from __future__ import annotations

import math

import polars as pl
import pytest
import torch
from torch import nn

from froude import schedules
from froude.checkpoint.run_store import RunStore
from froude.config import Run
from froude.optimizers import OPTIMIZERS
from froude.promote.token_audit import account, is_slot, token_account
from froude.study import Study
from froude.train.api import Unsupervised, build_model
from froude.train.optimizers import build
from froude.train.optimizers.composed import Composed
from froude.train.parallel import World
from froude.train.stability.spikes import Decision
from froude.train.trainer import Trainer
from froude.train.worker import run_worker

RUN = Run(
    name="large",
    tokens=768 * 20,
    batch=768,
    slots=4,
    eval_windows=64,
    model={"width": 32},
    optimizer={"lr": 2**-8},
    schedule={"name": "constant", "ramp": [[768 * 4, 2], [768 * 12, 4]], "weight_decay_to": 0.0},
)
FACTORS = [1] * 4 + [2] * 4 + [4] * 2


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    found = Study(tmp_path_factory.mktemp("ramped"))
    store = RunStore(found.location / "runs" / RUN.name, RUN.name)
    run_worker(RUN, store, Unsupervised(attempt=store.open_attempt("recipe")), device="cpu")
    return found


def test_each_step_is_of_its_phase(study: Study) -> None:
    steps = study.steps().filter(run="large").sort("step").collect()
    assert steps["step"].to_list() == list(range(1, 11))
    assert steps["tokens"].diff().drop_nulls().to_list() == [768 * f for f in FACTORS[1:]]
    assert steps["lr"].to_list() == pytest.approx([2**-8 * math.sqrt(f) for f in FACTORS])


def test_the_ledger_has_each_token_once(study: Study) -> None:
    ledger = study.ledger().collect()
    assert ledger.filter(is_slot(RUN)).height == ledger.height == RUN.steps * RUN.slots
    found = token_account(study, "large", RUN)
    assert (found.expected, found.skipped, found.repeated) == (RUN.tokens, 0, 0)


@pytest.mark.parametrize("step", [4, 5, 9])
def test_a_slot_that_is_lost_or_halved_is_found(study: Study, step: int) -> None:
    rows = study.ledger().collect()
    one = (pl.col("step") == step) & (pl.col("slot") == 1)
    tokens = 192 * FACTORS[step - 1]
    lost = account(rows.filter(~one).lazy(), RUN)
    assert (lost.skipped, lost.repeated) == (tokens, 0)
    twice = account(pl.concat([rows, rows.filter(one)]).lazy(), RUN)
    assert (twice.skipped, twice.repeated) == (0, tokens)
    halved = rows.with_columns(samples=pl.when(one).then(1).otherwise("samples"))
    assert halved.filter(is_slot(RUN)).height == rows.height - 1


CORRECTED = [name for name, spec in OPTIMIZERS.items() if spec.corrected]


def built(name: str) -> tuple[Run, nn.Module, Composed]:
    """A run whose rate stays and whose beta2 changes at step 4, with what it trains."""
    settings = {"beta1": 0.9, "beta2": 0.999, **({} if name == "adamh" else {"weight_decay": 0.0})}
    changes = {
        "optimizer": {"name": name, **settings},
        "schedule.ramp_rate": "constant",
        "parametrization": "sp",
    }
    run = RUN.replace(changes)
    torch.manual_seed(0)
    model = build_model(run)
    return run, model, build(run, model, World())


def update(run: Run, model: nn.Module, optimizer: Composed, step: int, gradient: float = 1.0) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    for group in optimizer.param_groups:
        group["lr"] = group["peak"]
    optimizer.schedule(run, step)
    optimizer.step()


@pytest.mark.parametrize("name", sorted({*CORRECTED} - {"apollo", "adamh", "galore_adamw"}))
def test_an_update_of_a_constant_gradient_stays_where_beta2_changes(name: str) -> None:
    """Else a moment that began at 0 under one beta2 would be divided as if it had begun under another."""
    run, model, optimizer = built(name)
    weight = dict(model.named_parameters())["layers.0.attention_out"]
    moved = []
    for step in range(6):
        before = weight.detach().clone()
        update(run, model, optimizer, step)
        moved.append(float((weight.detach() - before).norm()))
    assert moved[4] == pytest.approx(moved[3], rel=0.05)


@pytest.mark.parametrize("name", CORRECTED)
def test_what_is_corrected_keeps_its_quotient_and_all_else_its_bits(name: str) -> None:
    """Matrices that start a step late, as behind a readout of zeros, have taken fewer steps than the run."""
    run, model, optimizer = built(name)
    for step in range(4):
        update(run, model, optimizer, step, gradient=1.0 if step else 0.0)
    before = [{key: tensor.clone() for key, tensor in part.state().items()} for part in optimizer.parts]
    optimizer.schedule(run, 4)
    for part, had in zip(optimizer.parts, before, strict=True):
        old, new = (schedules.beta2_at(run, step, part.settings.beta2) for step in (3, 4))
        assert new < old
        for key, tensor in part.state().items():
            owner, _, last = key.rpartition(".")
            count = part.settings.spec.corrected.get(last)
            wanted = had[key]
            if count and tensor.is_floating_point():
                taken = int(had[f"{owner}.{count}"])
                assert taken in (3, 4)
                wanted = wanted * ((1 - new**taken) / (1 - old**taken))
            assert torch.equal(tensor, wanted), key


@pytest.mark.parametrize("name", ["adamw", "soap"])
def test_an_update_that_is_left_out_where_beta2_changes_moves_no_state(name: str) -> None:
    run, *_ = built(name)
    trainer = Trainer(run)
    for step in range(4):
        trainer.step(run, step)
    before = trainer.snapshot()
    for _ in range(2):
        left_out = trainer.step(run, 4, judge=lambda loss, norm: Decision(action="skip"))
        assert left_out.decision.action == "skip"
    after = trainer.snapshot()
    assert all(torch.equal(after[key], before[key]) for key in before)
