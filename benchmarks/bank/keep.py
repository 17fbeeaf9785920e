"""Keep what a study of the bank found, one row a run, as Parquet beside this file.

python benchmarks/bank/keep.py runs/bank/gcide gcide-proxies
"""

from __future__ import annotations

import argparse
from pathlib import Path

import polars as pl

from froude.study import Study

SETTINGS = [
    "stage",
    "trial",
    "run",
    "seed",
    "width",
    "depth",
    "params",
    "tokens",
    "batch",
    "lr",
    "warmup_tokens",
]
COLUMNS = [*SETTINGS, "schedule", "parametrization", "flops", "status", "loss"]


def kept(url: str) -> pl.DataFrame:
    """Return the runs' settings and final losses (nats per token), in the order of stages and names."""
    rows = Study(url).trials().collect()
    return rows.select(name for name in COLUMNS if name in rows.columns).sort("stage", "run")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study")
    parser.add_argument("name")
    given = parser.parse_args()
    rows = kept(given.study)
    file = Path(__file__).parent / f"{given.name}.parquet"
    rows.write_parquet(file)
    print(f"{file.name}: {rows.height} runs, {rows['status'].value_counts().rows()}")


if __name__ == "__main__":
    main()
