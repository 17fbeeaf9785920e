"""Precisions that hardware or environment lack are refused; torch's setting is a run's own; errors are measured."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from froude.config import ConfigError, Run
from froude.train.api import build_model
from froude.train.precision import float8, measured, products
from froude.train.trainer import Trainer

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def run(precision: str, **more: object) -> Run:
    return Run(tokens=768, precision=precision, **more)


def test_an_unknown_precision_names_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"`precision` must be 'fp32', 'tf32', 'bf16'.*but got 'fp4'"):
        run("fp4")


@pytest.mark.parametrize("precision", ["tf32", "fp8"])
def test_what_needs_a_gpu_is_refused_without_one(precision: str) -> None:
    with pytest.raises(ConfigError, match=f'"{precision}" needs a GPU, but `device` is "cpu"; use "fp32"'):
        run(precision, device="cpu")
    with pytest.raises(ConfigError, match=f'"{precision}" needs a GPU, but this worker computes on a CPU'):
        Trainer(run(precision, eval_windows=12))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A GPU by what torch says of one."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A100")
    monkeypatch.delenv(products.OVERRIDE, raising=False)
    return monkeypatch


def test_fp8_names_the_hardware_and_the_library_that_are_missing(gpu: pytest.MonkeyPatch) -> None:
    gpu.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(
        ConfigError, match=r"8\.9 or more, but A100 has 8\.0 and torchao is not installed; pip"
    ):
        products.check(run("fp8"), CUDA)
    gpu.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    with pytest.raises(ConfigError, match=r"or more, but torchao is not installed; pip install .torchao==0"):
        products.check(run("fp8"), CUDA)
    gpu.setattr(importlib.util, "find_spec", lambda _: object())
    products.check(run("fp8"), CUDA)


def test_an_old_gpu_has_no_tf32(gpu: pytest.MonkeyPatch) -> None:
    products.check(run("tf32"), CUDA)
    gpu.setattr(torch.cuda, "get_device_capability", lambda _: (7, 0))
    with pytest.raises(
        ConfigError, match=r"compute capability 8\.0 or more, but A100 has 7\.0; use \"fp32\""
    ):
        products.check(run("tf32"), CUDA)


@pytest.mark.parametrize(
    ("value", "precision", "words"), [("1", "fp32", "make TF32"), ("0", "tf32", "keep from TF32")]
)
def test_an_environment_that_decides_otherwise_is_refused(
    gpu: pytest.MonkeyPatch, value: str, precision: str, words: str
) -> None:
    gpu.setenv(products.OVERRIDE, value)
    with pytest.raises(
        ConfigError, match=f'must not be {value} for a run of `precision` "{precision}".*{words}; unset'
    ):
        products.check(run(precision), CUDA)


def test_runs_of_several_precisions_take_turns_in_a_process() -> None:
    try:
        for before in ("high", "highest"):
            torch.set_float32_matmul_precision(before)
            for precision, wanted in (("tf32", "high"), ("fp32", "highest"), ("bf16", "highest")):
                with products.float32_products(run(precision), CUDA):
                    assert torch.get_float32_matmul_precision() == wanted
                    assert torch.backends.cudnn.allow_tf32 == (precision == "tf32")
                assert torch.get_float32_matmul_precision() == before
            with products.float32_products(run("fp32"), CPU):
                assert torch.get_float32_matmul_precision() == before
    finally:
        torch.set_float32_matmul_precision("highest")


def test_fp8_takes_hidden_matrices_with_sizes_that_it_can() -> None:
    seen: list[tuple[int, ...]] = []

    def multiply(inputs: Tensor, weight: Tensor) -> Tensor:
        seen.append(tuple(weight.shape))
        return inputs @ weight.T

    weights = [torch.randn(rows, 32, requires_grad=True) for rows in (48, 256, 40)]  # 256: the vocabulary
    inputs, bias = torch.randn(2, 32), torch.randn(48)
    plain = [F.linear(inputs, weights[0], bias), *(F.linear(inputs, weight) for weight in weights)]
    with float8.Products(256, multiply):
        found = [F.linear(inputs, weights[0], bias), *(F.linear(inputs, weight) for weight in weights)]
    assert seen == [(48, 32), (48, 32)]
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other)
    found[1].sum().backward()
    assert weights[0].grad is not None


@pytest.mark.parametrize(("vocab", "clash"), [(64, "attention_out"), (192, "qkv"), (256, "")])
def test_a_hidden_matrix_like_the_readout_is_refused_in_fp8(vocab: int, clash: str) -> None:
    model = build_model(Run(model={"width": 64, "vocab": vocab}, tokens=768, batch=768), "meta")
    if clash:
        with pytest.raises(ConfigError, match=rf"but layers\.0\.{clash} has {vocab}; change `model.vocab`"):
            float8.check_readout(model, vocab)
    else:
        float8.check_readout(model, vocab)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="needs torchao, the extra fp8")
def test_torchaos_product_has_fp8s_errors_forward_and_backward() -> None:
    draws = torch.Generator().manual_seed(0)
    inputs, weight = (torch.randn(rows, 128, generator=draws).requires_grad_() for rows in (64, 96))
    product = float8.torchao(emulate=True)(inputs, weight)
    grad = torch.randn(64, 96, generator=draws)
    product.backward(grad.to(product.dtype))
    for found, left, right in (
        (product, inputs, weight.T),
        (inputs.grad, grad, weight),
        (weight.grad, grad.T, inputs),
    ):
        assert found is not None
        exact = left.double() @ right.double()
        assert 0.01 < (found - exact).norm() / exact.norm() < 0.08


def test_fp8_products_hold_for_a_forward_pass_on_a_gpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float8, "torchao", lambda: torch.add)
    with float8.Products(256, torch.add):  # which would not take these two
        assert F.linear(torch.ones(0, 16), torch.ones(32, 16)).shape == (0, 32)
        assert F.linear(torch.ones(1, 16), torch.ones(16, 16)).shape == (16, 16)
    with products.autocast(run("fp8"), CPU):
        assert F.linear(torch.ones(1, 16), torch.ones(16, 16)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("precision", "least", "most"), [("fp32", 1e-8, 1e-6), ("bf16", 1e-3, 1e-2), ("fp16", 1e-4, 1e-3)]
)
def test_the_error_of_products_is_that_of_the_precision(precision: str, least: float, most: float) -> None:
    assert least < measured.error(run(precision), CPU) < most


def test_fp32_that_is_not_fp32_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "_error", lambda *_: 4e-4)
    with pytest.raises(ConfigError, match=r"with an error of at most 1e-05, but .* have 0\.0004; unset"):
        measured.error(run("fp32"), CPU)
    assert measured.error(run("tf32"), CUDA) == 4e-4


def test_the_guide_names_every_precision(root: Path) -> None:
    page = (root / "docs/guide/precision.md").read_text(encoding="utf-8")
    for precision in ("fp32", "tf32", "bf16", "bf16_stochastic", "fp16", "fp8"):
        assert f"| `{precision}` |" in page
