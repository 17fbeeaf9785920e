"""The error that this machine's products really have, held against fp64."""

from __future__ import annotations

import functools

import torch

from froude.config import ConfigError, Run
from froude.train import kernels
from froude.train.precision.products import autocast

#: Rows and columns of the factors, and rows of the product that are computed in fp64, too.
SIZE, SEEN = 512, 32
#: The most that fp32 may err: sums of 512 products have 2e-7, TF32 4e-4, bf16 3e-3.
MOST = 1e-5


def error(run: Run, device: torch.device) -> float:
    """Relative error (Frobenius) of a product of two normal 512 x 512 matrices in the run's precision.

    ConfigError where a run of fp32 does not get fp32, as an environment variable may have it.
    """
    if kernels.matmuls_are_fast(run):  # has been measured, and held against a closer bound
        return kernels.matmul_error()
    found = _error(run.precision, str(device), torch.get_float32_matmul_precision())
    if run.precision == "fp32" and found > MOST:
        raise ConfigError(
            f'`precision` "fp32" needs products with an error of at most {MOST:g}, but those of this machine have '
            f"{found:.1g}; unset what chooses another (ONEDNN_DEFAULT_FPMATH_MODE, NVIDIA_TF32_OVERRIDE)"
        )
    return found


@functools.lru_cache(maxsize=16)
def _error(precision: str, device: str, setting: str) -> float:
    run, where = Run(tokens=768, precision=precision), torch.device(device)
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(SIZE, SIZE, generator=generator) for _ in range(2))
    with torch.no_grad(), autocast(run, where):
        product = torch.nn.functional.linear(left.to(where), right.to(where))
    wanted = left[:SEEN].double() @ right.double().T
    return float((product[:SEEN].cpu().double() - wanted).norm() / wanted.norm())
