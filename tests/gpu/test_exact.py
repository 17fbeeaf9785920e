"""Exact runs on GPUs: the same bits again and, where there are two or more, at any number of them over NCCL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from froude.config import Run
from froude.optimizers import OPTIMIZERS

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="needs a CUDA GPU")]

BASE = Run(
    tokens=768 * 4,
    batch=768,
    slots=12,
    reduction="exact",
    seed=3,
    eval_windows=200,
    model={"width": 64},
    optimizer={"lr": 2**-7, "clip": 0.5},
    schedule={"warmup_tokens": 1536},
)
CASES = {
    "adamw": {},
    "bf16": {"precision": "bf16"},
    "sgd": {"optimizer.name": "sgd", "optimizer.lr": 0.1, "parametrization": "sp"},
    "micro-batches": {"batch": 2304, "tokens": 2304 * 3, "micro_batch": 128},
    "odd width": {"model.width": 40, "model.head_dim": 10, "model.base_width": 20},
    "block": {"slot_schedule": "block"},
    "grouped, windowed, by flex attention": {
        "model.kv_heads": 2,
        "model.sliding_window": 100,
        "model.context": 256,
        "batch": 12 * 256,
        "tokens": 12 * 256 * 2,
        "eval_windows": 20,
    },
    "documents, by flex attention": {
        "data.source": "froude.train.data.shards:Shards",
        "data.path": str(Path(__file__).parents[1] / "data/shards/megatron"),
        "model.vocab": 1000,
        "model.documents": True,
        "model.context": 256,
        "batch": 12 * 256,
        "tokens": 12 * 256 * 2,
        "eval_windows": 4,
    },
    "long passes": {"batch": 12 * 2048, "tokens": 12 * 2048 * 2},
    "biases, parallel blocks, yarn": {
        "model.kv_heads": 1,
        "model.attention_bias": True,
        "model.mlp_bias": True,
        "model.parallel": True,
        "model.rope_scaling": "yarn",
        "model.rope_factor": 4.0,
        "model.rope_original": 16,
    },
    "fp16": {"precision": "fp16"},
    "bf16_stochastic": {"precision": "bf16_stochastic"},
    "in chunks": {"compute.loss_chunk": 48},
    "checkpointed": {"compute.checkpointing": "blocks"},
    "selective, bf16": {"compute.checkpointing": "selective", "precision": "bf16"},
    "offloaded": {"compute.offload": True},
}
if GPUS and torch.cuda.get_device_capability() >= (8, 0):
    CASES["tf32"] = {"precision": "tf32"}
#: How far a run's losses are from those in fp32 at most, relative to them.
NEAR = {"in chunks": 1e-6, "tf32": 1e-4, "fp16": 1e-4, "bf16": 1e-3, "bf16_stochastic": 3e-3}
ALONE = {
    f"{name} alone": {
        "optimizer": {"name": name, "options": {"every": 2} if "every" in spec.options else {}},
        "parametrization": "sp",
        "schedule.name": spec.schedules[0] if spec.schedules else "wsd",
    }
    for name, spec in OPTIMIZERS.items()
}


def bits(folder: Path, world: int) -> dict[str, Any]:
    script = Path(__file__).parents[1] / "cluster" / "exact_rank.py"
    # What needs the whole model on one worker is in none of the larger worlds.
    alone = {
        name: changes
        for name, changes in ALONE.items()
        if world == 1 or OPTIMIZERS[name.split()[0]].unit != "model"
    }
    cases = json.dumps(
        {name: BASE.replace(changes).to_dict() for name, changes in {**CASES, **alone}.items()}
    )
    folder.mkdir()
    own = os.environ | {"OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    ranks = [
        subprocess.Popen([sys.executable, script, str(rank), str(world), folder, cases, "cuda"], env=own)
        for rank in range(world)
    ]
    assert [rank.wait(timeout=600) for rank in ranks] == [0] * world
    found: dict[str, Any] = json.loads((folder / f"bits-{world}.json").read_text())
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return bits(tmp_path_factory.mktemp("exact") / "first", 1)


def test_one_gpu_trains_the_same_bits_twice(alone: dict[str, Any], tmp_path: Path) -> None:
    assert bits(tmp_path / "again", 1) == alone
    assert alone["adamw"] == alone["block"]


def test_what_saves_memory_changes_no_bit(alone: dict[str, Any]) -> None:
    assert alone["checkpointed"] == alone["offloaded"] == alone["adamw"]
    assert alone["selective, bf16"] == alone["bf16"]


@pytest.mark.parametrize("name", NEAR)
def test_other_arithmetic_has_other_bits_and_nearly_the_losses_of_fp32(
    alone: dict[str, Any], name: str
) -> None:
    if name not in alone:
        pytest.skip(f"{name} needs a GPU of compute capability 8.0")
    losses, expected = ([loss for loss, *_ in alone[case]["series"]] for case in (name, "adamw"))
    assert losses == pytest.approx(expected, rel=NEAR[name])
    assert alone[name]["digest"] != alone["adamw"]["digest"]


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_any_number_of_gpus_trains_the_bits_of_one(alone: dict[str, Any], tmp_path: Path, world: int) -> None:
    if world > GPUS:
        pytest.skip(f"needs {world} CUDA GPUs and finds {GPUS}")
    found = bits(tmp_path / "many", world)
    assert found == {name: alone[name] for name in found}
