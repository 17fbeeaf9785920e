"""The loss in chunks: the one of all logits, with its gradient, in a fraction of their memory."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from step_cost import allocated_bytes, tensor_bytes
from tiny_hf import FAMILIES, config_file
from tiny_hf import run_of as adapted
from torch import Tensor, nn

from froude.config import ConfigError, Run
from froude.train import api
from froude.train.memory.chunked import in_chunks, losses
from froude.train.objective import minimised, summed_loss
from froude.train.probe import contract
from froude.train.trainer import Trainer

BASE = Run(
    tokens=768 * 3,
    batch=768,
    slots=4,
    eval_windows=20,
    model={"width": 32, "depth": 1, "readout_sd": 1.0, "base_width": 24},  # logits by 0.75, no power of two
    optimizer={"lr": 2**-7},
)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "z-loss": {"model.z_loss": 1e-2},
    "soft-cap": {"model.softcap": 5.0, "model.z_loss": 1e-2},
    "tied": {"model.tied": True, "model.embedding_sd": 1.0, "model.softcap": 5.0},
    "sp": {"parametrization": "sp"},
    "muP at four times the base": {"model.base_width": 8},
}


def gradients(run: Run, windows: Tensor, slope: float = 1.0) -> tuple[float, float, dict[str, Tensor]]:
    model = api.build_model(run)
    sought, entropy = minimised(model, windows, run)
    (sought * slope).backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return float(sought.detach()), float(entropy.detach()), found


@given(
    options=st.sampled_from(list(OPTIONS)),
    chunk=st.integers(1, 200),
    windows=st.integers(1, 5),
    length=st.integers(1, 64),
    slope=st.sampled_from([1.0, 1 / 768, 3.7]),
)
@settings(max_examples=40)
def test_loss_and_gradients_are_those_of_all_logits(
    options: str, chunk: int, windows: int, length: int, slope: float
) -> None:
    run = BASE.replace(OPTIONS[options])
    drawn = torch.randint(
        256, (windows, length + 1), generator=torch.Generator().manual_seed(windows * length)
    )
    sought, entropy, expected = gradients(run, drawn, slope)
    again, reported, found = gradients(run.replace({"compute.loss_chunk": chunk}), drawn, slope)
    assert again == pytest.approx(sought, rel=1e-6)
    assert reported == pytest.approx(entropy, rel=1e-6)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=3e-6 * scale + 1e-12, msg=name)


@pytest.mark.parametrize("changes", [{}, {"micro_batch": 128}, {"reduction": "exact"}, {"model.tied": True}])
def test_steps_and_evaluations_are_those_without_chunks(changes: dict[str, Any]) -> None:
    run = BASE.replace({"model.z_loss": 1e-3, **changes})
    expected, found = Trainer(run), Trainer(run.replace({"compute.loss_chunk": 100}))
    for step in range(run.steps):
        one, other = (trainer.step(trainer.run, step) for trainer in (expected, found))
        assert other.loss == pytest.approx(one.loss, rel=1e-6)
        assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-5)
    assert found.evaluate() == pytest.approx(expected.evaluate(), rel=1e-6)
    torch.use_deterministic_algorithms(False)


def test_under_autocast_the_readout_has_its_gradient_in_fp32() -> None:
    windows = torch.randint(256, (12, 65), generator=torch.Generator().manual_seed(0))
    truth = gradients(BASE, windows)[2]["readout"]
    half = BASE.replace(precision="bf16")
    whole = gradients(half, windows)[2]["readout"]
    found = gradients(half.replace({"compute.loss_chunk": 64}), windows)[2]["readout"]
    errors = [float((each - truth).norm() / truth.norm()) for each in (whole, found)]
    assert found.dtype == torch.float32
    assert errors[1] < 1.2 * errors[0] < 0.02  # bf16's own


@pytest.mark.slow
@pytest.mark.parametrize("measured", [tensor_bytes, allocated_bytes])
def test_logits_of_a_vocabulary_of_50_000_take_a_fraction(measured: Any) -> None:
    """Of all tensors of a forward and a backward pass, whose other parts are far smaller than logits are."""
    tokens, chunk = 512, 64
    run = BASE.replace(
        {"model.vocab": 50_304, "model.context": tokens, "slots": 1, "batch": tokens, "tokens": tokens}
    )
    windows = torch.randint(50_304, (1, tokens + 1), generator=torch.Generator().manual_seed(0))

    def peak(chunk: int, work: Any) -> int:
        cut = run.replace({"compute.loss_chunk": chunk})
        model = api.build_model(cut)
        return int(measured(lambda: work(model, windows, cut)))

    def trained(*given: Any) -> None:
        minimised(*given)[0].backward()

    def evaluated(*given: Any) -> None:
        with torch.no_grad():
            summed_loss(*given)

    logits, tables = tokens * 50_304 * 4, 2 * 32 * 50_304 * 4
    plain, cut = peak(0, trained), peak(chunk, trained)
    assert plain > 2 * logits + tables
    assert (plain - tables) / (cut - tables) >= 4
    assert peak(0, evaluated) / peak(chunk, evaluated) >= 4


class Odd(nn.Module):
    """A frozen trunk, and a readout with a bias of which the first half is frozen, too."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.trunk = nn.Parameter(torch.randn(50, 8, generator=generator), requires_grad=False)
        self.inner = nn.Parameter(torch.randn(16, 8, generator=generator))
        self.out = nn.Parameter(torch.randn(50, 16, generator=generator), requires_grad=False)
        self.bias = nn.Parameter(torch.randn(50, generator=generator))

    def readout(self, features: Tensor) -> Tensor:
        return torch.tanh(features @ self.inner.T) @ self.out.T + self.bias


def test_a_readout_of_any_make_learns_and_what_is_frozen_does_not() -> None:
    tokens = torch.randint(50, (3, 8), generator=torch.Generator().manual_seed(1))
    found, expected = Odd(), Odd()
    in_chunks(found.readout, found.trunk[tokens], tokens, 5, 0.0)[0].backward()
    losses(expected.readout(expected.trunk[tokens]), tokens, 0.0)[0].backward()
    for name, parameter in expected.named_parameters():
        again = found.get_parameter(name).grad
        if parameter.grad is None:
            assert again is None, name
        else:
            torch.testing.assert_close(again, parameter.grad)


def test_a_second_backward_pass_is_refused() -> None:
    model = Odd()
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    loss, _ = in_chunks(model.readout, model.trunk[tokens], tokens, 5, 0.0)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="a loss in chunks has one backward pass"):
        loss.backward()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_of_transformers_has_its_loss_in_chunks(family: str, tmp_path: Path) -> None:
    run = adapted(config_file(tmp_path, family), family, readout_sd=0.5)
    model: Any = api.build_model(run)
    tokens = torch.randint(256, (2, 32), generator=torch.Generator().manual_seed(0))
    assert torch.equal(model(tokens), model.logits(model.features(tokens)))
    windows = torch.randint(256, (2, 33), generator=torch.Generator().manual_seed(1))
    _, entropy, expected = gradients(run, windows)
    _, again, found = gradients(run.replace({"compute.loss_chunk": 24}), windows)
    assert again == pytest.approx(entropy, rel=1e-6)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert float((found[name] - gradient).norm()) <= 1e-5 * float(gradient.norm()), name


def test_a_model_that_only_gives_logits_trains_without_chunks_and_is_refused_with_them() -> None:
    run = BASE.replace({"model.factory": "foreign_model:factory"})
    assert math.isfinite(Trainer(run).step(run, 0).loss)
    said = (
        r"`compute.loss_chunk` needs a model with features\(tokens\) and logits\(features\), but foreign_model:factory "
        r"lacks features and logits; add what is missing"
    )
    for building in (Trainer, lambda run: contract.check([run])):
        with pytest.raises(ConfigError, match=said):
            building(run.replace({"compute.loss_chunk": 64}))


class Unlike(api.load("froude.train.model:Transformer")):  # type: ignore[misc]
    """Forgets the multiplier in one of two ways to its logits."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) * 2


def test_features_that_lead_to_other_logits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foreign_model.factory", Unlike)
    run = BASE.replace({"model.factory": "foreign_model:factory", "compute.loss_chunk": 64})
    with pytest.raises(ConfigError, match=r"logits\(features\(tokens\)\) must be what forward returns"):
        contract.check([run])
    contract.check([run.replace({"compute.loss_chunk": 0})])


def test_estimates_of_curvature_need_all_logits() -> None:
    said = "`compute.loss_chunk` must be 0 with sophia_g, whose estimates need all logits at once, but got 64"
    with pytest.raises(ConfigError, match=said):
        BASE.replace({"optimizer.name": "sophia_g", "parametrization": "sp", "compute.loss_chunk": 64})


def test_the_size_of_a_chunk_makes_another_run() -> None:
    prints = [BASE.replace({"compute.loss_chunk": chunk}).fingerprint for chunk in (0, 64, 128)]
    assert prints[0] == BASE.fingerprint
    assert len({*prints}) == 3
    assert BASE.replace({"compute.checkpointing": "blocks", "compute.offload": True}).fingerprint == prints[0]
