"""Compiled blocks under FSDP2, over real processes: the bits of a run that is not compiled, at one and two workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from froude.config import Run

RUN = Run(
    tokens=256 * 3,
    batch=256,
    slots=2,
    reduction="exact",
    seed=3,
    eval_windows=16,
    model={"width": 32},
    schedule={"warmup_tokens": 256},
)
CASES = {
    "plain": RUN.to_dict(),
    "compiled": RUN.replace({"compute.compile": "blocks"}).to_dict() | {"keep_gathered": 0},
}


def bits(folder: Path, world: int) -> dict[str, Any]:
    call = [sys.executable, Path(__file__).with_name("compiled_rank.py")]
    own = os.environ | {"OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([*call, str(rank), str(world), folder, json.dumps(CASES)], env=own)
        for rank in range(world)
    ]
    try:
        assert [rank.wait(timeout=300) for rank in ranks] == [0] * world
    finally:
        for rank in ranks:
            rank.kill()
    found: dict[str, Any] = json.loads((folder / f"bits-{world}.json").read_text())
    return found


@pytest.mark.long
def test_compiled_blocks_train_the_same_bits_sharded_by_layers(tmp_path: Path) -> None:
    alone, two = bits(tmp_path, 1), bits(tmp_path, 2)
    assert alone["compiled"] == alone["plain"]
    assert two == alone
