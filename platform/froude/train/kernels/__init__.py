"""Quicker arithmetic on a CPU for a run with `compute.kernels` "fast", where this machine's errors allow it."""

from __future__ import annotations

from functools import lru_cache

import torch

from froude.config import ConfigError, Run

#: Largest relative error of a matrix product that is still one of fp32: rounding gives 2e-7 to 6e-7, products of bf16
#: 2e-3.
BOUND = 1e-6
#: What torch calls them.
SETTING = "medium"
INNER = 512  # of that product, which is summed over; small enough to take milliseconds


def matmuls_are_fast(run: Run) -> bool:
    """Whether the run's matrix products may take the way that a CPU's library holds for quicker; in fp32 only."""
    return run.compute.kernels == "fast" and run.precision == "fp32"


def check(run: Run, device: torch.device) -> None:
    """ConfigError if the run asks for fast kernels where there are none, or where they are less exact than fp32."""
    if run.compute.kernels == "plain":
        return
    if device.type != "cpu":
        raise ConfigError(
            f'`compute.kernels` "fast" is for CPUs, but {run.name} is on {device.type}; set it to "plain"'
        )
    if matmuls_are_fast(run) and (error := matmul_error()) > BOUND:
        raise ConfigError(
            f'`compute.kernels` "fast" needs matrix products with a relative error of at most {BOUND:.0e}, but on this '
            f'machine it is {error:.0e}; set it to "plain", or `precision` to "bf16"'
        )


@lru_cache
def matmul_error() -> float:
    """Relative error (Frobenius) against fp64 of the products that fast kernels would make here, the worst of three."""
    draws = torch.Generator().manual_seed(0)
    x, w = (torch.randn(256, INNER, generator=draws) for _ in range(2))
    pairs = ((x, w.T), (x.T, w), (w, x.T))  # as a layer's forward and backward passes have them
    found, before = [], torch.get_float32_matmul_precision()
    for left, right in pairs:
        torch.set_float32_matmul_precision(SETTING)
        product = left @ right
        torch.set_float32_matmul_precision(before)
        exact = left.double() @ right.double()
        found.append(float((product - exact).norm() / exact.norm()))
    return max(found)
