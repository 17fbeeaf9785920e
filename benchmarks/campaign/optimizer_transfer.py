"""Does the best rate of each optimizer stay where it is from width 64 to 256 under muP?

Trains the package's own model at three widths, nine rates a factor of sqrt(2) apart and two seeds, with each
optimizer; the rates, which were centred by a few runs of width 64, are of the base width. Rows are kept in
benchmarks/optimizer_transfer.parquet as they come, so the same command goes on; the fit is `laws.lr_transfer`.
Writes benchmarks/optimizer_transfer.md.

    python benchmarks/campaign/optimizer_transfer.py [--only muon soap] [--report]
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import matplotlib
import polars as pl
import torch
from matplotlib.figure import Figure

from froude import laws
from froude.config import Run
from froude.laws.drawing.render import render
from froude.train.trial import run_trial

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))
from _machine import commit, cpu  # noqa: E402

ROWS = HERE / "optimizer_transfer.parquet"
WIDTHS, SEEDS, STEPS, BATCH = (64, 128, 256), (0, 1), 160, 768
#: log2 of the middle one of the rates.
CENTRES = {"adamw": -7.5, "lion": -7.0, "muon": -5.0, "soap": -6.0, "muonh": -4.5}
RATES = 9
#: Octaves by which the best rate may move, and the standard error from which on nothing is said.
EQUIVALENT, PRECISE = 0.5, 0.25


def runs(names: list[str]) -> Iterator[Run]:
    """Small ones first, so that there is something to look at early."""
    for width in WIDTHS:
        for name in names:
            for number in range(RATES):
                for seed in SEEDS:
                    lr = 2 ** (CENTRES[name] + (number - RATES // 2) / 2)
                    yield Run(
                        name=f"{name}-w{width}-{number}-s{seed}",
                        batch=BATCH,
                        tokens=BATCH * STEPS,
                        seed=seed,
                        model={"width": width},
                        optimizer={"name": name, "lr": lr},
                        schedule={"warmup_tokens": BATCH * STEPS // 10},
                        norms_every=0,
                    )


def train(names: list[str]) -> None:
    rows = pl.read_parquet(ROWS) if ROWS.exists() else pl.DataFrame()
    done = set(rows["name"]) if len(rows) else set()
    left = [run for run in runs(names) if run.name not in done]
    began = time.monotonic()
    cost = {run.name: run.model.width**2 for run in left}
    total, spent = sum(cost.values()), 0
    for run in left:
        (row,) = run_trial([run], trial=run.name).trials
        kept = {
            "name": run.name,
            "optimizer": run.optimizer.name,
            "fingerprint": run.fingerprint,
            "commit": commit("campaign/optimizer_transfer.py"),
            **{key: row[key] for key in ("width", "lr", "seed", "tokens", "loss", "status", "seconds")},
        }
        rows = (
            pl.concat([rows, pl.DataFrame([kept])], how="vertical_relaxed")
            if len(rows)
            else pl.DataFrame([kept])
        )
        rows.write_parquet(ROWS.with_suffix(".tmp"))
        ROWS.with_suffix(".tmp").rename(ROWS)
        spent += cost[run.name]
        minutes = (time.monotonic() - began) / 60
        print(f"{run.name}: ~{minutes * (total / spent - 1):.0f} min left", flush=True)


def octaves(row: dict[str, float]) -> float:
    """The standard error of one width's best rate."""
    return math.log2(row["high"] / row["low"]) / (2 * 1.96)


def verdict(shift: float, error: float) -> str:
    """Two one-sided tests at 5%."""
    if error > PRECISE:
        return "unknown"
    if abs(shift) + 1.645 * error <= EQUIVALENT:
        return "equivalent"
    return "moved" if abs(shift) - 1.645 * error > EQUIVALENT else "unknown"


def page(rows: pl.DataFrame) -> str:
    names = [name for name in CENTRES if name in set(rows["optimizer"])]
    found = {name: laws.lr_transfer(rows.filter(pl.col("optimizer") == name)) for name in names}
    lines = [
        "# Does the best rate stay over the width?",
        "",
        f"`python benchmarks/campaign/optimizer_transfer.py` from commit {rows['commit'][0]} on (each row names "
        f"its own), on {cpu()}, {datetime.now(UTC):%Y-%m-%d}. The package's own model, depth 2, under muP; bytes of "
        f"the King James Bible, {BATCH * STEPS:,} tokens in batches of {BATCH}; WSD with a warmup of a tenth; {RATES} "
        f"rates a factor of sqrt(2) apart, seeds {', '.join(map(str, SEEDS))}. Rates were centred by single "
        "runs of width 64, which are not in the table. Of muon, soap and muonh only the rate of the matrices is "
        "varied: the rest is AdamW's, at its default rate.",
        "",
        "The shift is that of the best rate from width 64 to 256, in octaves, with its standard error (of the two "
        "optima under the fit's common curvature, taken as independent). equivalent: less than half an octave by two "
        "one-sided tests at 5%; moved: more; unknown: neither, or the standard error is above a quarter.",
        "",
        "| optimizer | best rate at 64 | 128 | 256 | loss at 64 | 256 | shift | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, fit in found.items():
        curves = {row["width"]: row for row in fit.curves.to_dicts()}
        small, large = curves[WIDTHS[0]], curves[WIDTHS[-1]]
        shift = math.log2(large["lr"] / small["lr"])
        error = math.hypot(octaves(small), octaves(large))
        rates = " | ".join(f"{curves[width]['lr']:.2g}" for width in WIDTHS)
        lines.append(
            f"| {name} | {rates} | {small['loss']:.3f} | {large['loss']:.3f} | {shift:+.2f} ± {error:.2f} | "
            f"{verdict(shift, error)} |"
        )
    return "\n".join(
        [
            *lines,
            "",
            "![Loss over the rate, a curve for each width](optimizer_transfer.svg)",
            "",
            "What it does not show: other depths, heads, horizons or batches; widths beyond 256; and which optimizer "
            "is best, since only one rate of each was tuned.",
            "",
        ]
    )


def figure(rows: pl.DataFrame) -> Figure:
    """Loss over the rate, a panel for each optimizer and a curve for each width."""
    panels = []
    for name in [name for name in CENTRES if name in set(rows["optimizer"])]:
        first, *_ = laws.lr_transfer(rows.filter(pl.col("optimizer") == name)).drawing()
        panels.append(replace(first, title=name))
    return render(panels)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=CENTRES, default=list(CENTRES))
    parser.add_argument("--report", action="store_true", help="train nothing")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if not given.report:
        train(given.only)
    rows = pl.read_parquet(ROWS)
    (HERE / "optimizer_transfer.md").write_text(page(rows))
    with matplotlib.rc_context({"svg.hashsalt": "froude"}):
        figure(rows).savefig(HERE / "optimizer_transfer.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
