"""Seconds that the laws take on a million rows: fit, table, predict and bootstrap. Writes benchmarks/large_frames.md.

Rows are runs of a known law with noise of .3%, or points of U-curves and of steps to a loss; each of its own group.

    OMP_NUM_THREADS=1 python benchmarks/large_frames.py [--rows 1000000]
"""

from __future__ import annotations

import argparse
import math
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from _machine import commit, hardware

from froude import laws
from froude.promote.fits import PRIOR

RESULT = Path(__file__).resolve().parent / "large_frames.md"
GOAL = 30.0  # seconds, each
REPLICATES = 300  # as many as `.table()` of a loss law takes
NOISE = 0.003


def runs(rows: int, rng: np.random.Generator) -> pl.DataFrame:
    """Sizes and horizons over three decades each."""
    n, d = 10 ** rng.uniform(6, 9, rows), 10 ** rng.uniform(8, 11, rows)
    loss = (1.8 + 480 * n**-0.35 + 2100 * d**-0.37) * np.exp(NOISE * rng.standard_normal(rows))
    return pl.DataFrame({"params": n, "tokens": d, "loss": loss})


def rates(rows: int, rng: np.random.Generator) -> pl.DataFrame:
    """U-curves of eight widths, rates over three octaves."""
    width = 2 ** rng.integers(5, 13, rows)
    away = rng.uniform(-1.5, 1.5, rows) * math.log(2)
    loss = (2.5 + 3 / np.sqrt(width) + 0.02 * away**2) * np.exp(NOISE * rng.standard_normal(rows))
    return pl.DataFrame({"width": width, "lr": 0.5 / width * np.exp(away), "loss": loss})


def steps(rows: int, rng: np.random.Generator) -> pl.DataFrame:
    """Steps to one loss at batches over eight doublings, with a critical batch of 5e5 tokens."""
    batch = np.round(2 ** rng.uniform(15, 23, rows))
    return pl.DataFrame(
        {"batch": batch, "steps": 1e4 * (1 + 5e5 / batch) * np.exp(NOISE * rng.standard_normal(rows))}
    )


def measure(rows: int) -> list[tuple[str, str, float]]:
    """Law, what was done, and the seconds that it took."""
    rng, found = np.random.default_rng(0), []

    def timed(law: str, what: str, do: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = do()
        found.append((law, what, time.perf_counter() - began))
        print(f"{law:24s} {what:24s} {found[-1][2]:6.1f} s", flush=True)
        return result

    ladder, grid = runs(rows, rng), rates(rows, rng)
    at = {"params": 1e10, "tokens": 1e12}
    for name, options in (("loss_law", {}), ("loss_law, prior", {"prior": PRIOR})):
        law = timed(name, "fit", lambda options=options: laws.loss_law(ladder, **options))
        timed(name, f"bootstrap({REPLICATES})", lambda law=law: law.bootstrap(REPLICATES, seed=1))
        timed(name, "table", law.table)
        timed(name, "predict", lambda law=law: law.predict(**at))
        timed(name, "predict again", lambda law=law: law.predict(**at))
        timed(name, "rows", lambda law=law: law.rows)
    timed("comparator", "fit", lambda: laws.comparator(ladder).losses(**at))
    curve = timed("lr_curve", "fit", lambda: laws.lr_curve(grid.filter(pl.col("width") == 256)))
    timed("lr_curve", "table", curve.table)
    transfer = timed("lr_transfer", "fit", lambda: laws.lr_transfer(grid))
    timed("lr_transfer", "table", transfer.table)
    timed("lr_transfer", "optimum", lambda: transfer.optimum(1e5))
    batch = timed("critical_batch", "fit", lambda: laws.critical_batch(steps(rows, rng)))
    timed("critical_batch", "table", batch.table)
    optimum = timed("optimum_law", "fit", lambda: laws.optimum_law(ladder, target="loss"))
    timed("optimum_law", "table", optimum.table)
    flops = ladder.with_columns(flops=10 ** (18 + (pl.int_range(pl.len()) % 6).cast(pl.Float64) / 2))
    iso = timed("iso_flop", "fit", lambda: laws.iso_flop(flops.drop("tokens")))
    timed("iso_flop", "table", iso.table)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows, machine = parser.parse_args().rows, hardware()
    found = measure(rows)
    worst = max(found, key=lambda each: each[2])
    lines = "\n".join(f"| {law} | {what} | {seconds:.1f} |" for law, what, seconds in found)
    missed = [f"{law} {what}" for law, what, seconds in found if seconds > GOAL]
    RESULT.write_text(f"""# Laws on many rows

Seconds on {rows:,} rows, each a group of its own; the goal is {GOAL:g} s each. The slowest is {worst[0]}'s
{worst[1]} with {worst[2]:.1f} s; {"the goal is met" if not missed else f"missed by {', '.join(missed)}"}.

| law | what | seconds |
|---|---|---|
{lines}

`lr_curve` has the eighth of the rows that is of one width. Not shown: rows in few groups, which are refitted
replicate by replicate.

{datetime.now(UTC):%Y-%m-%d}, commit {commit("large_frames.py")}; {machine};
Python {platform.python_version()}, numpy {np.__version__}, one BLAS thread.
""")
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
