"""Does every optimizer work? Each trains the quickstart's smallest law proxy, at a rate of its own.

A rate is found on one seed, on octaves about a centre, with more of them until the best lies inside; then come more
seeds at that rate. Rows are kept in benchmarks/every_optimizer.parquet as they come, so the same command goes on, and
trains only what is new in the registry. Writes benchmarks/every_optimizer.md.

    OMP_NUM_THREADS=1 python benchmarks/campaign/every_optimizer.py [--only muon soap] [--report]
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from froude.config import Optimizer, Run
from froude.optimizers import OPTIMIZERS
from froude.train.api import build_model, build_source
from froude.train.data.order import validation_windows
from froude.train.optimizers import state_bytes
from froude.train.trial import run_trial

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "search_spaces")]
from _machine import commit, cpu  # noqa: E402
from quickstart import LAW_WINDOWS, proxy  # noqa: E402

ROWS = HERE / "every_optimizer.parquet"
WIDTH, STEPS, WARMUP = (
    32,
    432,
    100,
)  # of the first run of the quickstart's trial law-w32, whose warmup is the target's
TUNED_ON, SEEDS = 0, (0, 1, 2)
#: log2 of the rate about which to look, where it is not the optimizer's default.
CENTRES = {"adam": -6, "adamw": -6, "adamw8bit": -6, "lion": -8, "sgd": -2}
#: Where an optimizer does without the proxy's.
SCHEDULES = {"schedule_free_adamw": "constant"}
#: Runs of an optimizer, by which time is foretold.
USUAL = 6


def run_of(name: str, exponent: int, seed: int) -> Run:
    """The proxy under SP, which has rules for every optimizer; what is not the rate is at the optimizer's defaults."""
    base = proxy(seed, WIDTH, steps=STEPS, eval_windows=LAW_WINDOWS)
    changes = {
        "name": f"{name}-{exponent}-s{seed}",
        "parametrization": "sp",
        "optimizer": {"name": name, "lr": 2.0**exponent},
        "schedule": {"name": SCHEDULES.get(name, "wsd"), "warmup_tokens": WARMUP * base.batch},
        "norms_every": 0,
    }
    return Run.from_dict(base.to_dict() | changes)


class Rows:
    """What has been trained, kept as it comes."""

    def __init__(self) -> None:
        self.frame = pl.read_parquet(ROWS) if ROWS.exists() else pl.DataFrame()
        self.began, self.trained = time.monotonic(), 0

    def loss(self, run: Run, left: int) -> float:
        """Of a run, trained unless it has been; infinite where it diverged."""
        found = (
            self.frame.filter(pl.col("fingerprint") == run.fingerprint) if self.frame.width else self.frame
        )
        if found.is_empty():
            found = pl.DataFrame([trained(run)])
            self.frame = pl.concat([self.frame, found], how="diagonal_relaxed")
            self.frame.write_parquet(ROWS.with_suffix(".tmp"))
            ROWS.with_suffix(".tmp").rename(ROWS)
            self.trained += 1
            each = (time.monotonic() - self.began) / self.trained / 60
            row = found.to_dicts()[0]
            print(f"{run.name}: {row['loss']:.3f}, ~{left * each:.0f} min left", flush=True)
        loss = found["loss"][0]
        return float(loss) if found["status"][0] == "finished" else math.inf


def trained(run: Run) -> dict[str, Any]:
    """A row; seconds are of this process on its core, whatever else the machine does."""
    marks = [time.process_time()]
    outcome = run_trial([run], trial=run.name, progress=lambda done, total: marks.append(time.process_time()))
    (row,) = outcome.trials
    model = build_model(run, "meta")
    return {
        "name": run.name,
        "optimizer": run.optimizer.name,
        "lr": run.optimizer.lr,
        "seed": run.seed,
        "fingerprint": run.fingerprint,
        "loss": row["loss"],
        "status": row["status"],
        "tokens": run.tokens,
        "parameters": sum(p.numel() for p in model.parameters()),
        "state_bytes": state_bytes(run, model),
        "step_seconds": statistics.median(b - a for a, b in pairwise(marks)),
        "commit": commit("campaign/every_optimizer.py"),
        "cpu": cpu(),
    }


def tune(name: str, rows: Rows, others: int) -> int:
    """log2 of the best rate, with an octave on either side that is no better."""
    centre = CENTRES.get(name, round(math.log2(Optimizer(name=name).lr)))
    losses: dict[int, float] = {}
    wanted = [centre, centre - 1, centre + 1]
    while wanted:
        for exponent in wanted:
            losses[exponent] = rows.loss(run_of(name, exponent, TUNED_ON), others * USUAL + 3)
        best = min(sorted(losses), key=lambda exponent: losses[exponent])
        wanted = [exponent for exponent in (best - 1, best + 1) if exponent not in losses]
    return best


def train(names: list[str]) -> None:
    rows = Rows()
    for number, name in enumerate(names, 1):
        best = tune(name, rows, len(names) - number)
        for more, seed in enumerate(SEEDS):
            rows.loss(run_of(name, best, seed), (len(names) - number) * USUAL + len(SEEDS) - more - 1)


def by_frequency() -> float:
    """The loss of a guess by how often each byte occurs in the training split."""
    run = run_of("adamw", CENTRES["adamw"], TUNED_ON)
    source = build_source(run, "train")
    counts = np.bincount(source.read(0, source.length)[:, 1:].ravel(), minlength=run.model.vocab) + 1
    targets = validation_windows(build_source(run, "validation"), run.eval_windows)[:, 1:]
    return float(-np.log(counts / counts.sum())[targets].mean())


def entries(rows: pl.DataFrame) -> Iterator[str]:
    for name in (name for name in OPTIMIZERS if name in set(rows["optimizer"])):
        own = rows.filter(pl.col("optimizer") == name)
        tuned = own.filter(pl.col("seed") == TUNED_ON).sort("loss", "lr", nulls_last=True)["lr"][0]
        rates = own.filter(pl.col("seed") == TUNED_ON)["lr"].log(2)
        at = own.filter(pl.col("lr") == tuned).sort("seed")
        yield (
            f"| {name} | 2^{math.log2(tuned):.0f} of 2^{rates.min():.0f} … 2^{rates.max():.0f} "
            f"| {at['loss'].mean():.3f} | {at['loss'].min():.3f} | {at['loss'].max():.3f} "
            f"| {at['state_bytes'][0]:,} | {at['state_bytes'][0] / at['parameters'][0]:.2f} "
            f"| {1e3 * own['step_seconds'].median():.1f} |"
        )


def page(rows: pl.DataFrame) -> str:
    models = rows["cpu"].str.split(" of ").list.last().unique(maintain_order=True)
    return "\n".join(
        [
            "# Does every optimizer work?",
            "",
            f"`python benchmarks/campaign/every_optimizer.py` from commit {rows['commit'][0]} on (each row "
            f"names its own), on one core, {' or '.join(models)}, one thread, {datetime.now(UTC):%Y-%m-%d}. The "
            f"quickstart's smallest law proxy: width {WIDTH}, depth 2, {rows['parameters'][0]:,} parameters, bytes of "
            f"the King James Bible, {STEPS} steps of {rows['tokens'][0] // STEPS} tokens, WSD with {WARMUP} steps of "
            f"warmup; SP, which has rules for every optimizer. The rate was tuned on seed {TUNED_ON}, in octaves, and "
            f"the loss is that of seeds {', '.join(map(str, SEEDS))}. All else is at the optimizer's defaults; what an "
            "optimizer of matrices leaves has AdamW's default rate.",
            "",
            "**This is a test that each one trains, and no ranking.** One setting of each was tuned, by octaves, on "
            "one tiny model. A model that has learned nothing is at "
            f"{math.log(256):.3f} nats per token, a guess by the frequency of bytes at {by_frequency():.3f}.",
            "",
            "| optimizer | rate, of those tried | loss, nats per token | least | most | state, bytes "
            "| per parameter | CPU ms a step |",
            "|---|---|---|---|---|---|---|---|",
            *entries(rows),
            "",
            "A step is the median over an optimizer's runs of their median step, forward and backward pass included; "
            "Sophia's estimates, in one step of ten, are not in it. "
            "Time is that of the process on a core that others used as well, more while the first optimizers ran than "
            "while the last did: differences of less than half say nothing of the optimizers.",
            "",
            "What it does not show: which optimizer is best, at this size or another; what any costs where matrices "
            "are large, as the share of the update is then another; several workers.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--report", action="store_true", help="train nothing")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if not given.report:
        train(given.only)
    (HERE / "every_optimizer.md").write_text(page(pl.read_parquet(ROWS)))


if __name__ == "__main__":
    main()
