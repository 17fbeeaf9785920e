"""What four ranks saved loads at three, two and one; a rank killed between data and record commits nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from froude.checkpoint.run_store import RunStore
from froude.runlog import LogReader
from froude.store import Location

RANK = Path(__file__).with_name("resharding_rank.py")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What four real gloo processes with FSDP2 leave behind; each phase's own checks are there."""
    folder = tmp_path_factory.mktemp("sharded")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(RANK), str(rank), str(folder)], env=environment, stderr=subprocess.PIPE
        )
        for rank in range(4)
    ]
    try:
        errors = [rank.communicate(timeout=240)[1].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [-signal.SIGKILL, 0, 0, 0], "\n".join(errors)
    return folder


def test_a_state_sharded_over_four_ranks_loads_at_one_two_and_three(sharded: Path) -> None:
    saved = json.loads((sharded / "saved.json").read_text())
    assert len(saved) > 20
    for world in (1, 2, 3):
        assert json.loads((sharded / f"loaded-{world}.json").read_text()) == saved


@pytest.mark.filterwarnings("ignore:checkpoint of step")
def test_a_sharded_state_loads_without_a_process_group(sharded: Path) -> None:
    saved = json.loads((sharded / "saved.json").read_text())
    whole = {
        name: torch.zeros(shape, dtype=getattr(torch, dtype)) for name, (dtype, shape, _) in saved.items()
    }
    assert RunStore(Location.parse(sharded / "run"), "large").load(whole)["step"] == 1
    raw = {name: tensor.reshape(-1).view(torch.uint8).tolist() for name, tensor in whole.items()}
    assert raw == {name: content for name, (_, _, content) in saved.items()}


@pytest.mark.filterwarnings("ignore:checkpoint of step")
def test_a_kill_between_data_and_record_leaves_the_old_head(sharded: Path) -> None:
    assert len(list(sharded.glob("run/data/000000000007/*/manifest.parquet"))) == 1
    log = LogReader(Location.parse(sharded / "run"))
    kinds = [(record.kind, record.step) for record in log.records()]
    assert kinds == [
        ("attempt", 0),
        ("checkpoint", 1),
        ("checkpoint", 3),
        ("attempt", 3),
        ("attempt", 3),
        ("attempt", 3),
    ]
    successor = RunStore(log.location, "large")
    assert successor.open_attempt("recipe") == 5
