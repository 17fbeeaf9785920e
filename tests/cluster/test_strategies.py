"""Whatever workers share out among them, a run is the same up to rounding, and so are its checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from froude.checkpoint.manifest import Manifest
from froude.config import Run

BASE = Run(
    tokens=768 * 20,
    batch=768,
    slots=12,
    micro_batch=128,  # two passes a step at four workers
    seed=3,
    eval_windows=100,
    model={"width": 32, "depth": 2},
    optimizer={"lr": 2**-7, "clip": 0.5},
    schedule={"warmup_tokens": 1536},
)
STRATEGIES = ("fsdp", "ddp", "zero1", "zero2", "hsdp")
OPTIMIZERS = {
    "adamw": {"optimizer.clipping": "adagc"},
    "muon": {"optimizer.name": "muon", "optimizer.lr": 0.02},
    "sgd": {"optimizer.name": "sgd", "optimizer.lr": 0.1, "parametrization": "sp"},
}
#: Weights outweigh activations.
LARGE = {"model.width": 256, "model.head_dim": 64, "model.base_width": 256, "model.depth": 6, "micro_batch": 64}


def lying(strategy: str, world: int) -> dict:
    replicas = {4: 2, 3: 3}[world]
    return {
        "workers": world,
        "compute.strategy": strategy,
        "compute.replicas": replicas if strategy == "hsdp" else 0,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strategies")
    script = Path(__file__).with_name("strategies_rank.py")
    for world in (4, 3):
        cases = {
            f"{name} {strategy}": BASE.replace(changes).replace(lying(strategy, world)).to_dict()
            for name, changes in OPTIMIZERS.items()
            for strategy in STRATEGIES
        }
        if world == 4:
            cases |= {f"large {s}": BASE.replace(LARGE).replace(lying(s, world)).to_dict() for s in STRATEGIES}
        ranks = [
            subprocess.Popen(
                [sys.executable, script, str(rank), str(world), folder, json.dumps(cases)],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
            for rank in range(world)
        ]
        assert [rank.wait(timeout=300) for rank in ranks] == [0] * world
    return folder


@pytest.fixture(scope="module")
def trained(folder: Path) -> dict[str, dict]:
    return json.loads((folder / "found-4.json").read_text())["trained"]


@pytest.fixture(scope="module")
def measured(folder: Path) -> dict[str, dict]:
    return json.loads((folder / "found-4.json").read_text())["measured"]


@pytest.mark.parametrize("strategy", STRATEGIES[1:])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_strategies_agree_to_rounding(trained: dict[str, dict], optimizer: str, strategy: str) -> None:
    one, other = trained[f"{optimizer} fsdp"], trained[f"{optimizer} {strategy}"]
    assert len(one["series"]) == BASE.steps
    for (loss, norm), (expected, expected_norm) in zip(other["series"], one["series"], strict=True):
        assert loss == pytest.approx(expected, rel=1e-6)
        assert norm == pytest.approx(expected_norm, rel=1e-4)
    assert other["loss"] == pytest.approx(one["loss"], rel=1e-6)
    for (*key, value), (*expected_key, expected) in zip(other["norms"], one["norms"], strict=True):
        assert key == expected_key
        assert value == pytest.approx(expected, rel=1e-4)


def test_what_each_strategy_saves_loads_in_each_other_at_another_number_of_workers(
    folder: Path, trained: dict[str, dict]
) -> None:
    loaded = json.loads((folder / "found-3.json").read_text())["loaded"]
    assert len(loaded) == len(OPTIMIZERS) * len(STRATEGIES) ** 2
    for names, (state, loss) in loaded.items():
        name, _, other = names.partition(" of ")
        assert state == trained[other]["saved"], names
        assert loss == pytest.approx(trained[name]["series"][10][0], rel=1e-6), names


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_checkpoint_holds_every_row_once(folder: Path, optimizer: str, strategy: str) -> None:
    """However many replicas have it."""
    (path,) = (folder / f"{optimizer} {strategy}").glob("data/*/*/manifest.parquet")
    manifest = Manifest.from_bytes(path.read_bytes())
    for name, (dtype, size) in manifest.tensors.items():
        blocks = [block for block in manifest.blocks if block.fqn == name]
        assert sum(block.nbytes for block in blocks) == size.numel() * dtype.itemsize


def test_memory_falls_as_the_strategies_say(measured: dict[str, dict]) -> None:
    print(measured)
