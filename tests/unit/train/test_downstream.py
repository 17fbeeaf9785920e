"""A user's own evaluation at checkpoints: its numbers are kept, its errors are told, and no bit of the run changes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from froude.checkpoint.run_store import RunStore
from froude.checkpoint.tensors import digest
from froude.cli import main
from froude.config import Run
from froude.runlog import LogReader
from froude.store import Location
from froude.study import Study
from froude.train.api import Unsupervised
from froude.train.observers.downstream import Downstream
from froude.train.worker import run_worker

pytestmark = pytest.mark.slow

RUN = Run(
    name="large",
    tokens=128 * 5,
    batch=128,
    slots=2,
    reduction="exact",
    eval_windows=16,
    checkpoint_every=2,
    model={"width": 16},
    optimizer={"name": "schedule_free_adamw"},
    schedule={"name": "constant"},
    norms_every=0,
)


def trained(folder: Path, *functions: Callable[..., Any]) -> tuple[str, list[float]]:
    place = Location.parse(folder) / "runs" / RUN.name
    store = RunStore(place, RUN.name)
    supervisor = Unsupervised(attempt=store.open_attempt("recipe"))
    run_worker(RUN, store, supervisor, device="cpu", observers=[Downstream(f, "mine:f") for f in functions])
    losses = Study(folder).steps().sort("step").collect()["loss"].to_list()
    return digest(place, LogReader(place).lineage()[-1]), losses


def noisy(model: nn.Module, step: int) -> dict[str, float]:
    """Draws from every generator, switches modes, and looks at logits."""
    assert not model.training
    assert not torch.is_grad_enabled()
    torch.manual_seed(step)
    random.seed(step)
    np.random.seed(step)
    logits = model(torch.randint(0, 255, (2, 8)))
    model.train()
    return {"logit": float(logits.mean()), "odd": math.nan}


def raising(model: nn.Module, step: int) -> dict[str, float]:
    raise KeyError("no such benchmark")


def test_it_changes_no_bit_and_its_numbers_are_a_frame(tmp_path: Path) -> None:
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    alone = trained(tmp_path / "alone")
    drawn = random.random(), np.random.random(), float(torch.rand(()))
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    assert trained(tmp_path / "evaluated", noisy) == alone
    assert (random.random(), np.random.random(), float(torch.rand(()))) == drawn
    rows = Study(tmp_path / "evaluated").downstream().sort("step", "name").collect()
    assert rows.select("step", "name").rows() == [(s, n) for s in (2, 4, 5) for n in ("logit", "odd")]
    assert rows["tokens"].to_list() == [128 * s for s in (2, 2, 4, 4, 5, 5)]
    assert rows.filter(name="odd")["value"].null_count() == 3
    assert rows.filter(name="logit")["value"].n_unique() == 3


def test_one_that_raises_is_told_and_ends_no_run(tmp_path: Path) -> None:
    assert trained(tmp_path / "raising", raising, noisy) == trained(tmp_path / "alone")
    events = Study(tmp_path / "raising").events().collect()
    assert events["step"].to_list() == [2, 4, 5]
    assert set(events["action"]) == {"warn"}
    assert "mine:f raised KeyError: 'no such benchmark' (at " in events["why"][0]
    assert Study(tmp_path / "raising").downstream().collect().height == 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--evaluate", "spiky:NAN"], "read that code, then pass --trust"),
        (
            ["--evaluate", "spiky:NAN", "--trust"],
            "must name a function of (model, step), but spiky:NAN is none",
        ),
        (["--evaluate", "spiky:lost", "--trust"], "has no 'lost'"),
        (["--evaluate", "nowhere:f", "--trust"], "must name an importable module"),
    ],
)
def test_what_cannot_be_called_is_refused_first(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "nothing.toml", *options]) == 2
    assert words in capsys.readouterr().err
