"""Fast runs on a GPU: losses near those of a CPU, as they are and compiled; fp8; and a checkpoint's copy."""

from __future__ import annotations

import importlib.util
import warnings

import pytest
import torch

from froude.checkpoint.background import Staging
from froude.config import Run
from froude.train.parallel import World
from froude.train.trainer import Trainer

GPU = torch.cuda.is_available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPU, reason="needs a CUDA GPU")]
FP8 = GPU and torch.cuda.get_device_capability() >= (8, 9) and importlib.util.find_spec("torchao") is not None

RUN = Run(
    tokens=768 * 4,
    batch=768,
    seed=3,
    eval_windows=100,
    model={"width": 64},
    optimizer={"lr": 2**-7, "clip": 0.5},
    schedule={"warmup_tokens": 1536},
)


def losses(run: Run, device: str) -> list[float]:
    """Of each step, and of the evaluation at the end."""
    trainer = Trainer(run, World.current(device))
    return [*(trainer.step(run, step).loss for step in range(run.steps)), trainer.evaluate()]


@pytest.mark.own_process
@pytest.mark.parametrize("how", ["none", "blocks", "graphs"])
def test_a_gpu_has_the_losses_of_a_cpu(how: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="blocks are not compiled")
        found = losses(RUN.replace({"compute.compile": how}), "cuda")
    assert found == pytest.approx(losses(RUN, "cpu"), rel=1e-4)


@pytest.mark.skipif(not FP8, reason="needs torchao and a CUDA GPU of compute capability 8.9")
def test_fp8_has_nearly_the_losses_of_bf16() -> None:
    found, expected = (losses(RUN.replace(precision=precision), "cuda") for precision in ("fp8", "bf16"))
    assert found == pytest.approx(expected, rel=2e-2)
    assert found != expected


def test_a_checkpoints_copy_lies_in_pinned_memory() -> None:
    state = Trainer(RUN, World.current("cuda")).state()
    copies = Staging().copy(state)
    for name, tensor in state.items():
        assert torch.equal(copies[name], tensor.cpu())
        assert copies[name].is_pinned() == tensor.is_cuda
