"""A writer is killed with SIGKILL at a random moment, a thousand times: what of its commits is there afterwards?

Each writer is a process of its own: it opens an attempt, reads the newest checkpoint, trains a pretended step, saves,
and acknowledges. The parent kills it somewhere between its start and a little after its usual end. Then every
acknowledged commit must be in the log and load, and one that was not acknowledged must be wholly there or not offered.
At the end every checkpoint is read against its hashes. Writes benchmarks/killed_commits.md.

    python benchmarks/campaign/killed_commits.py [--commits 1000] [--seed 0] [--out FOLDER or s3://…]
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from froude.checkpoint import tools
from froude.checkpoint.run_store import RunStore
from froude.records import LEDGER, table
from froude.runlog import LogReader
from froude.store import Location

HERE = Path(__file__).resolve().parents[1]
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


def write(place: Location, pipe: int) -> None:
    """One writer's life: the acknowledgement is one byte."""
    store = RunStore(place, "large")
    attempt = store.open_attempt("recipe")
    state = {name: torch.zeros_like(tensor) for name, tensor in state_of(0).items()}
    step = store.load(state)["step"] + 1
    rows = [{"run": "large", "attempt": attempt, "step": step, "slot": 0, "tokens": 10}]
    store.save(state_of(step), step=step, tokens=10 * step, tables={"ledger": table(LEDGER, rows)})
    os.write(pipe, b"a")


def newest(place: Location) -> int:
    """Step of the newest checkpoint, which must load and be that step's state."""
    state = {name: torch.zeros_like(tensor) for name, tensor in state_of(0).items()}
    step = int(RunStore(place, "large").load(state)["step"])
    if step and any(not torch.equal(state[name], tensor) for name, tensor in state_of(step).items()):
        raise SystemExit(f"the checkpoint of step {step} is not that step's state")
    return step


def one(place: Location, delay: float) -> bool:
    """Start a writer and kill it after so many seconds; whether it had acknowledged."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            write(place, theirs)
        finally:
            os._exit(0)
    os.close(theirs)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    acknowledged = bool(os.read(ours, 1))
    os.close(ours)
    return acknowledged


def median_commit(place: Location) -> float:
    """Seconds that an undisturbed writer takes."""
    usual = []
    for step in range(1, 6):
        ours, theirs = os.pipe()
        began = time.monotonic()
        write(place, theirs)
        usual.append(time.monotonic() - began)
        os.close(ours)
        os.close(theirs)
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
    chance = random.Random(arguments.seed)
    counts = {"acknowledged": 0, "there though not acknowledged": 0, "not offered": 0}
    checkpoints, damaged, typical = 0, 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        for first in range(0, arguments.commits, RUN_COMMITS):
            place = Location.parse(arguments.out or folder) / f"killed-{first:05d}"
            typical = median_commit(place)
            for number in range(first, min(first + RUN_COMMITS, arguments.commits)):
                before = newest(place)
                acknowledged = one(place, chance.uniform(0, 1.6 * typical))
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
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    lines = [
        "# Writers killed in the middle of a commit",
        "",
        f"`python benchmarks/campaign/killed_commits.py --commits {arguments.commits} --seed {arguments.seed}` at "
        f"commit {commit}, {datetime.now(UTC):%Y-%m-%d}, on {arguments.out or 'a local disk'}, "
        f"Python {platform.python_version()}.",
        "",
        f"{arguments.commits} writers, each killed with SIGKILL at a random moment of the {1e3 * typical:.0f} ms "
        "that a commit takes, and a little beyond:",
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
