"""In which numbers a run's matrix products are made: autocast, TF32, fp8; and what a device must have for that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch

from froude.config import ConfigError, Run
from froude.train import kernels
from froude.train.precision import float8

#: What products are cast to; weights stay as they are.
AUTOCAST = {
    "bf16": torch.bfloat16,
    "bf16_stochastic": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.bfloat16,
}
#: By which an environment decides for cuBLAS: 1 is TF32 always, 0 never.
OVERRIDE = "NVIDIA_TF32_OVERRIDE"


def autocast(run: Run, device: torch.device) -> AbstractContextManager[object]:
    """Inside, a forward pass is computed as the run asks for."""
    # A cache would hold a copy of every matrix until the pass ends, which undoes checkpointing; each is used once.
    dtype = AUTOCAST.get(run.precision, torch.bfloat16)
    cast = torch.autocast(device.type, dtype, enabled=run.precision in AUTOCAST, cache_enabled=False)
    both = ExitStack()
    both.enter_context(cast)
    if run.precision == "fp8" and device.type == "cuda":  # elsewhere a model is looked at, and not trained
        both.enter_context(float8.Products(run.model.vocab))
    both.enter_context(float32_products(run, device))
    return both


def check(run: Run, device: torch.device) -> None:
    """ConfigError for a precision that this machine lacks, or that its environment takes away."""
    if run.precision in ("tf32", "fp8") and device.type != "cuda":
        raise ConfigError(
            f'`precision` "{run.precision}" needs a GPU, but this worker computes on a {device.type.upper()}; use '
            '"fp32" or "bf16", or workers with GPUs'
        )
    if device.type != "cuda":
        return
    if run.precision == "tf32" and torch.cuda.get_device_capability(device) < (8, 0):
        raise ConfigError(
            f'`precision` "tf32" needs a GPU of compute capability 8.0 or more, but {_named(device)}; use "fp32"'
        )
    if run.precision == "fp8":
        float8.check(torch.cuda.get_device_capability(device), _named(device))
    forced, wanted = os.environ.get(OVERRIDE), run.precision == "tf32"
    if forced in ("0", "1") and (forced == "1") != wanted:
        raise ConfigError(
            f'{OVERRIDE} must not be {forced} for a run of `precision` "{run.precision}", whose products it would '
            f"{'make TF32' if forced == '1' else 'keep from TF32'}; unset it"
        )


def _named(device: torch.device) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} has {major}.{minor}"


@contextmanager
def float32_products(run: Run, device: torch.device) -> Iterator[None]:
    """Inside, products of fp32 tensors are TF32 on a GPU or by fast kernels on a CPU, where the run says so.

    Torch has one setting for a process, where runs of several precisions may take turns. ConfigError as
    `kernels.check`.
    """
    kernels.check(run, device)
    if device.type == "cuda":
        setting = "high" if run.precision == "tf32" else "highest"
    elif kernels.matmuls_are_fast(run):
        setting = kernels.SETTING
    else:
        yield
        return
    cudnn: Any = torch.backends.cudnn
    before, convolutions = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    torch.set_float32_matmul_precision(setting)
    cudnn.allow_tf32 = run.precision == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        cudnn.allow_tf32 = convolutions
