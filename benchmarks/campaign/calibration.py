"""Calibration of the loss law's intervals: how often do nominal 90% ones hold the loss of a larger run, how wide are they?

Synthetic worlds that the law does not quite describe (noise with heavy tails, exponents that drift, mistuned learning
rates, one bad size) and published runs, split by compute. Beside the calibrated interval stand a bootstrap with the
residuals' noise, and the residuals' noise alone. Writes benchmarks/calibration.md. What is done is kept in --out, and a
second call goes on from there.

    FROUDE_REFERENCE_DATA=… python benchmarks/campaign/calibration.py [--worlds 80] [--workers 2] [--out DIR]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a worker a thread: before numpy is loaded

import argparse
import json
import math
import platform
import subprocess
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psutil
import scipy
from _worlds import KINDS, Study, published, world
from scipy import stats

from froude import laws
from froude.laws import loss, loss_calibration

HERE = Path(__file__).resolve().parents[1]
RESULT = HERE / "calibration.md"
LEVEL = 0.9
FIRST = 1000  # seeds below were used to choose how the interval is made
LEAST = 30  # held-out runs that make a class
#: Smaller than those of the package, for time's sake.
REPLICATES, SPLIT_REPLICATES = 100, 40
INTERVALS = ("calibrated", "bootstrap", "residual")


def predict(study: Study) -> list[dict[str, Any]]:
    """Fit a study and predict each of its held-out runs, by each kind of interval."""
    loss.REPLICATES, loss_calibration.SPLIT_REPLICATES = REPLICATES, SPLIT_REPLICATES
    law = laws.loss_law(study.fitted, groups=study.groups)
    known = {"study": study.name, "kind": study.kind, "rows": study.fitted.height, "status": law.status}
    if law.status == "too_few_points":
        return []
    rows = []
    for n, d, actual in study.held_out.select("params", "tokens", "loss").iter_rows():
        forecast = law.predict(params=n, tokens=d, level=LEVEL)
        rows.append(
            {
                **known,
                "reach": forecast.extrapolation["flops"],
                "certified": forecast.certified,
                "reasons": list(forecast.reasons),
                "error": forecast.loss / actual - 1,
                "calibrated": _score(forecast.low, forecast.high, actual),
                **_others(law, n, d, actual),
            }
        )
    return rows


def _others(law: laws.LossLaw, params: float, tokens: float, actual: float) -> dict[str, Any]:
    """What a plain bootstrap with the residuals' noise, and that noise around the law, make of one run."""
    error, problem = law._calibration.error, law._fit[0]
    n, d = np.log([params]) - problem.n_mean, np.log([tokens]) - problem.d_mean
    rng = np.random.default_rng(0)
    draws = np.repeat(loss_calibration.log_losses(error.replicates, n, d)[:, 0], 20)
    draws = draws + error.scatter * rng.standard_normal(draws.size)
    low, high = np.exp(np.quantile(draws, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2]))
    middle = float(loss_calibration.log_losses(error.theta[None, :], n, d)[0, 0])
    half = float(stats.norm.ppf(0.5 + LEVEL / 2)) * error.scatter
    ends = math.exp(middle - half), math.exp(middle + half)
    return {"bootstrap": _score(float(low), float(high), actual), "residual": _score(*ends, actual)}


def _score(low: float, high: float, actual: float) -> dict[str, Any]:
    return {"inside": low <= actual <= high, "half_width": (high - low) / 2 / actual}


def run(studies: list[Study], workers: int, kept: Path) -> pl.DataFrame:
    """Predict all studies, those already in the file `kept` excepted, and return every prediction."""
    done = {}
    if kept.exists():
        done = {entry["study"]: entry["rows"] for entry in map(json.loads, kept.read_text().splitlines())}
    left = [study for study in studies if study.name not in done]
    print(f"{len(studies)} studies, {len(studies) - len(left)} of them done before", flush=True)
    began = time.perf_counter()
    with ProcessPoolExecutor(workers) as pool, kept.open("a") as file:
        futures = {pool.submit(predict, study): study.name for study in left}
        for number, future in enumerate(as_completed(futures), 1):
            name = futures[future]
            done[name] = future.result()
            file.write(json.dumps({"study": name, "rows": done[name]}) + "\n")
            file.flush()
            if number % 20 == 0 or number == len(left):
                seconds = time.perf_counter() - began
                print(
                    f"{number} of {len(left)}, {seconds:.0f} s, ~{seconds / number * (len(left) - number):.0f} s left"
                )
    rows = [row for study in studies for row in done[study.name]]
    frame = pl.from_dicts(rows, infer_schema_length=None)
    for name in INTERVALS:
        frame = frame.with_columns(
            pl.col(name).struct.field("inside").alias(name),
            pl.col(name).struct.field("half_width").alias(f"{name}_width"),
        )
    return frame


def shares(frame: pl.DataFrame, by: str) -> pl.DataFrame:
    """Coverage and sharpness for each value of `by`: of certified predictions, and beside them of the others."""
    certified, rest = pl.col("certified"), ~pl.col("certified")
    within = pl.col("reach") <= 10
    return frame.group_by(by, maintain_order=True).agg(
        pl.col("study").n_unique().alias("studies"),
        certified.sum().alias("predictions"),
        rest.sum().alias("others"),
        certified.filter(within).mean().alias("share"),
        pl.col("calibrated").filter(certified).mean().alias("coverage"),
        pl.col("calibrated").filter(rest).mean().alias("uncertified_coverage"),
        *(pl.col(name).filter(certified).mean().alias(f"{name}_coverage") for name in INTERVALS[1:]),
        *(pl.col(f"{name}_width").filter(certified).median().alias(f"{name}_half") for name in INTERVALS),
        pl.col("error").filter(certified).abs().median().alias("error_half"),
    )


def spread(frame: pl.DataFrame) -> float:
    """Standard error of the certified coverage, studies being independent and runs within one not."""
    by_study = frame.filter("certified").group_by("study").agg(pl.col("calibrated").mean(), pl.len())
    weight = by_study["len"].to_numpy() / by_study["len"].sum()
    off = by_study["calibrated"].to_numpy() - float((weight * by_study["calibrated"].to_numpy()).sum())
    return float(np.sqrt((weight**2 * off**2).sum()))


HEAD = """| {by} | studies | certified | coverage | uncertified | coverage | certified where reach ≤ 10 | half-width | bootstrap: coverage | half-width | residual: coverage | half-width | median error |
|---|---|---|---|---|---|---|---|---|---|---|---|---|"""


def table(frame: pl.DataFrame, by: str, title: str) -> str:
    """The shares as Markdown."""
    lines = [HEAD.format(by=title)]
    for row in shares(frame, by).iter_rows(named=True):
        cells = [
            str(row[by]),
            str(row["studies"]),
            str(row["predictions"]),
            percent(row["coverage"]),
            str(row["others"]),
            percent(row["uncertified_coverage"]),
            percent(row["share"], 0),
            percent(row["calibrated_half"], 2),
            percent(row["bootstrap_coverage"]),
            percent(row["bootstrap_half"], 2),
            percent(row["residual_coverage"]),
            percent(row["residual_half"], 2),
            percent(row["error_half"], 2),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def percent(share: float | None, digits: int = 1) -> str:
    """A share as text, a dash where there is none."""
    return "–" if share is None else f"{100 * share:.{digits}f}%"


def checks(
    worlds: pl.DataFrame, runs: pl.DataFrame, classes: Iterable[pl.DataFrame]
) -> list[tuple[str, str, bool]]:
    """The acceptance: what is asked, what was measured, whether it holds."""
    pooled = shares(worlds, "all").row(0, named=True)
    counted = [row for frame in classes for row in frame.iter_rows(named=True) if row["predictions"] >= LEAST]
    worst = min(counted, key=lambda row: row["coverage"])
    near = pl.concat([worlds, runs], how="diagonal").filter(pl.col("reach") <= 10)
    found = [
        ("worlds ≥ 300", str(pooled["studies"]), pooled["studies"] >= 300),
        ("worlds, pooled: 88 to 95%", percent(pooled["coverage"]), 0.88 <= pooled["coverage"] <= 0.95),
        (
            f"worlds, each class of ≥ {LEAST}: ≥ 80%",
            f"{percent(worst['coverage'])} ({next(iter(worst.values()))})",
            worst["coverage"] >= 0.8,
        ),
    ]
    share = near["certified"].mean()
    assert isinstance(share, float)
    found.append(("certified where reach ≤ 10: ≥ 50%", percent(share), share >= 0.5))
    if runs.height:
        coverage = shares(runs, "all")["coverage"].item()
        found.append(("published runs, pooled: ≥ 85%", percent(coverage), coverage >= 0.85))
    return found


def report(frame: pl.DataFrame) -> tuple[str, bool]:
    """The tables, and whether the acceptance holds."""
    frame = frame.with_columns(
        pl.lit("all").alias("all"),
        pl.col("reach")
        .bin_intervals([3.16, 10, 31.6], labels=["1 to 3.2", "3.2 to 10", "10 to 32", "32 to 100"])
        .alias("by_reach"),
        pl.col("rows")
        .bin_intervals([15, 25, 40], labels=["up to 15", "16 to 25", "26 to 40", "more than 40"])
        .alias("by_rows"),
    ).cast({"by_reach": pl.String, "by_rows": pl.String})
    worlds, runs = frame.filter(pl.col("kind").is_in(KINDS)), frame.filter(~pl.col("kind").is_in(KINDS))
    by = [("kind", "world"), ("by_reach", "reach in compute"), ("by_rows", "rows fitted")]
    accepted = checks(worlds, runs, [shares(worlds.sort(name), name) for name, _ in by])
    good = all(holds for _, _, holds in accepted)
    asked = "\n".join(
        f"| {rule} | {measured} | {'yes' if holds else 'NO'} |" for rule, measured, holds in accepted
    )
    tables = "\n\n".join(table(worlds.sort(name), name, title) for name, title in by)
    reasons = (
        frame.filter(~pl.col("certified"))
        .explode("reasons")
        .with_columns(pl.col("reasons").str.replace_all(r"\d[\d.e+%]*", "N"))
        .group_by("reasons")
        .agg(pl.len(), pl.col("study").n_unique())
        .sort("len", descending=True)
    )
    why = "\n".join(
        f"| {reason} | {count} | {studies} |" for reason, count, studies in reasons.head(12).iter_rows()
    )
    published_tables = "No published runs: FROUDE_REFERENCE_DATA was not set."
    if runs.height:
        published_tables = f"{table(runs, 'all', 'published runs')}\n\n{table(runs, 'kind', 'set')}\n\n{table(runs, 'by_reach', 'reach in compute')}"
    return (
        f"""# Calibration of the loss law's intervals

`python benchmarks/campaign/calibration.py`: coverage of nominal {LEVEL:.0%} intervals for runs larger than those fitted, up to 100
times in compute. A certified interval is one that `LossLaw.predict` vouches for; the others stand beside. Half-widths and
errors are medians over certified predictions, relative to the actual loss. "bootstrap": quantiles of the bootstrap's
predictions with the residuals' noise. "residual": the law ± that noise. The worlds are in `_worlds.py`; the seeds are
{FIRST} and up, and the interval was designed on seeds 0 to 17 of the same worlds. {REPLICATES} bootstrap replicates, {SPLIT_REPLICATES} of each
split (the package: {DEFAULTS[0]} and {DEFAULTS[1]}).

| asked | measured | holds |
|---|---|---|
{asked}

Standard error of the pooled coverage, clustered by study: worlds {percent(spread(worlds))}{f", published runs {percent(spread(runs))}" if runs.height else ""}.

## Synthetic worlds

{table(worlds, "all", "worlds")}

{tables}

## Published runs

Each set is split at up to seven computes: the runs up to there are fitted, all larger ones (up to 100 times) predicted. A
run is on one side only; the resampling is by run. Splits of one set share runs, so the sets, not the splits, are independent.

{published_tables}

## Why predictions were not certified

| reason (numbers left out) | predictions | studies |
|---|---|---|
{why}

{datetime.now(UTC):%Y-%m-%d}, commit {commit()}; {hardware()}; Python {platform.python_version()}, numpy {np.__version__}, scipy {scipy.__version__}.
""",
        good,
    )


DEFAULTS = loss.REPLICATES, loss_calibration.SPLIT_REPLICATES


def hardware() -> str:
    """The machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next(
        (line.partition(":")[2].strip() for line in lines if "model name" in line), platform.processor()
    )
    return f"{len(os.sched_getaffinity(0))} of {psutil.cpu_count()} threads of {model}"


def commit() -> str:
    """The commit, and whether what was measured has changed since."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    return git("rev-parse", "--short", "HEAD") + (
        " with changes" if git("status", "--porcelain", "--", "campaign", "../platform/froude/laws") else ""
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--worlds", type=int, default=80, help=f"seeds, each a world of {len(KINDS)} kinds")
    parser.add_argument("--first", type=int, default=FIRST, help="the first seed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/calibration"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    studies = [world(seed, kind) for seed in range(given.first, given.first + given.worlds) for kind in KINDS]
    if folder := os.environ.get("FROUDE_REFERENCE_DATA"):
        studies += list(published(Path(folder)))
    text, good = report(run(studies, given.workers, given.out / "predictions.jsonl"))
    RESULT.write_text(text)
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
