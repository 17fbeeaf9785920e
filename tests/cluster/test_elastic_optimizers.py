"""One run for each way in which an optimizer is sharded, on real nodes of which one is killed: the bits of one worker.

By rows is what tests/cluster/test_elastic.py trains with; here through a ramp, and with owners of matrices or of whole
parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from froude.checkpoint.run_store import RunStore
from froude.checkpoint.tensors import digest
from froude.config import Run
from froude.launch.cluster import SimulatedCluster, simulated
from froude.launch.elastic import Progress, train
from froude.promote.token_audit import token_account
from froude.runlog import LogReader
from froude.study import Study
from froude.train.api import Unsupervised
from froude.train.worker import run_worker

pytestmark = pytest.mark.long


def run_of(optimizer: str, **schedule: Any) -> Run:
    return Run(
        name=optimizer,
        model={"width": 32},
        optimizer={"name": optimizer},
        parametrization="sp",  # which has rules for both
        slots=6,
        reduction="exact",
        tokens=768 * 80,
        checkpoint_every=10,
        workers=(1, 3),
        schedule={"warmup_tokens": 768 * 10, **schedule},
        eval_windows=64,
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedCluster]:
    with simulated(3, log_dir=tmp_path_factory.mktemp("logs")) as running:
        yield running


#: The first is by rows; its batch has just been doubled when the node goes, and is doubled once more thereafter.
RUNS = {
    "adamw, ramped": run_of("adamw", ramp=[[768 * 16, 2], [768 * 40, 4]], weight_decay_to=0.1),
    "muon": run_of("muon"),
    "adafactor": run_of("adafactor"),
}


@pytest.mark.parametrize(
    "name", ["muon", *(pytest.param(name, marks=pytest.mark.campaign) for name in RUNS if name != "muon")]
)
def test_a_node_is_killed_in_mid_run(cluster: SimulatedCluster, tmp_path: Path, name: str) -> None:
    run, killed = RUNS[name], []
    for name in ("struck", "calm"):
        (tmp_path / name).mkdir()
    struck, calm = Study(tmp_path / "struck"), Study(tmp_path / "calm")

    def strike(now: Progress) -> None:
        if now.step >= run.steps / 3 and not killed:
            killed.append(cluster.nodes[-1])
            cluster.kill_node(killed[0])

    result = train(run, struck.location, cluster=cluster, progress=strike)
    cluster.add_node()
    assert result.finished
    assert result.world_sizes == [3, 2]
    slots = struck.ledger().filter(run=run.name).group_by("step", "slot").len().collect()
    assert slots.height == run.steps * run.slots
    assert slots["len"].unique().to_list() == [1]
    account = token_account(struck, run.name, run)
    assert (account.whole, account.expected) == (True, run.tokens)

    place = calm.location / "runs" / run.name
    store = RunStore(place, run.name)
    host = Unsupervised(attempt=store.open_attempt("recipe"))
    assert run_worker(run.replace(workers=1), store, host, device="cpu") == result.loss
    theirs = struck.location / "runs" / run.name
    assert digest(place, LogReader(place).lineage()[-1]) == digest(theirs, LogReader(theirs).lineage()[-1])
    columns = [pl.col("step"), pl.col("loss"), pl.col("grad_norm")]
    ours, seen = (
        s.steps().filter(run=run.name).select(columns).sort("step").collect() for s in (calm, struck)
    )
    assert ours.equals(seen)
