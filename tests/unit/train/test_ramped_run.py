"""A run whose batch is ramped, trained: what its steps have, what is recorded, and what its ledger proves."""

from __future__ import annotations

import math

import polars as pl
import pytest

from froude.checkpoint.run_store import RunStore
from froude.config import Run
from froude.promote.token_audit import account, is_slot, token_account
from froude.study import Study
from froude.train.api import Unsupervised
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
