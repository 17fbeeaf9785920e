"""A writer is killed with SIGKILL at a random moment, a thousand times: what of its commits is there afterwards?

Each writer is a process of its own: it opens an attempt, reads the newest checkpoint, trains a pretended step, saves,
and acknowledges. The parent kills it somewhere between its start and a little after its usual end. Then every
acknowledged commit must be in the log and load, and one that was not acknowledged must be wholly there or not offered.
At the end every checkpoint is read against its hashes. Writes benchmarks/killed_commits.md.

    python benchmarks/campaign/killed_commits.py [--commits 1000] [--seed 0] [--out FOLDER or s3://…]
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import random
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from froude.checkpoint import tools
from froude.checkpoint.run_store import RunStore
from froude.runlog import LogReader
from froude.schemas import LEDGER, table
from froude.store import Location

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))
from _machine import commit, hardware  # noqa: E402

PROCESSES: Any = multiprocessing.get_context("forkserver")
RUN_COMMITS = 50  # of one run: a longer log takes longer to read
RESULT = HERE / "killed_commits.md"


def state_of(step: int) -> dict[str, torch.Tensor]:
    """What a state must be at a step: a few tensors, one of them of several row groups' worth."""
    generator = torch.Generator().manual_seed(step)
    return {
        "model.w": torch.randn(256, 512, generator=generator),
        "optimizer.w.exp_avg": torch.full((256, 512), float(step)),
        "step": torch.tensor(step),
    }


def write(place: Location, pipe: Connection) -> None:
    """One writer's life: it says when it begins, and then what it acknowledges."""
    torch.set_num_threads(1)
    pipe.send("begins")
    store = RunStore(place, "large")
    attempt = store.open_attempt("recipe")
    state = {name: torch.zeros_like(tensor) for name, tensor in state_of(0).items()}
    step = store.load(state)["step"] + 1
    rows = [{"run": "large", "attempt": attempt, "step": step, "slot": 0, "tokens": 10}]
    store.save(state_of(step), step=step, tokens=10 * step, tables={"ledger": table(LEDGER, rows)})
    pipe.send("acknowledged")


def newest(place: Location) -> int:
    """Step of the newest checkpoint, which must load and be that step's state."""
    state = {name: torch.zeros_like(tensor) for name, tensor in state_of(0).items()}
    step = int(RunStore(place, "large").load(state)["step"])
    if step and any(not torch.equal(state[name], tensor) for name, tensor in state_of(step).items()):
        raise SystemExit(f"the checkpoint of step {step} is not that step's state")
    return step


def writer(place: Location) -> tuple[Any, Connection]:
    """A process that has begun, and its pipe. It is forked off one without threads, which would not survive that."""
    ours, theirs = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=write, args=(place, theirs), daemon=True)
    process.start()
    theirs.close()
    assert ours.recv() == "begins"
    return process, ours


def one(place: Location, delay: float) -> bool:
    """Start a writer and kill it after so many seconds; whether it had acknowledged."""
    process, pipe = writer(place)
    time.sleep(delay)
    process.kill()
    process.join()
    with pipe, suppress(EOFError):
        return bool(pipe.recv() == "acknowledged")
    return False


def median_commit(place: Location) -> float:
    """Seconds that an undisturbed writer takes."""
    usual = []
    for step in range(1, 6):
        process, pipe = writer(place)
        began = time.monotonic()
        with pipe:
            assert pipe.recv() == "acknowledged"
        usual.append(time.monotonic() - began)
        process.join()
        assert newest(place) == step
    return statistics.median(usual)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commits", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    PROCESSES.set_forkserver_preload([RunStore.__module__, "froude.checkpoint.tools"])
    chance = random.Random(arguments.seed)
    counts = {"acknowledged": 0, "there though not acknowledged": 0, "not offered": 0}
    checkpoints, damaged, typical = 0, 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        for first in range(0, arguments.commits, RUN_COMMITS):
            place = Location.parse(arguments.out or folder) / f"killed-{first:05d}"
            typical = median_commit(place)
            for number in range(first, min(first + RUN_COMMITS, arguments.commits)):
                before = newest(place)
                acknowledged = one(place, chance.uniform(0, 2.2 * typical))
                after = newest(place)
                if after not in (before, before + 1) or (acknowledged and after == before):
                    raise SystemExit(
                        f"writer {number}: acknowledged {acknowledged}, step {before} became {after}"
                    )
                there = "not offered" if after == before else "there though not acknowledged"
                counts["acknowledged" if acknowledged else there] += 1
            print(f"{number + 1} of {arguments.commits}: {counts}", flush=True)
            found = list(tools.verify(place, LogReader(place).records()))
            checkpoints, damaged = (
                checkpoints + len(found),
                damaged + sum(bool(damage) for _, damage in found),
            )
    lines = [
        "# Writers killed in the middle of a commit",
        "",
        f"`python benchmarks/campaign/killed_commits.py --commits {arguments.commits} --seed {arguments.seed}` at "
        f"commit {commit()}, {datetime.now(UTC):%Y-%m-%d}, on {arguments.out or 'a local disk'}, {hardware()}, "
        f"Python {platform.python_version()}.",
        "",
        "One store and one machine; SIGKILL loses no page that the kernel holds: this says nothing of a power cut.",
        "",
        f"{arguments.commits} writers, each killed with SIGKILL at a random moment of the {1e3 * typical:.0f} ms "
        "that a commit takes, or within as long again and a bit:",
        "",
        "| what became of its commit | writers |",
        "|---|---|",
        *(f"| {name} | {count} |" for name, count in counts.items()),
        "",
        f"Every acknowledged commit loaded at once and was its step's state. At the end {checkpoints} checkpoints were "
        f"read against their hashes; damaged: {damaged}.",
        "",
    ]
    print("\n".join(lines))
    RESULT.write_text("\n".join(lines))
    return 1 if damaged else 0


if __name__ == "__main__":
    sys.exit(main())
