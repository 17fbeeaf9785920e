"""Train the bank's larger runs on one corpus, each in one process from checkpoints, and keep what they ended at.

No loss is printed: what a run ended at goes into the corpus's Parquet file beside this one, with the commit under which
it began. A run begins only when what will forecast it is committed (`frozen.py`), and what is trained stays: the same
command goes on.

    python benchmarks/bank/targets.py gcide [--only wide-s0 deep-s0] [--out runs/bank/targets]
"""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import torch
from frozen import refuse_unless_frozen
from proxies import FOLDER, LARGER, rate_at, run_of

from froude.checkpoint.run_store import RunStore
from froude.config import Run
from froude.store import Location
from froude.study import Study
from froude.train.api import Request, build_model, count_parameters
from froude.train.worker import run_worker

HERE = Path(__file__).resolve().parent
ORDER = ("wide-s0", "deep-s0", "middle-s0", "wide-s1", "wide-s2", "far-s0")
STRIDE = 100  # steps between two lines of progress
CHECKPOINTS = 240  # steps between two checkpoints


def larger_runs(corpus: str) -> dict[str, Run]:
    """The runs to forecast, by name, trained as proxies are; their rate is read from the proxies for their horizon.

    Begun once with the spike policy, which went back at step 250 of both first runs and left out 300 batches of each;
    they were given up at steps 500 and 800, before any loss was looked at.
    """
    rows = pl.read_parquet(HERE / f"{corpus}-proxies.parquet")
    found = {}
    for name, (width, depth, steps, seeds) in LARGER.items():
        for seed in seeds:
            called = f"{name}-s{seed}"
            run = run_of(corpus, seed, width, steps, rate_at(rows, steps), depth=depth, name=called)
            found[called] = run.as_proxy().replace({"checkpoint_every": CHECKPOINTS}, name=called)
    return {name: found[name] for name in ORDER}


class Told:
    """Lets a run go on to its end, and says how far it is."""

    def __init__(self, run: Run, attempt: int) -> None:
        self.run, self.attempt = run, attempt
        self.began, self.first = time.monotonic(), -1

    def poll(self, step: int) -> Request:
        if self.first < 0:
            self.first = step - 1
        if step % STRIDE == 0 or step == self.run.steps:
            seconds = (time.monotonic() - self.began) / (step - self.first)
            left = seconds * (self.run.steps - step) / 60
            print(f"{self.run.name}: step {step} of {self.run.steps}, ~{left:.0f} min left", flush=True)
        return "none"


def train(run: Run, study: Location, frozen: str) -> None:
    """Train to the end, or go on with what was begun; a finished run is not trained again."""
    store = RunStore(study / "runs" / run.name, run.name)
    if store.finished is None:
        attempt = store.open_attempt(frozen, {"commit": frozen})
        run_worker(run, store, Told(run, attempt), device="cpu")


def kept(study: Location, runs: dict[str, Run], corpus: str) -> pl.DataFrame:
    """One row a finished run: its settings, its final loss (nats per token), when it began, under which commit."""
    evals, commits = Study(study).evals().collect(), Study(study).commits().collect()
    rows = []
    for name, run in runs.items():
        own = commits.filter(pl.col("run") == name).sort("seq")
        ended = evals.filter((pl.col("run") == name) & (pl.col("step") == run.steps))
        if ended.is_empty() or "finished" not in own["kind"]:
            continue
        params = count_parameters(build_model(run, "meta")).params
        rows.append(
            {
                "corpus": corpus,
                "run": name,
                "seed": run.seed,
                "width": run.model.width,
                "depth": run.model.depth,
                "params": params,
                "tokens": run.tokens,
                "batch": run.batch,
                "lr": run.optimizer.lr,
                "warmup_tokens": run.schedule.warmup_tokens,
                "began": own["time"][0],
                "attempts": own["attempt"].n_unique(),
                "frozen": own["recipe"][0],
                "loss": ended["loss"][-1],
            }
        )
    return pl.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", choices=["gcide", "sympy"])
    parser.add_argument("--only", nargs="*", choices=ORDER, default=list(ORDER))
    parser.add_argument("--out", type=Path, default=FOLDER / "targets")
    given = parser.parse_args()
    frozen = refuse_unless_frozen()
    torch.set_num_threads(1)
    study, runs = Location.parse(given.out / given.corpus), larger_runs(given.corpus)
    for name in given.only:
        train(runs[name], study, frozen)
        rows = kept(study, runs, given.corpus)
        rows.write_parquet(HERE / f"{given.corpus}-targets.parquet")
        print(f"{datetime.now(UTC):%H:%M} {name} is kept, {rows.height} of {len(runs)}", flush=True)


if __name__ == "__main__":
    main()
