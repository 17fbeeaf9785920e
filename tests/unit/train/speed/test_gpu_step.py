"""benchmarks/gpu_step.py without a GPU: the same code on the CPU, and no result."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch


def ran(root: Path, *arguments: str) -> str:
    call = [sys.executable, root / "benchmarks" / "gpu_step.py", *arguments]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_both_sides_train_alike_on_a_cpu_and_nothing_is_written(root: Path) -> None:
    before = (root / "benchmarks" / "gpu_step.md").exists()
    cells = [cell.strip() for cell in ran(root, "--tiny").strip().strip("|").split("|")]
    assert cells[0] == "tiny"
    assert all(float(cell) > 0 for cell in (cells[1], cells[2], cells[4]))
    both = re.fullmatch(r"(whole|blocks) \(whole ([\d.]+), blocks ([\d.]+)\)", cells[3])
    assert both
    assert both[1] == ("whole" if float(both[2]) <= float(both[3]) else "blocks")
    assert cells[7] == "not known"
    assert (root / "benchmarks" / "gpu_step.md").exists() == before


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="would measure")
def test_without_a_gpu_nothing_is_measured(root: Path) -> None:
    assert "nothing is measured" in ran(root)
