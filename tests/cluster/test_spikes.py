"""A run that spikes takes the same steps, and ends with the same bits, at any number of workers."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from spiky import NAN, STEEP, marked

from froude.checkpoint.tensors import digest
from froude.config import Run
from froude.launch.cluster import simulated
from froude.launch.display import Display, following
from froude.launch.elastic import train as train_on
from froude.runlog import LogReader
from froude.store import Location
from froude.study import Study

RUN = Run(
    name="large",
    tokens=384 * 60,
    batch=384,
    slots=3,
    reduction="exact",
    checkpoint_every=20,
    eval_windows=16,
    parametrization="sp",
    model={"factory": "spiky:Spiky", "width": 16},
    data={"source": "spiky:Marked"},
    optimizer={"lr": 1e-2},
    schedule={"warmup_tokens": 384 * 10},
)


def train(folder: Path, root: Path, run: Run, world: int, left_out: Sequence[tuple[int, int]] = ()) -> Any:
    """Digest, losses, actions and what was left out."""
    script = Path(__file__).with_name("spiky_rank.py")
    words = [str(folder), json.dumps(run.to_dict()), json.dumps(left_out)]
    own = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(root / "tests" / "data")}
    ranks = [
        subprocess.Popen([sys.executable, script, str(rank), str(world), *words], env=own)
        for rank in range(world)
    ]
    assert [rank.wait(timeout=300) for rank in ranks] == [0] * world
    study = Study(folder)
    events = study.events().sort("batch").select("step", "batch", "action").collect().rows()
    entered = study.ledger().sort("step", "slot").select("step", "slot", "digest", "disposition").collect()
    place = study.location / "runs" / run.name
    losses = study.steps().sort("step").collect()["loss"].to_list()
    return digest(place, LogReader(place).lineage()[-1]), losses, events, entered


@pytest.mark.long
def test_skips_and_a_rollback_are_the_same_at_any_number_of_workers(tmp_path: Path, root: Path) -> None:
    run = marked(dict.fromkeys(range(40, 43), NAN), RUN)
    alone = train(tmp_path / "w1", root, run, 1)
    assert [(batch, action) for _, batch, action in alone[2]] == [
        (40, "skip"),
        (41, "skip"),
        (42, "rollback"),
    ]
    for world in (2, 3):
        assert train(tmp_path / f"w{world}", root, run, world)[:3] == alone[:3]
    calm = train(tmp_path / "calm", root, run, 2, left_out=[(0, 242)])
    assert calm[:2] == alone[:2]
    entered = Study(tmp_path / "w3").ledger().sort("step", "slot").collect()
    assert entered.filter(pl.col("disposition") == "trained").height == run.steps * run.slots


@pytest.mark.long
def test_a_run_eases_off_alike_at_any_number_of_workers(tmp_path: Path, root: Path) -> None:
    run = marked(dict.fromkeys(range(90, 93), STEEP), RUN.replace(tokens=384 * 110))
    alone = train(tmp_path / "w1", root, run, 1)
    assert [(b, action) for _, b, action in alone[2] if action not in ("warn", "spike")] == [
        (90, "skip"),
        (91, "skip"),
        (92, "ease"),
    ]
    for world in (2, 3):
        assert train(tmp_path / f"w{world}", root, run, world)[:3] == alone[:3]


def test_a_batch_that_is_left_out_is_a_line_on_the_console(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = marked({8: NAN}, RUN.replace(tokens=384 * 20, workers=(1, 2), eval_windows=16))
    monkeypatch.syspath_prepend(str(root / "tests" / "data"))
    place, out = Location.parse(tmp_path / "study"), io.StringIO()
    with simulated(2, log_dir=tmp_path / "logs") as cluster:
        result = train_on(run, place, cluster=cluster, trust=True, progress=following(Display(out)))
    assert result.finished
    said = [line for line in out.getvalue().splitlines() if "left out" in line]
    assert said == [f"[train] batch 8 is left out at step 9: {said[0].rpartition(': ')[2]}"]
    assert "nan" in said[0]
    events = Study(place).events().filter(pl.col("action") == "skip").collect()
    assert events.select("step", "batch").rows() == [(9, 8)]
    steps = Study(place).steps().collect()
    assert steps["step"].to_list() == [*range(1, 21)]
    assert steps["workers"].to_list() == steps["world"].to_list()
    assert steps["seconds"].min() > 0
