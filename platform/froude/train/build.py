"""What the bits of an exact run depend on besides its recipe: library, hardware, instruction set, threads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from froude.config import ConfigError, Run

if TYPE_CHECKING:
    from froude.checkpoint.run_store import RunStore

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


def agreed(run: Run, store: RunStore, device: torch.device, *, allow_other: bool = False) -> Build:
    """Collective: rank 0's build; for an exact run ConfigError unless all ranks have it, and the run so far had.

    `allow_other` goes on with another build: what follows is then reproducible from that step on only.
    """
    from froude.checkpoint.collective import on_every_rank

    if run.reduction == "exact":
        make_deterministic(device)
    builds = on_every_rank(lambda: describe(device))
    if run.reduction == "exact" and not allow_other:
        for rank, build in enumerate(builds):
            require(builds[0], build, f"all workers of exact run {run.name} must be alike, but rank {rank}'s")
        if before := store.meta().get("build"):
            require(before, builds[0], f"exact run {run.name} must go on as it began, but its")
    return builds[0]


def require(expected: dict[str, Any], got: Build, rule: str) -> None:
    """ConfigError, `rule` and the first entry that differs, unless two builds are the same."""
    for name in sorted({*expected, *got}):
        if expected.get(name) != got.get(name):
            raise ConfigError(
                f"{rule} {name} is {got.get(name)!r} instead of {expected.get(name)!r}; use the same, or "
                "--other-build to give up that the whole run is reproducible bit for bit"
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
