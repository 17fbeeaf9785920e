"""Models of transformers in exact runs over real processes: the same bits at any number of workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_hf import FAMILIES, config_file, run_of

pytestmark = pytest.mark.long

CHANGES: dict[str, dict[str, Any]] = {
    "llama": {"keep_gathered": 0},
    "qwen3": {"precision": "bf16"},
    "olmo2": {"slot_schedule": "block", "parametrization": "completep"},
    "granite": {"micro_batch": 32, "parametrization": "completep"},
    "gpt2": {"optimizer": {"name": "muon", "lr": 0.02}, "keep_gathered": 0},
}


def test_each_family_has_the_same_bits_on_one_two_and_three_workers(tmp_path: Path) -> None:
    cases = {}
    for family in FAMILIES:
        own = {"slots": 3, "batch": 192, "tokens": 192 * 3, "workers": (1, 3)}
        changes = {key: value for key, value in CHANGES[family].items() if key != "keep_gathered"}
        run = run_of(config_file(tmp_path, family), family, {**own, **changes})
        cases[family] = run.to_dict() | {
            key: CHANGES[family][key] for key in CHANGES[family].keys() - changes
        }
    found = {}
    for world in (1, 2, 3):
        command = [sys.executable, str(Path(__file__).with_name("exact_rank.py"))]
        ranks = [
            subprocess.Popen(
                [*command, str(rank), str(world), str(tmp_path), json.dumps(cases)],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for rank in range(world)
        ]
        try:
            assert [rank.wait(timeout=300) for rank in ranks] == [0] * world
        finally:
            for rank in ranks:
                rank.kill()
        found[world] = json.loads((tmp_path / f"bits-{world}.json").read_text())
    assert set(found[1]) == set(FAMILIES)
    assert found[1] == found[2] == found[3]
