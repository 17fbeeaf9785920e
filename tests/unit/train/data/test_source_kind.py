"""A source from outside the package: a module of one's own, named by a run: trusted, probed, trained, audited."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from froude import Study
from froude.checkpoint.run_store import RunStore
from froude.checkpoint.tensors import digest
from froude.config import ConfigError, Run
from froude.promote.token_audit import token_account
from froude.runlog import LogReader
from froude.store import Location
from froude.train import api
from froude.train.api import Unsupervised
from froude.train.probe import contract
from froude.train.trial import run_trial
from froude.train.worker import run_worker

MODULE = """
import hashlib
import numpy as np

class Threes:
    length = 500

    def __init__(self, run, split):
        self.context, self.vocab, self.start = run.model.context, run.model.vocab, run.data.options.get("start", 0)
        self.sha256 = hashlib.sha256(f"threes from {self.start}".encode()).hexdigest()
        self.offset = 0 if split == "train" else self.length

    def read(self, first, n):
        window = self.start + self.offset + np.arange(first, first + n)[:, None]
        return (11 * window + 3 * np.arange(self.context + 1)) % self.vocab
"""
STEPS = 6
RUN = Run(
    name="large",
    tokens=256 * STEPS,
    batch=256,
    slots=2,
    eval_windows=16,
    model={"width": 16},
    norms_every=0,
    data={"source": "own_source:Threes"},
)


@pytest.fixture(autouse=True)
def own_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_source.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("own_source", None)


@dataclass
class Stopping(Unsupervised):
    """A host that ends its attempt after a step."""

    after: int = STEPS

    def poll(self, step: int) -> str:  # type: ignore[override]
        return "stop" if step == self.after else "none"


def trained(folder: Path, *attempts: int) -> str:
    """The digest of the state after attempts that stop at these steps."""
    place = Location.parse(folder) / "runs" / RUN.name
    for after in attempts:
        store = RunStore(place, RUN.name)
        run_worker(RUN, store, Stopping(store.open_attempt("recipe"), after), device="cpu")
    return digest(place, LogReader(place).lineage()[-1])


def test_it_is_code_that_needs_the_users_word() -> None:
    assert RUN.foreign == ("own_source:Threes",)
    with pytest.raises(ConfigError, match="own_source:Threes; read that code, then pass --trust"):
        api.check_trust(RUN, trust=False)
    api.check_trust(RUN, trust=True)


def test_the_probe_finds_it_sound_and_names_what_is_not(tmp_path: Path) -> None:
    contract.check([RUN])
    (tmp_path / "own_source.py").write_text(MODULE.replace("% self.vocab", "% 256"))
    sys.modules.pop("own_source")
    with pytest.raises(
        ConfigError, match=r"must be from 0 to 15, .*own_source:Threes holds \d+; set `model.vocab`"
    ):
        contract.check([RUN.replace({"model.vocab": 16})])


def test_it_trains_and_its_rows_and_material_name_it() -> None:
    outcome = run_trial([RUN.replace({"optimizer.lr": 0.03, "tokens": 256 * 60})], trial="t")
    (row,) = outcome.trials
    assert (row["status"], row["corpus"]) == ("finished", "own_source:Threes")
    assert row["loss"] < 4 < outcome.steps[0]["loss"]  # it learns to count
    material, other = api.material_of(RUN), api.material_of(RUN.replace({"data.options": {"start": 3}}))
    assert set(material.modules) == {"own_source"}
    assert material.corpus != other.corpus


@pytest.mark.slow
def test_an_interrupted_run_reads_each_of_its_tokens_once_and_has_the_same_bits(tmp_path: Path) -> None:
    assert trained(tmp_path / "cut", 2, 4, STEPS) == trained(tmp_path / "whole", STEPS)
    account = token_account(Study(tmp_path / "cut"), RUN.name, RUN)
    assert account.whole
    assert account.trained == RUN.tokens
    slots = [
        Study(tmp_path / name).ledger().sort("step", "slot").collect()["digest"].to_list()
        for name in ("cut", "whole")
    ]
    assert slots[0] == slots[1]
    assert len(set(slots[0])) == STEPS * RUN.slots
