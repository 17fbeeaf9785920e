"""Rows that tell how near a run is to a spike, against what they are made of."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from froude.checkpoint.run_store import RunStore
from froude.checkpoint.tensors import Tensors
from froude.config import Run
from froude.runlog import LogReader
from froude.store import Location
from froude.study import Study
from froude.train import loop as loops
from froude.train.api import Unsupervised
from froude.train.loop import Loop
from froude.train.observers.dynamics import Dynamics
from froude.train.parallel import World
from froude.train.speed import collector
from froude.train.stability.spikes import Decision, Place, SpikePolicy
from froude.train.trainer import Trainer, only_trainer
from froude.train.trial import InMemory
from froude.train.worker import own_observers, run_worker

RUN = Run(
    name="large",
    tokens=256 * 4,
    batch=256,
    slots=2,
    norms_every=2,
    checkpoint_every=1,
    keep_checkpoints=0,
    eval_windows=16,
    model={"width": 32},
    optimizer={"lr": 1e-2},
)


def train(folder: Path, run: Run) -> tuple[Study, list[dict[str, Any]]]:
    """The study, and the tensors after each step, fp64."""
    place = Location.parse(folder) / "runs" / run.name
    store = RunStore(place, run.name)
    run_worker(run, store, Unsupervised(store.open_attempt("recipe")), device="cpu")
    states = []
    for record in LogReader(place).lineage():
        if record.kind != "attempt":
            with Tensors(place, record) as tensors:
                states.append({name: tensors[name].double().numpy() for name in tensors})
    return Study(folder), states


def values(study: Study, kind: str, step: int) -> dict[str, float]:
    rows = study.norms().filter(kind=kind, step=step).select("name", "value").collect()
    return dict(rows.iter_rows())


@pytest.mark.slow
def test_rows_are_those_of_the_steps_states(tmp_path: Path) -> None:
    study, states = train(tmp_path, RUN)
    assert study.norms().collect()["step"].unique().sort().to_list() == [2, 4]
    ratios = values(study, "update_ratio", 4)
    matrices = [name for name, tensor in states[2].items() if name.startswith("model.") and tensor.ndim > 1]
    assert {f"model.{name}" for name in ratios} == set(matrices)
    for name, ratio in ratios.items():
        old, new = (states[i][f"model.{name}"] for i in (2, 3))
        assert ratio == pytest.approx(np.linalg.norm(new - old) / np.linalg.norm(old), rel=1e-6)
    moments = values(study, "second_moment", 4)
    assert moments.keys() == {"embedding", "hidden", "norm", "readout"}
    v = states[3]["optimizer.readout.exp_avg_sq"]
    denominators = np.sqrt(v[v > 0] / (1 - RUN.optimizer.beta2**4)) / RUN.optimizer.eps
    assert moments["readout"] == pytest.approx(float(np.median(denominators)), rel=0.013)
    assert not study.events().collect().height


@pytest.mark.slow
def test_attention_logits_are_the_largest_that_softmax_is_given(tmp_path: Path) -> None:
    run = RUN.replace({"norms_every": 1, "tokens": 256})
    study, _ = train(tmp_path, run)
    trainer = Trainer(run)
    windows = trainer.draw(0).windows  # one pass, of which the first window is looked at
    block, seen = trainer.model.layers[0], []  # type: ignore[union-attr,index]
    hook = block.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0].detach()))
    trainer.model(windows[:, :-1])
    hook.remove()
    x = seen[0][0].double().numpy()
    weights = {name: p.detach().double().numpy() for name, p in block.named_parameters()}
    h = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weights["attention_norm"]
    q, k, _ = (h @ weights["qkv"].T).reshape(64, 3, 2, 16).transpose(1, 2, 0, 3)
    angle = np.arange(64)[:, None] * 10_000.0 ** (-np.arange(0, 16, 2) / 16)
    turn = np.exp(1j * angle)
    q, k = ((each[..., :8] + 1j * each[..., 8:]) * turn for each in (q, k))
    scores = np.real(q @ k.conj().swapaxes(-1, -2)) * block.scale
    largest = scores[:, np.tril(np.ones((64, 64), bool))].max()
    assert values(study, "attention_logit", 1)["blocks.0"] == pytest.approx(largest, rel=1e-4)


def test_a_run_that_goes_back_to_its_start_never_holds_two_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a step whose norms are due, of which the observers hold hooks, sums and a copy of each matrix."""
    observers, left = own_observers(), list[object]()
    loop = Loop(RUN, Trainer(RUN), InMemory(), observers, ledger=False)  # type: ignore[arg-type]
    model = weakref.ref(loop.trainer.model)

    def built(run: Run, world: World, **options: Any) -> Trainer:
        collector.collect_all()
        copies = [
            tensor for each in observers if isinstance(each, Dynamics) for tensor in each.before.values()
        ]
        left.extend([model(), *copies])
        return only_trainer(run, world, **options)

    def judge(policy: SpikePolicy, step: int, loss: float, norm: float) -> Decision:
        here = Place(step, policy.batch)
        return policy._back(here, here, "it is high") if step == 2 and not left else Decision()

    monkeypatch.setattr(loops, "only_trainer", built)
    monkeypatch.setattr(SpikePolicy, "judge", judge)
    assert [loop.advance(), loop.advance()] == [True, False]
    assert (loop.step, left) == (0, [None])


def test_a_pass_without_a_window_tells_nothing() -> None:
    """Of a rank with fewer slots than others, where micro-batches are shared out one window at a time."""
    block = SimpleNamespace(largest_attention_logit=lambda inputs: inputs[0].max())
    watch = object.__new__(Dynamics)
    watch.loop = SimpleNamespace(run=RUN)  # type: ignore[assignment]
    watch.logits = [torch.tensor(1.0)]
    for windows in (torch.empty(0, RUN.model.context, 8), torch.full((2, RUN.model.context, 8), 3.0)):
        watch._see(0, block, (windows,), {})
    assert watch.logits == [torch.tensor(3.0)]


def test_a_block_is_asked_with_what_its_forward_is_given() -> None:
    class Block(torch.nn.Module):
        def forward(self, inputs: torch.Tensor, *, scale: float) -> torch.Tensor:
            return inputs

        def largest_attention_logit(self, inputs: torch.Tensor, *, scale: float) -> torch.Tensor:
            return scale * inputs.max()

    block, windows = Block(), torch.ones(2, RUN.model.context, 8)
    watch = object.__new__(Dynamics)
    watch.loop = SimpleNamespace(run=RUN, world=SimpleNamespace(device="cpu"))  # type: ignore[assignment]
    watch._blocks = lambda: [block]  # type: ignore[method-assign]
    with watch._watching():
        block(3 * windows, scale=2.0)
        assert watch.logits == [torch.tensor(6.0)]
        block(inputs=4 * windows, scale=2.0)
        assert watch.logits == [torch.tensor(8.0)]


@pytest.mark.slow
def test_momenta_have_the_singular_values_that_they_have(tmp_path: Path) -> None:
    study, states = train(tmp_path, RUN.replace({"optimizer": {"name": "muon"}}))
    rows = study.norms().filter(pl.col("kind").str.starts_with("momentum"), step=4).collect()
    assert rows["name"].n_unique() == 2 * 7  # q, k, v, out, gate, up, down
    momentum = states[3]["optimizer.layers.1.down.momentum_buffer"]
    expected = np.quantile(np.linalg.svd(momentum, compute_uv=False), (0.1, 0.5, 0.9))
    found = rows.filter(name="layers.1.down").sort("kind")["value"].to_list()
    assert found == pytest.approx(expected.tolist(), rel=1e-5)
    assert values(study, "second_moment", 4).keys() == {"embedding", "norm", "readout"}


@pytest.mark.slow
def test_a_kind_that_epsilon_holds_back_is_an_event(tmp_path: Path) -> None:
    study, _ = train(tmp_path, RUN.replace({"optimizer.eps": 1.0}))
    events = study.events().collect()
    assert events["action"].unique().to_list() == ["warn"]
    assert "sqrt(v)/epsilon of hidden parameters is" in " ".join(events["why"])


@pytest.mark.slow
def test_watching_changes_no_bit(tmp_path: Path) -> None:
    watched = train(tmp_path / "watched", RUN)[1][-1]
    alone = train(tmp_path / "alone", RUN.replace(norms_every=0))[1][-1]
    assert watched.keys() == alone.keys()
    assert all(np.array_equal(watched[name], alone[name]) for name in watched)
    assert torch.is_grad_enabled()
