"""Several real processes over gloo: the same training at any number of workers, across restarts."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from froude.config import Run
from froude.study import Study

RUN = Run(
    name="big",
    tokens=768 * 8,
    batch=768,
    slots=12,
    seed=3,
    eval_windows=96,
    checkpoint_every=3,
    workers=(1, 3),
    model={"width": 32},
    optimizer={"lr": 2**-8},
    schedule={"warmup_tokens": 1536},
)

WORKER = """
import json, sys, datetime
import torch, torch.distributed as dist
from froude.config import Run
from froude.store import Location
from froude.checkpoint.run_store import RunStore
from froude.train.api import LocalHost
from froude.train.loop import run_worker

class StopAt(LocalHost):
    def poll(self, step):
        return "stop" if step == stop else "none"

torch.set_num_threads(1)
rank, world, port, study, stop, run = json.loads(sys.argv[1])
run = Run.from_dict(run)
if world > 1:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world,
                            timeout=datetime.timedelta(seconds=60))
store = RunStore(Location.parse(study) / "runs" / run.name, run.name)
host = StopAt(attempt=store.open_attempt("recipe", {}))
loss = run_worker(run, store, host, device="cpu")
print(json.dumps({"rank": rank, "loss": loss}), flush=True)
if world > 1:
    dist.destroy_process_group()
"""


def train(study: Path, world: int, stop: int = -1, run: Run = RUN) -> list[float]:
    """Final losses of all ranks of one attempt."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = [json.dumps([rank, world, port, str(study), stop, run.to_dict()]) for rank in range(world)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, a], stdout=subprocess.PIPE, text=True, env=environment
        )
        for a in arguments
    ]
    out = [worker.communicate(timeout=120)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * world
    return [json.loads(text.splitlines()[-1])["loss"] for text in out]


def curve(study: Path) -> list[float]:
    return Study(study).steps().sort("step").collect()["loss"].to_list()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    study = tmp_path_factory.mktemp("alone")
    return study, train(study, 1)[0]


def test_three_two_three_workers_train_what_one_trains(alone, tmp_path):
    """Stopped at steps 3 and 5 and resumed with another number of workers: same order, same curve, no token lost."""
    train(tmp_path, 3, stop=3)
    train(tmp_path, 2, stop=5)
    losses = train(tmp_path, 3)
    reference, loss = alone
    assert losses == [losses[0]] * 3
    assert losses[0] == pytest.approx(loss, abs=1e-4)
    assert curve(tmp_path) == pytest.approx(curve(reference), abs=1e-4)
    order = ["step", "slot", "first_sample", "samples", "tokens", "digest", "disposition"]
    ours, theirs = (
        Study(s).ledger().select(order).sort("step", "slot").collect() for s in (tmp_path, reference)
    )
    assert ours.equals(theirs)
    assert ours["tokens"].sum() == RUN.tokens
    assert ours.height == RUN.steps * RUN.slots
    commits = Study(tmp_path).commits().collect()
    assert commits.filter(pl.col("kind") == "attempt")["world"].to_list() == [3, 2, 3]
    assert commits["kind"].to_list()[-1] == "finished"


def test_resuming_at_the_same_world_size_changes_no_bit(alone, tmp_path):
    train(tmp_path, 1, stop=4)
    resumed = train(tmp_path, 1)
    reference, loss = alone
    assert resumed == [loss]
    assert curve(tmp_path) == curve(reference)


def test_micro_batches_that_do_not_divide_evenly_keep_all_ranks_in_step(alone, tmp_path):
    losses = train(tmp_path, 3, run=RUN.replace(micro_batch=192))
    assert losses[0] == pytest.approx(alone[1], abs=1e-4)
