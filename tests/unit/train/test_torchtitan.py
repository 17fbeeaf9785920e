"""search_spaces/torchtitan_llama.py: torchtitan's own model under muP, where that version of it is installed."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from froude.cli import main
from froude.config import Run
from froude.space import load_space
from froude.train.api import build_model
from froude.train.probe.soundness import check_model


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


MISSING = [
    *(["torchtitan==0.3.0"] if version("torchtitan") != "0.3.0" else []),
    *(["triton"] if not version("triton") else []),
]
pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}")]


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch, root: Path) -> Any:
    monkeypatch.syspath_prepend(str(root / "search_spaces"))
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def titan(as_before: None) -> ModuleType:
    return importlib.import_module("torchtitan_llama")


@pytest.fixture
def run(root: Path) -> Run:
    """The study's large run, short and narrow."""
    target = load_space(root / "search_spaces" / "torchtitan_llama.py", seed=1).target
    steps = {"tokens": 8 * target.batch, "schedule.warmup_tokens": target.batch}
    return target.replace({"model.width": 64, "slots": 12, "eval_windows": 64, **steps})


def test_its_logits_are_those_of_torchtitans_own_class(titan: ModuleType, run: Run) -> None:
    """The same weights in theirs give the same bits, but for muP's multiplier, here the base width over the width."""
    tokens = torch.randint(256, (2, 64), generator=torch.Generator().manual_seed(0))
    for times in (1, 2):
        of_width = run.replace({"model.readout_sd": 0.1, "model.width": 64 * times})
        ours: Any = build_model(of_width)
        theirs = titan.config(of_width).build()
        theirs.load_state_dict(ours.state_dict())
        with torch.no_grad():
            assert torch.equal(ours(tokens) * times, theirs(tokens))


@pytest.mark.parametrize("changes", [{}, {"tied": True}, {"qk_norm": True}, {"width": 128}], ids=str)
def test_it_keeps_the_contract_of_a_model(run: Run, changes: dict[str, Any]) -> None:
    changed = run.replace({f"model.{key}": value for key, value in changes.items()})
    model: Any = build_model(changed)
    kinds = list(model.kinds().values())
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "embedding": 1,
        "hidden": 14,
        "norm": 9 if changed.model.qk_norm else 5,
        **({} if changed.model.tied else {"readout": 1}),
    }
    check_model(changed)


def test_the_coordinate_check_passes(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = str(root / "search_spaces" / "torchtitan_llama.py")
    plot = ["--plot", str(tmp_path / "check.svg")]
    assert main(["coordcheck", space, "--trust", "--widths", "64,128,256", "--times", "1,3", *plot]) == 0
    assert "coordinate check over width passed" in capsys.readouterr().out


def test_any_number_of_workers_trains_the_same_bits(root: Path, run: Run, tmp_path: Path) -> None:
    script = root / "tests" / "cluster" / "exact_rank.py"
    cases = json.dumps({"torchtitan": run.to_dict()})
    path = os.pathsep.join((str(root / "search_spaces"), *sys.path))
    own = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    found = {}
    for world in (1, 2, 3):
        ranks = [
            subprocess.Popen([sys.executable, script, str(rank), str(world), tmp_path, cases], env=own)
            for rank in range(world)
        ]
        assert [rank.wait(timeout=600) for rank in ranks] == [0] * world
        found[world] = json.loads((tmp_path / f"bits-{world}.json").read_text())["torchtitan"]
    assert found[1] == found[2] == found[3]
    losses = [loss for loss, *_ in found[1]["series"]]
    assert losses[-1] < losses[0]
