"""What is installed, without using a GPU in this process."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from froude.doctor.finding import Finding
from froude.sweep.preflight import GIB, free_memory
from froude.train.exact.environment import CUDA_VARIABLES, VARIABLES
from froude.train.speed.timing import cores

PACKAGES = ("froude", "torch", "ray", "numpy", "pyarrow", "transformers", "torchao", "triton")


def check(gpu: bool) -> Finding:
    """Versions, size, variables that choose kernels; fails if GPUs are asked for and torch can't use one."""
    import torch

    figures: dict[str, Any] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "cores": cores(),
        "free_gib": round(free_memory() / GIB, 1),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda or torch.version.hip,
        "driver": _driver(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None,
        "compiler": bool(shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")),
        "variables": {
            name: os.environ[name] for name in (*VARIABLES, *CUDA_VARIABLES) if os.environ.get(name)
        },
        "nccl_variables": sorted(name for name in os.environ if name.startswith("NCCL_")),
    }
    line = f"Python {figures['python']}, torch {figures['packages'].get('torch')}, {figures['cores']} cores, "
    line += f"{figures['free_gib']} GiB free"
    if gpu and not torch.cuda.is_available():
        remedy = _no_gpu(figures["driver"])
        return Finding("environment", "fail", f"{line}, but torch finds no GPU", remedy, figures)
    if figures["cuda"] and gpu:
        line += f", CUDA {figures['cuda']}, driver {figures['driver']}, NCCL {figures['nccl']}"
    if not figures["compiler"]:
        return Finding(
            "environment", "warn", f"{line}, no C++ compiler", "compute.compile needs one", figures
        )
    return Finding("environment", "ok", line, "", figures)


def _no_gpu(driver: str | None) -> str:
    """What is missing where torch finds no GPU, and what to do about it."""
    import torch

    if torch.version.hip:
        return "this torch was built for ROCm; install AMD's driver, or for NVIDIA's GPUs a CUDA build"
    if torch.version.cuda is None:
        also = "" if driver else ", and a driver: nvidia-smi finds none"
        return f"this torch was built for CPUs; install a CUDA build (https://pytorch.org/get-started/locally){also}"
    built = f"this torch was built for CUDA {torch.version.cuda}"
    if driver is None:
        return f"{built}, but nvidia-smi finds no driver; install NVIDIA's"
    if (hidden := os.environ.get("CUDA_VISIBLE_DEVICES")) in ("", "-1"):
        return f'CUDA_VISIBLE_DEVICES is "{hidden}", which hides all; unset it'
    return f"{built}; update the driver {driver}, or install a torch built for it"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _driver() -> str | None:
    """NVIDIA's driver, None where there is none."""
    call = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(call, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.split() if not done.returncode else []
    return lines[0] if lines else None
