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
from froude.hardware import layout, memory
from froude.hardware.sizes import Place
from froude.sweep.sizes import sizes_of
from froude.train.api import build_model

pytestmark = pytest.mark.long

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
#: Steps of the first are for the acceptance of the losses.
STEPS = {"adamw": 20, "muon": 4, "sgd": 4}
#: Weights outweigh activations: 25 MB of them, and 16 tokens a pass.
LARGE = {
    "model.width": 256,
    "model.head_dim": 64,
    "model.depth": 8,
    "model.context": 16,
    "slots": 8,
    "batch": 128,
    "tokens": 128 * 2,
    "schedule.warmup_tokens": 128,
    "micro_batch": 16,
}


def case(optimizer: str, strategy: str, world: int) -> dict:
    run = BASE.replace(OPTIMIZERS[optimizer], tokens=STEPS[optimizer] * BASE.batch)
    return run.replace(lying(strategy, world)).to_dict()


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
    cases = {
        world: {
            f"{name} {strategy}": case(name, strategy, world)
            for name in OPTIMIZERS
            for strategy in STRATEGIES
        }
        for world in (4, 3)
    }
    cases[4] |= {f"large {s}": BASE.replace(LARGE).replace(lying(s, 4)).to_dict() for s in STRATEGIES}
    script = Path(__file__).with_name("strategies_rank.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), folder, json.dumps(cases)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for rank in range(4)
    ]
    try:
        assert [rank.wait(timeout=600) for rank in ranks] == [0] * 4
    finally:
        for rank in ranks:
            rank.kill()
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
    assert len(one["series"]) == STEPS[optimizer]
    near = 1e-3 if optimizer == "muon" else 1e-6  # it multiplies in bf16, which makes much of little
    for (loss, norm), (expected, expected_norm) in zip(other["series"], one["series"], strict=True):
        assert loss == pytest.approx(expected, rel=near)
        assert norm == pytest.approx(expected_norm, rel=10 * near)
    assert other["loss"] == pytest.approx(one["loss"], rel=near)
    for (*key, value), (*expected_key, expected) in zip(other["norms"], one["norms"], strict=True):
        assert key == expected_key
        assert value == pytest.approx(expected, rel=100 * near)


def test_what_each_strategy_saves_loads_in_each_other_at_another_number_of_workers(
    folder: Path, trained: dict[str, dict]
) -> None:
    loaded = json.loads((folder / "found-3.json").read_text())["loaded"]
    assert len(loaded) == len(STRATEGIES) ** 2 + 2 * len(STRATEGIES)
    for names, (state, loss) in loaded.items():
        name, _, other = names.partition(" of ")
        assert state == trained[other]["saved"], names
        assert loss == pytest.approx(trained[name]["series"][3][0], rel=1e-3 if "muon" in name else 1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_checkpoint_holds_every_row_once(folder: Path, optimizer: str, strategy: str) -> None:
    """However many replicas have it."""
    (path,) = (folder / f"{optimizer} {strategy}").glob("data/*/*/manifest.parquet")
    manifest = Manifest.from_bytes(path.read_bytes())
    for name, (dtype, size) in manifest.tensors.items():
        blocks = [block for block in manifest.blocks if block.fqn == name]
        assert sum(block.nbytes for block in blocks) == size.numel() * dtype.itemsize


def test_memory_falls_as_the_strategies_say(
    measured: dict[str, dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between steps to the byte; in a step to a few blocks, of which there are eight."""
    monkeypatch.setattr(layout, "KEEP_GATHERED", 0)  # as the ranks do
    monkeypatch.setattr(memory, "BUCKET", 2**20)
    model = build_model(BASE.replace(LARGE), "meta")
    weights = sum(p.nbytes for p in model.parameters())
    block = sum(p.nbytes for p in model.blocks()[0].parameters())
    for strategy, share in {"ddp": 1, "zero1": 1 / 4, "zero2": 1 / 4, "fsdp": 1 / 4, "hsdp": 1 / 2}.items():
        assert measured[strategy]["kept"] == pytest.approx(3 * weights * share, rel=0.01)
        assert measured[strategy]["left"] == pytest.approx(weights * share, rel=0.05)  # the gradient
        run = BASE.replace(LARGE).replace(lying(strategy, 4))
        told = memory.memory(run, sizes_of(run), Place(1, 4), gpu=False)
        items = {name: item.bytes for name, item in told.items.items()}
        kept = items["weights"] + items["state"]
        assert measured[strategy]["kept"] == pytest.approx(kept, rel=0.01)
        assert measured[strategy]["left"] == pytest.approx(items["kept gradients"], rel=0.05)
        peak = max(told.at(m) for m in told.moments if m not in ("update", "evaluation")) - kept
        assert measured[strategy]["peak"] == pytest.approx(peak, abs=3 * block)
        # Who holds a share makes a block at a time.
        assert measured[strategy]["built whole"] >= weights
        assert measured[strategy]["built"] <= weights * share + 2 * block
    # What it gathers to stay, and the gradients that wait for the last pass.
    named = {"ddp": 0 + 1, "zero1": 1 + 1, "zero2": 1 + 1 / 4, "fsdp": 0 + 1 / 4, "hsdp": 0 + 1 / 2}
    for strategy, share in named.items():
        assert weights * share <= measured[strategy]["peak"] <= weights * share + 6 * block
    peaks = [measured[strategy]["peak"] for strategy in ("zero1", "zero2", "hsdp", "fsdp")]
    assert peaks == sorted(peaks, reverse=True)
