"""A run whose batch is ramped, trained: what its steps have, what is recorded, and what its ledger proves."""

from __future__ import annotations

import math

import polars as pl
import pytest
import torch

from froude.checkpoint.run_store import RunStore
from froude.config import Run
from froude.promote.token_audit import account, is_slot, token_account
from froude.study import Study
from froude.train.api import Unsupervised, build_model
from froude.train.optimizers import build
from froude.train.parallel import World
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


@pytest.mark.parametrize(
    "name", ["adam", "adamw", "adamw8bit", "ademamix", "soap", "shampoo", "schedule_free_adamw"]
)
def test_an_update_of_a_constant_gradient_stays_where_beta2_changes(name: str) -> None:
    """Else a moment that began at 0 under one beta2 would be divided as if it had begun under another."""
    settings = {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0}
    run = RUN.replace({"optimizer": {"name": name, **settings}, "schedule.ramp_rate": "constant"})
    torch.manual_seed(0)
    model = build_model(run)
    optimizer = build(run, model, World())
    weight = dict(model.named_parameters())["layers.0.attention_out"]
    moved = []
    for step in range(6):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        for group in optimizer.param_groups:
            group["lr"] = group["peak"]
        optimizer.schedule(run, step)
        before = weight.detach().clone()
        optimizer.step()
        moved.append(float((weight.detach() - before).norm()))
    assert moved[4] == pytest.approx(moved[3], rel=0.05)
