"""Exact runs of a size at which weights are gathered layer by layer, on two threads a worker, through SIGKILL.

Together 242 s of CPU, by both cores, and 4 GB of disk.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from froude.checkpoint.tensors import digest
from froude.config import Run
from froude.runlog import LogReader
from froude.store import Location
from froude.study import Study
from froude.train.api import build_model

#: Many layers and steps: at two workers one has a slot less.
DEEP = Run(
    name="deep",
    reduction="exact",
    precision="bf16",
    slots=3,
    workers=(1, 3),
    batch=3 * 128,
    tokens=3 * 128 * 200,
    seed=5,
    eval_windows=16,
    checkpoint_every=20,
    norms_every=0,
    model={"width": 64, "depth": 12},
    optimizer={"lr": 2**-8},
    schedule={"warmup_tokens": 3 * 128 * 20},
)
#: Many parameters: as few tokens as there can be.
LARGE = Run(
    name="large",
    reduction="exact",
    slots=3,
    workers=(1, 3),
    batch=3 * 16,
    tokens=3 * 16 * 4,
    seed=5,
    eval_windows=4,
    checkpoint_every=2,
    keep_checkpoints=1,
    norms_every=0,
    model={"width": 768, "depth": 14, "head_dim": 64, "context": 16},
    optimizer={"lr": 2**-9},
    schedule={"warmup_tokens": 3 * 16},
)


def launch(study: Path, run: Run, world: int, *, kill: int = -1) -> float:
    """Trains to its end, whose loss is returned, or until it is killed in the step after `kill`."""
    script = Path(__file__).with_name("sized_rank.py")
    groups = study.with_name(f"{study.name}-groups")
    groups.mkdir(exist_ok=True)
    group = groups / str(len(list(groups.iterdir())))  # those who are killed leave theirs
    given = [str(study), str(kill), json.dumps(run.to_dict()), str(group)]
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(world), *given],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if kill >= 0 else None,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"},  # cores are few
        )
        for rank in range(world)
    ]
    try:
        out = [rank.communicate(timeout=1800)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    codes = [rank.returncode for rank in ranks]
    if kill >= 0:
        assert codes[-1] == -signal.SIGKILL
        assert all(codes)  # the others find their partner gone
        return 0.0
    assert codes == [0] * world
    found = [json.loads(text.splitlines()[-1]) for text in out]
    assert all(each == {"loss": found[0]["loss"], "threads": 2} for each in found)
    return float(found[0]["loss"])


def bits(study: Path, run: Run) -> tuple[list[float], str]:
    """Losses of all steps; the digest of the last parameters and optimizer state."""
    place = Location.parse(study) / "runs" / run.name
    losses = Study(study).steps().sort("step").collect()["loss"].to_list()
    return losses, digest(place, LogReader(place).lineage()[-1])


def same(reference: Path, study: Path, run: Run, worlds: list[int]) -> list[int]:
    """The steps from which the attempts, of these numbers of workers, have gone on."""
    found = bits(study, run)
    assert found == bits(reference, run)
    assert len(found[0]) == run.steps
    attempts = Study(study).commits().filter(pl.col("kind") == "attempt").collect()
    assert attempts["world"].to_list() == worlds
    return list(attempts["step"])


@pytest.mark.long
def test_twelve_layers_in_bf16_are_the_same_bits_through_kills_at_every_number_of_workers(
    tmp_path: Path,
) -> None:
    """Steps since the last checkpoint are lost, and trained again by another number of workers."""
    reference, study = tmp_path / "alone", tmp_path / "elastic"
    loss = launch(reference, DEEP, 1)
    launch(study, DEEP, 3, kill=50)
    launch(study, DEEP, 2, kill=110)
    assert launch(study, DEEP, 1) == loss
    first, second, third = same(reference, study, DEEP, [3, 2, 1])
    assert 0 == first < second < 50 <= third < 110


@pytest.mark.long
def test_a_hundred_million_parameters_are_the_same_bits_at_one_two_and_three_workers(tmp_path: Path) -> None:
    assert sum(p.numel() for p in build_model(LARGE, "meta").parameters()) >= 100e6
    reference, study = tmp_path / "alone", tmp_path / "elastic"
    try:
        loss = launch(reference, LARGE, 1)
        launch(study, LARGE, 3, kill=2)
        assert launch(study, LARGE, 2) == loss
        assert same(reference, study, LARGE, [3, 2]) == [0, 2]
    finally:  # gigabytes, of which pytest would keep three
        for folder in (reference, study):
            shutil.rmtree(folder, ignore_errors=True)
