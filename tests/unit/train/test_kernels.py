"""Fast kernels: the same attention and RoPE, products that are as exact as fp32, or none."""

import re

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from froude.config import Compute, ConfigError, Run
from froude.train import kernels
from froude.train.api import build_model
from froude.train.kernels import attention as fast
from froude.train.model import _rotate
from froude.train.precision.products import float32_products
from froude.train.probe import updates
from froude.train.trainer import Trainer

FAST = {"compute": {"kernels": "fast"}, "tokens": 7680, "eval_windows": 96}
CPU = torch.device("cpu")


def with_gradients(function, *tensors):
    """The function's value, and the gradients of a fixed combination of it."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    found = function(*leaves)
    draws = torch.Generator().manual_seed(1)
    found.backward(torch.randn(found.shape, generator=draws).to(found.dtype))
    return [found.detach(), *(leaf.grad for leaf in leaves)]


def relative(found, exact):
    return float((found.double() - exact.double()).norm() / exact.double().norm())


@settings(deadline=None, max_examples=25)
@given(
    shape=st.tuples(*(st.integers(1, 3),) * 2, st.integers(1, 70), st.sampled_from([2, 8, 32])),
    scale=st.sampled_from([0.1, 1.0, 0.3]),
    mixed=st.booleans(),
)
def test_attention_and_its_gradients_are_those_of_fused_attention_in_fp64(shape, scale, mixed):
    draws = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(shape, generator=draws) for _ in range(3))
    wide = [
        each.transpose(1, 2).contiguous().transpose(1, 2) for each in (q, k, v)
    ]  # as the model's heads lie

    def fused(*heads):
        return F.scaled_dot_product_attention(*heads, is_causal=True, scale=scale)

    def ours(*heads):
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            return fast.attention(*heads, scale)

    exact = with_gradients(fused, *(each.double() for each in (q, k, v)))
    found = with_gradients(ours, *wide)
    assert found[0].dtype == (torch.bfloat16 if mixed else torch.float32)
    for one, other in zip(found, exact, strict=True):
        assert float((one.double() - other).abs().max()) <= (0.05 if mixed else 1e-5) * max(
            1.0, float(other.abs().max())
        )
    if not mixed and shape[2] > 1:
        assert max(map(relative, found, exact)) <= 1e-6


def test_attention_beyond_short_windows_is_torchs_own():
    heads = [torch.randn(1, 1, fast.IN_PIECES + 1, 2) for _ in range(3)]
    fused = F.scaled_dot_product_attention(*heads, is_causal=True, scale=0.5)
    assert torch.equal(fast.attention(*heads, 0.5), fused)


def test_rotation_is_the_models():
    x, angle = torch.randn(2, 5, 6, 8), torch.randn(5, 4).repeat(1, 2)
    plain = with_gradients(lambda x: _rotate(x, angle.cos(), angle.sin()), x)
    quick = with_gradients(lambda x: fast.rotate(x, angle.cos(), angle.sin()), x)
    assert max(map(relative, quick, plain)) <= 1e-7


@pytest.mark.parametrize("precision, bound", [("fp32", 1e-6), ("bf16", 1e-3)])
def test_a_run_has_the_losses_of_plain_kernels_but_for_rounding(precision, bound):
    if precision == "fp32" and kernels.matmul_error() > kernels.BOUND:
        with pytest.raises(ConfigError, match="relative error"):
            Trainer(Run(**FAST, precision=precision))
        return
    sides = [
        Trainer(Run(**FAST, precision=precision).replace({"compute.kernels": k})) for k in ("plain", "fast")
    ]
    plain, quick = ([side.step(side.run, i).loss for i in range(10)] + [side.evaluate()] for side in sides)
    assert quick == pytest.approx(plain, rel=bound)
    # In fp32 on a CPU without AVX-512 the library's quicker products are the plain ones.
    if precision == "bf16" or torch.backends.cpu.get_cpu_capability() == "AVX512":
        assert quick != plain


def test_the_processs_setting_is_put_back_also_after_an_error(monkeypatch):
    monkeypatch.setattr(kernels, "matmul_error", lambda: 2e-7)
    before = torch.get_float32_matmul_precision()
    seen = []

    def fails():
        with float32_products(Run(**FAST), CPU):
            seen.append(torch.get_float32_matmul_precision())
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert seen == ["medium"] != [before]
    for other in (Run(tokens=768), Run(**FAST, precision="bf16")):
        with float32_products(other, CPU):
            assert torch.get_float32_matmul_precision() == before
    assert torch.get_float32_matmul_precision() == before


def test_a_machine_whose_products_are_less_exact_is_refused(monkeypatch):
    monkeypatch.setattr(kernels, "matmul_error", lambda: 2e-3)
    with pytest.raises(
        ConfigError, match=r"at most 1e-06, but on this machine it is 2e-03; set it to \"plain\""
    ):
        Trainer(Run(**FAST))
    kernels.check(Run(**FAST, precision="bf16"), CPU)  # its products are of bf16 anyway
    kernels.check(Run(tokens=768), CPU)


def test_a_gpu_is_refused():
    with pytest.raises(ConfigError, match=re.escape('`compute.kernels` "fast" is for CPUs')):
        kernels.check(Run(**FAST), torch.device("cuda"))


def test_the_measured_error_tells_bf16_from_fp32(monkeypatch):
    exact = kernels.matmul_error.__wrapped__()
    product = torch.Tensor.__matmul__

    def rounded(left, right):
        if left.dtype != torch.float32:
            return product(left, right)
        return product(left.bfloat16().float(), right.bfloat16().float())

    monkeypatch.setattr(torch.Tensor, "__matmul__", rounded)
    assert exact < 1e-2 * kernels.matmul_error.__wrapped__()
    assert kernels.matmul_error.__wrapped__() > kernels.BOUND


def test_the_width_test_sees_the_same_attention_logits():
    run = Run(**FAST)
    seen = [
        updates._responses(build_model(each), each, [])[1]
        for each in (run, run.replace({"compute.kernels": "plain"}))
    ]
    assert seen[0] == pytest.approx(seen[1], rel=0.05)  # one sees pairs that the mask hides, too


def test_kernels_make_another_run_and_threads_do_not():
    plain = Run(tokens=768)
    assert plain.replace({"compute.kernels": "plain"}).fingerprint == plain.fingerprint
    assert plain.replace({"compute.kernels": "fast"}).fingerprint != plain.fingerprint
    assert plain.replace({"compute.threads": 2}).fingerprint == plain.fingerprint
    assert Run.from_dict(Run(**FAST).to_dict()) == Run(**FAST)


def test_unknown_kernels_and_a_negative_number_of_threads_are_refused():
    with pytest.raises(ConfigError, match=r"`compute\.kernels` must be 'plain' or 'fast'"):
        Compute(kernels="quick")
    with pytest.raises(ConfigError, match=r"`compute.threads` must be greater than or equal to 0"):
        Compute(threads=-1)
