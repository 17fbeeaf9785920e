"""Estimates of the Hessian's diagonal: what they are a mean of, what they depend on, and which runs can't have them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from froude.checkpoint.run_store import RunStore
from froude.checkpoint.tensors import digest
from froude.config import ConfigError, Run
from froude.optimizers.sophia import SOPHIA_G
from froude.runlog import LogReader
from froude.store import Location
from froude.train import api
from froude.train.attention import seen
from froude.train.exact.draws import generator
from froude.train.exact.reduce import Fast, Totals
from froude.train.optimizers import build
from froude.train.optimizers.curvature import GaussNewton, Hutchinson, drawn, due, renew
from froude.train.parallel import World
from froude.train.stability.spikes import Decision
from froude.train.trainer import Trainer
from froude.train.worker import run_worker

VOCAB, WIDTH, BATCH, DRAWS = 3, 2, 4, 1000
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
RUN = Run(
    name="large",
    tokens=128 * 7,
    batch=128,
    slots=2,
    eval_windows=16,
    parametrization="sp",
    norms_every=0,
    model={"width": 16, "readout_sd": 0.2},
)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


class Stopping(api.Unsupervised):
    """A host that ends its attempt after a step."""

    def __init__(self, attempt: int, after: int) -> None:
        super().__init__(attempt)
        self.after = after

    def poll(self, step: int) -> Literal["none", "stop"]:
        return "stop" if step == self.after else "none"


def with_(name: str, **changes: Any) -> Run:
    return RUN.replace({"optimizer": {"name": name, "lr": 1e-3, "options": {"every": 3}}, **changes})


class Tiny(nn.Module):
    """Tokens to logits by two matrices and a tanh, in fp64."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(VOCAB, WIDTH, generator=generator("table")).double())
        self.out = nn.Parameter(torch.randn(VOCAB, WIDTH, generator=generator("out")).double())

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.tanh(self.table[tokens]) @ self.out.T


def logits(flat: Tensor, tokens: Tensor) -> Tensor:
    """Of Tiny with these parameters, one after the other."""
    table, out = flat.view(2, VOCAB, WIDTH)
    return torch.tanh(table[tokens]) @ out.T


WINDOWS = torch.tensor([[0, 2], [1, 1], [2, 0], [1, 2]])


def hessian_diagonal(flat: Tensor) -> Tensor:
    def loss(x: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits(x, WINDOWS[:, 0]), WINDOWS[:, 1])

    return torch.autograd.functional.hessian(loss, flat).diagonal()


def gauss_newton_diagonal(flat: Tensor) -> Tensor:
    """J' (diag(p) - p p') J of each token, averaged, with the whole Jacobian."""
    tokens = WINDOWS[:, 0]
    jacobian = torch.autograd.functional.jacobian(lambda x: logits(x, tokens), flat)
    p = logits(flat, tokens).softmax(-1)
    middle = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    return torch.einsum("bvi,bvw,bwi->i", jacobian, middle, jacobian) / BATCH


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, diagonal", [(GaussNewton, gauss_newton_diagonal), (Hutchinson, hessian_diagonal)]
)
def test_estimates_have_the_mean_of_the_explicit_diagonal(
    kind: Callable[..., Any], diagonal: Callable[[Tensor], Tensor]
) -> None:
    run = Run(tokens=BATCH, batch=BATCH, model={"context": 1})
    model = Tiny()
    parameters, reduction = dict(model.named_parameters()), Fast(run, model, World())
    found = []
    for step in range(DRAWS):
        model.zero_grad()
        estimator = kind(run, step, parameters, reduction.rounds.mine)
        reduction.backward(WINDOWS, objective=estimator)
        found.append(torch.cat([estimator.estimate(n, p.grad).flatten() for n, p in parameters.items()]))
    estimates = torch.stack(found)
    wanted = diagonal(torch.cat([p.detach().flatten() for p in parameters.values()]))
    error = estimates.std(0) / math.sqrt(DRAWS)
    assert (error < 0.15 * wanted.abs().max()).all()
    assert ((estimates.mean(0) - wanted).abs() < 4 * error).all()


def test_labels_are_drawn_as_often_as_they_are_likely() -> None:
    of_one = torch.tensor([0.1, 0.0, 0.6, 0.3]).log()
    labels = drawn(of_one.expand(20_000, 4), torch.rand(20_000, generator=generator(0)))
    shares = labels.bincount(minlength=4) / 20_000
    assert shares[1] == 0
    assert shares.tolist() == pytest.approx([0.1, 0, 0.6, 0.3], abs=0.015)
    ends = torch.tensor([0.0, 1 - 2**-24])
    assert drawn(of_one.expand(2, 4), ends).tolist() == [0, 3]
    assert drawn(torch.tensor([[-math.inf, 0.0, -math.inf]] * 2), ends).tolist() == [1, 1]
    assert drawn(torch.full((2, 4), math.nan), ends).max() < 4


def estimates(run: Run, step: int) -> dict[str, np.ndarray]:
    """What the state has of them after one, on a new model."""
    trainer = Trainer(run)
    renew(trainer.optimizer, trainer.reduction, trainer.draw(0).windows, run, step)
    return {k: v.numpy().copy() for k, v in trainer.state().items() if k.endswith("hessian")}


@pytest.mark.parametrize("name", ["sophia_g", "sophia_h"])
def test_estimates_are_functions_of_seed_and_step(name: str) -> None:
    run = with_(name)
    torch.manual_seed(1)
    first = estimates(run, 0)
    torch.manual_seed(2)
    again, later = estimates(run, 0), estimates(run, 3)
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert all(not np.array_equal(first[key], later[key]) for key in first)
    parts = estimates(run.replace(micro_batch=64), 0)  # whose labels are the same, one by one
    for key, whole in first.items():
        assert np.linalg.norm(parts[key] - whole) < 1e-3 * np.linalg.norm(whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, reduction", [("sophia_g", "exact"), ("sophia_h", "fast"), ("sophia_h", "exact")]
)
def test_a_run_resumes_between_two_estimates_bit_for_bit(tmp_path: Path, name: str, reduction: str) -> None:
    run = with_(name, reduction=reduction)

    def trained(folder: str, *attempts: int) -> str:
        place = Location.parse(tmp_path / folder) / "runs" / run.name
        for after in attempts:
            store = RunStore(place, run.name)
            run_worker(run, store, Stopping(store.open_attempt("recipe"), after), device="cpu")
        return digest(place, LogReader(place).lineage()[-1])

    assert trained("cut", 1, 3, run.steps) == trained("whole", run.steps)


def test_every_counts_steps_and_gradients_stay_as_they_are() -> None:
    run = with_("sophia_g")
    assert [step for step in range(8) if due(run, step)] == [0, 3, 6]
    assert not due(with_("adamw", **{"optimizer.options": {}}), 0)
    trainer = Trainer(run)
    drawn = trainer.draw(0).windows
    trainer.reduction.backward(drawn)
    before = {name: p.grad for name, p in trainer.model.named_parameters()}
    copies = {name: g.clone() for name, g in before.items() if g is not None}
    renew(trainer.optimizer, trainer.reduction, drawn, run, 0)
    for name, p in trainer.model.named_parameters():
        assert p.grad is before[name]
        assert torch.equal(p.grad, copies[name])


def test_an_update_that_is_left_out_makes_no_estimate() -> None:
    run = with_("sophia_g")
    trainer, other = Trainer(run), Trainer(run)
    before = trainer.snapshot()
    trainer.step(run, 0, batch=0, judge=lambda loss, norm: Decision("skip"))
    assert all(torch.equal(before[key], tensor) for key, tensor in trainer.state().items())
    for each in (trainer, other):
        each.step(run, 0, batch=1)
    assert all(torch.equal(trainer.state()[key], tensor) for key, tensor in other.state().items())
    assert trainer.state()["optimizer.embedding.hessian"].any()


def test_an_estimate_that_is_not_finite_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    run = with_("sophia_g")
    trainer = Trainer(run)
    windows, before = trainer.draw(0).windows, trainer.snapshot()
    backward = trainer.reduction.backward
    monkeypatch.setattr(
        trainer.reduction,
        "backward",
        lambda windows, **more: Totals(0.0, backward(windows, **more).norm * math.inf),
    )
    renew(trainer.optimizer, trainer.reduction, windows, run, 0)
    assert all(torch.equal(before[key], tensor) for key, tensor in trainer.state().items())


class Once(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient


@pytest.mark.long
@pytest.mark.parametrize(
    "fault",
    ["kernel", "function", pytest.param("compiled", marks=[pytest.mark.slow, pytest.mark.own_process])],
)
def test_a_model_without_second_derivatives_is_refused(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = with_("sophia_h")
    trainer = Trainer(run)
    if fault == "function":
        block = trainer.model.layers[0]
        forward = block.forward
        monkeypatch.setattr(block, "forward", lambda *given: Once.apply(forward(*given)))
    elif fault == "compiled":  # as attention with a window is on a GPU
        block = trainer.model.layers[0]
        monkeypatch.setattr(block, "forward", torch.compile(block.forward, backend="aot_eager"))
    else:
        module = "froude.train.optimizers.curvature.sdpa_kernel"
        monkeypatch.setattr(module, lambda backend: torch.enable_grad())
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    with pytest.raises(ConfigError) as error:
        trainer.step(run, 0)
    assert str(error.value).startswith(
        "sophia_h needs second derivatives, but froude.train.model:Transformer has a function without: "
    )
    assert str(error.value).endswith("; write it in plain torch, or use sophia_g")
    assert all(torch.equal(before[name], p) for name, p in trainer.model.named_parameters())
    trainer.step(with_("sophia_g"), 0)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"sliding_window": 100}, "sliding_window"),
        ({"documents": True}, "documents"),
        ({"sliding_window": 100, "context": 64}, ""),  # so short that the mask is of booleans
        ({"sliding_window": 128}, ""),  # all of the context
        ({"sliding_window": 100, "global_every": 1}, ""),
    ],
)
def test_masked_attention_on_a_gpu_is_refused_before_the_first_step(keys: dict[str, Any], named: str) -> None:
    shape = {"model": {"width": 32, "head_dim": 16, "context": 128} | keys}
    run = Run(tokens=768, batch=768, parametrization="sp", optimizer={"name": "sophia_h"}, **shape)
    seen.check(run, CPU)
    seen.check(run.replace({"optimizer.name": "sophia_g"}), CUDA)
    if not named:
        seen.check(run, CUDA)
    else:
        with pytest.raises(
            ConfigError, match=f"sophia_h needs second derivatives, .*`model.{named}` does not"
        ):
            Trainer(run, World(device=CUDA))


def test_hutchinson_has_one_worker() -> None:
    with pytest.raises(ConfigError, match="`workers` must be 1 with sophia_h, whose update needs all of"):
        with_("sophia_h", workers=(1, 2))
    run = with_("sophia_h")
    with pytest.raises(
        ConfigError, match="sophia_h needs all of the model at once, on one worker, but there are 2"
    ):
        build(run, api.build_model(run), World(size=2))


@pytest.mark.parametrize("name", ["sophia_g", "sophia_h"])
@pytest.mark.parametrize(
    "options, message",
    [
        ({"every": 0}, "`optimizer.options.every` must be at least 1, but got 0"),
        ({"every": -3}, "`optimizer.options.every` must be at least 1, but got -3"),
        ({"every": 2.5}, "`optimizer.options.every` must be a int, but got 2.5; its default is 10"),
        ({"gamma": -0.1}, "`optimizer.options.gamma` must be at least 0, but got -0.1"),
        ({"rho": 0.1}, "unknown option `optimizer.options.rho`; {name} has gamma, every"),
    ],
)
def test_bad_options_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        with_(name, **{"optimizer.options": options})
    assert str(error.value) == message.format(name=name)


@pytest.mark.parametrize("wrong", [{"options": {"gamma": 0.1}}, {"unit": "matrix"}])
def test_a_spec_that_no_estimate_can_be_made_for_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match='must have the option `every`, and unit "row" or "model", but sophia_g'
    ):
        replace(SOPHIA_G, **wrong)
