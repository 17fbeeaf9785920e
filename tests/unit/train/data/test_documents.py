"""Documents beside their tokens: from a source to a model's mask, in steps and evaluations; and who lacks them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from froude.config import ConfigError, Run
from froude.train import api
from froude.train.data import ledger
from froude.train.data.documents import beside, inputs, labels, tokens_of
from froude.train.data.mixture import Mixture
from froude.train.data.order import Batches, validation_windows
from froude.train.objective import summed_loss
from froude.train.probe.contract import check
from froude.train.trainer import Trainer

SHARDS = "froude.train.data.shards:Shards"


@pytest.fixture
def packed(make_run: Callable[..., Run], root: Path) -> Callable[..., Run]:
    def make(**changes: Any) -> Run:
        base = {
            "data.source": SHARDS,
            "data.path": str(root / "tests/data/shards/megatron"),
            "model.vocab": 1000,
            "model.documents": True,
            "model.readout_sd": 0.5,
        }
        return make_run(base | changes)

    return make


def test_windows_with_documents_are_cut_as_those_without() -> None:
    tokens, documents = np.arange(12).reshape(3, 4), np.arange(12).reshape(3, 4) // 5
    for windows in (torch.from_numpy(tokens), torch.from_numpy(beside(tokens, documents))):
        assert torch.equal(tokens_of(windows), torch.from_numpy(tokens))
        assert torch.equal(labels(windows), torch.from_numpy(tokens[:, 1:]))
        given = inputs(windows[1:])
        assert torch.equal(given[0], torch.from_numpy(tokens[1:, :-1]))
    assert torch.equal(given[1], torch.from_numpy(documents[1:, :-1]))


def test_a_step_and_an_evaluation_mask_other_documents_and_the_ledger_names_tokens_alone(
    packed: Callable[..., Run],
) -> None:
    run = packed()
    plain = run.replace({"model.documents": False})
    trainers = Trainer(run), Trainer(plain)
    drawn = [trainer.draw(0) for trainer in trainers]
    assert drawn[0].windows.shape == (run.windows, 2, run.model.context + 1)
    rows = [ledger.rows(run, 1, 1, each, "trained") for each in drawn]
    assert rows[0] == rows[1]
    source = api.build_source(run, "train")
    numbers = Batches(source, run.seed, run.windows_per_slot, run.slots).windows(0, 0)
    owners = np.concatenate([source.documents(number, 1) for number in numbers])  # type: ignore[attr-defined]
    assert len(np.unique(owners)) > len(owners)  # some windows are of several
    assert np.array_equal(drawn[0].windows[: len(owners), 1], owners)
    losses = [trainer.step(run, 0).loss for trainer in trainers]
    assert losses[0] != losses[1]

    model, windows = (
        trainers[0].model,
        torch.from_numpy(
            validation_windows(api.build_source(run, "validation"), run.eval_windows, documented=True)
        ),
    )
    due = 0.0
    with torch.no_grad():
        for window in windows:
            tokens, owner = window
            starts = [0, *(np.flatnonzero(np.diff(owner[:-1])) + 1), run.model.context]
            for first, end in pairwise(starts):
                due += float(summed_loss(model, tokens[None, first : end + 1], run))
    assert trainers[0].evaluate() == pytest.approx(due / (len(windows) * run.model.context), rel=1e-5)


def test_a_mixture_of_parts_with_documents_has_them(packed: Callable[..., Run], root: Path) -> None:
    parts = [
        {"name": name, "source": SHARDS, "path": str(root / "tests/data/shards" / name), "weight": 1}
        for name in ("megatron", "dolma")
    ]
    run = packed(data={"parts": parts})
    for split in ("train", "validation"):
        source = api.build_source(run, split)  # type: ignore[arg-type]
        assert isinstance(source, Mixture)
        assert source.documents is not None
        documents = source.documents(0, source.length)
        assert documents.shape == source.read(0, source.length).shape
        assert documents.dtype == np.int64
    train, part = api.build_source(run, "train"), Mixture(run, "train").parts["dolma"]
    length = train.length - part.length  # type: ignore[attr-defined]
    assert np.array_equal(train.documents(length, 2), part.documents(0, 2))  # type: ignore[attr-defined]
    parts[1] |= {"path": str(root / "tests/data/shards/llm.c")}
    with pytest.raises(ConfigError, match=r"part 'dolma' .*but the train split of .*llm\.c does not"):
        api.build_source(packed(data={"parts": parts}), "train")


def test_a_source_or_a_model_without_is_an_error_before_anything_starts(packed: Callable[..., Run]) -> None:
    for run, says in (
        (
            packed(**{"data.path": "", "data.source": "froude.train.data.kjv:KingJames"}),
            "KingJames does not; use one of",
        ),
        (packed(**{"data.source": "foreign_model:Counting"}), "the train split of .* does not"),
    ):
        with pytest.raises(
            ConfigError, match=rf"`model.documents` needs a source that tells documents apart .*{says}"
        ):
            check([run])
    foreign = packed(**{"model.factory": "foreign_model:factory"})
    with pytest.raises(
        ConfigError, match="a model whose forward takes `documents`, but that of foreign_model:factory"
    ):
        check([foreign])
    check([packed()])


@pytest.mark.parametrize("masked", [True, False])
def test_documents_of_another_shape_are_named(
    packed: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, masked: bool
) -> None:
    import foreign_model

    monkeypatch.setattr(
        foreign_model.Counting, "documents", lambda self, first, n: np.zeros((n, 3), dtype=int), raising=False
    )
    run = packed(**{"data.path": "", "data.source": "foreign_model:Counting", "model.documents": masked})
    with pytest.raises(ConfigError, match=r"documents\(first, 1\) must return integers \[1, context \+ 1\]"):
        check([run])
