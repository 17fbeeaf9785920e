"""Which exponents do the quickstart's smallest proxies have: of the best rate, of decay, of beta2's half-life?

Sweeps search_spaces/transfer_exponents.py in one process, without Ray, into the study runs/exponents, where the same
command goes on; analysis/transfer_exponents.ipynb shows that study. Rows are copied to benchmarks/exponents.parquet,
from which benchmarks/exponents.md is written.

    nice -n 5 python benchmarks/campaign/exponents.py [--report]
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import torch

from froude.launch.sweep import open_study
from froude.space import load_space
from froude.store import Location
from froude.study import Study
from froude.sweep import agenda, trial_store
from froude.train.trial import run_trial

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))
from _machine import commit, cpu  # noqa: E402

SPACE = HERE.parent / "search_spaces" / "transfer_exponents.py"
STUDY = HERE.parent / "runs" / "exponents"
ROWS = HERE / "exponents.parquet"


def train() -> None:
    """Every trial of the space that the study does not have."""
    place, made = Location.parse(STUDY), commit("campaign/exponents.py", "../search_spaces")
    left = open_study(load_space(SPACE), place, trust=False, fresh=False)
    began, spent = time.monotonic(), 0.0
    while (trial := left.next()) is not None:
        outcome = run_trial(trial.runs, trial=trial.name)
        trial_store.write(place, trial, trials=outcome.trials, steps=outcome.steps, evals=outcome.evals)
        left.finish(trial_store.read(place, trial.name, trial))
        spent += agenda.cost(trial)
        minutes = (time.monotonic() - began) / 60
        more = sum(agenda.cost(each) for _, each in left.left())
        print(f"{trial.name}: {minutes:.1f} min, ~{minutes * more / spent:.0f} min left", flush=True)
        # Rows that an earlier call trained keep the commit that they were trained at.
        rows = Study(place).trials().collect().with_columns(commit=pl.lit(made))
        if ROWS.exists():
            before = pl.read_parquet(ROWS)
            rows = pl.concat([before, rows.join(before, on="run", how="anti")])
        rows.write_parquet(ROWS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--report", action="store_true", help="train nothing")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if not given.report:
        train()


if __name__ == "__main__":
    main()
