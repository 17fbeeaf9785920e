"""What the bits of an exact run depend on besides its recipe: library, hardware, instruction set, threads."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from froude.config import ConfigError

Build = dict[str, str | int]
#: Variables that choose among kernels with different rounding.
VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
)
CUDA_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
)
#: Of /proc/cpuinfo: virtual machines give many processors one name.
PROCESSOR = ("model name", "cpu family", "model", "stepping")


def describe(device: torch.device) -> Build:
    """This process's build: a flat table of plain values, to be recorded with every commit."""
    found: Build = {
        "torch": str(torch.__version__),
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "device": device.type,
    }
    names: tuple[str, ...] = VARIABLES
    if device.type == "cuda":
        found |= {"device": torch.cuda.get_device_name(device), "cuda": str(torch.version.cuda)}
        names += CUDA_VARIABLES
    return found | {name: os.environ[name] for name in names if os.environ.get(name)}


def _processor() -> str:
    """Name, family, model and stepping of the CPU, at which matrix libraries look; else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return ", ".join(told[key] for key in PROCESSOR if key in told) or os.uname().machine


def unlike(builds: Sequence[Build], before: Mapping[str, Any] | None = None) -> dict[int, str]:
    """Which of these builds, by their places, differ from the run's so far, and how.

    Where the run has none yet, from the one that most have, the first of them if as many have another.
    """
    expected = before or Counter(tuple(sorted(build.items())) for build in builds).most_common(1)[0][0]
    found = {place: difference(dict(expected), build) for place, build in enumerate(builds)}
    return {place: how for place, how in found.items() if how}


def difference(expected: Mapping[str, Any], got: Build) -> str:
    """All entries of a build that are not as expected; empty if there are none."""
    return ", ".join(
        f"{name} is {got.get(name)!r} instead of {expected.get(name)!r}"
        for name in sorted({*expected, *got})
        if expected.get(name) != got.get(name)
    )


def require(expected: Mapping[str, Any], got: Build, rule: str) -> None:
    """ConfigError, `rule` and what differs, unless two builds are the same."""
    if how := difference(expected, got):
        raise ConfigError(
            f"{rule} {how}; use the same, or --other-build, which gives up that the whole run is reproducible "
            "bit for bit"
        )


def make_deterministic(device: torch.device) -> None:
    """Have torch choose kernels that give the same bits each time, and no TF32 that an environment may ask for."""
    torch.use_deterministic_algorithms(True)
    settings: Any = torch.utils.deterministic
    # It takes time, and nothing here reads what it has not written.
    settings.fill_uninitialized_memory = False
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = False
        torch.set_float32_matmul_precision("highest")
