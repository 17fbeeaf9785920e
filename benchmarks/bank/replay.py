"""Forecast the bank's larger runs from hundreds of sub-studies, by what the package ships: fit, gate, forecast.

Each design (`designs.py`) is written as a study, fitted, held against the gate and asked for each larger run. What is
scored, and by which rules, is in `verdict.py`. Writes benchmarks/bank.md; what is done is kept in --out.

    python benchmarks/bank/replay.py [--workers 2] [--out runs/bank/replay]
    python benchmarks/bank/replay.py --rehearse      # the largest proxies in the larger runs' place: seen beforehand
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import polars as pl
from designs import Design, chosen, cost, designs, rows_of, study
from frozen import changed, digests, frozen, whole
from proxies import BATCH, CENTRE, FOLDER, run_of
from verdict import page

from froude.laws import comparator
from froude.promote.case import Case
from froude.promote.checks import table
from froude.promote.fits import Fits, fit
from froude.promote.ladder.regret import corrected
from froude.promote.promotion import extrapolation, predict
from froude.study import Study

HERE = Path(__file__).resolve().parent
LEVEL = 0.9
CORPORA = ("gcide", "sympy")


def larger(corpus: str) -> pl.DataFrame:
    """The larger runs that are trained: run, seed, width, depth, params, tokens, loss."""
    file = HERE / f"{corpus}-targets.parquet"
    columns = ("run", "seed", "width", "depth", "params", "tokens", "loss")
    return pl.read_parquet(file).select(columns) if file.exists() else pl.DataFrame()


def rehearsed(corpus: str) -> pl.DataFrame:
    """The proxies that stand in for larger runs while there are none."""
    rows = rows_of(corpus).filter(pl.col("tokens") == 1920 * BATCH)
    largest = pl.col("width").is_in([96, 80]) & pl.col("stage").is_in(["trunks", "deep"])
    return rows.filter(largest).select("run", "seed", "width", "depth", "params", "tokens", "loss")


def replay(design: Design, targets: pl.DataFrame, *, paid: bool) -> list[dict[str, Any]]:
    """Forecast each target of a design's corpus that is larger than its proxies; if `paid`, dearer than all of them."""
    rows, found = chosen(design), []
    flops, spent = 6.0 * pl.col("params").cast(pl.Float64) * pl.col("tokens"), cost(rows)
    ladder = rows.filter(pl.col("stage") != "rates")
    top = float(ladder.select(flops.max()).item())
    worth = targets.filter(
        flops > (spent if paid else 0.0), flops > 1.5 * top, ~pl.col("run").is_in(ladder["run"].implode())
    )
    for of in worth.group_by("width", "depth", "tokens", maintain_order=True):
        with tempfile.TemporaryDirectory() as folder:
            found += _forecasts(design, of[1], spent, Path(folder))
    return found


def _forecasts(design: Design, runs: pl.DataFrame, spent: float, folder: Path) -> Iterator[dict[str, Any]]:
    first = runs.row(0, named=True)
    target = run_of(
        design.corpus,
        0,
        first["width"],
        first["tokens"] // BATCH,
        CENTRE,
        depth=first["depth"],
        name="target",
    )
    names = {name: getattr(design, name) for name in ("corpus", "cluster", "ladder")} | {
        "design": design.name
    }
    yield from forecasts_of(study(design, target, folder), names, runs, spent)


def forecasts_of(
    made: Study, names: dict[str, str], runs: pl.DataFrame, spent: float
) -> Iterator[dict[str, Any]]:
    """What the package forecasts from a study for larger runs of one size, `spent` being its proxies' FLOPs."""
    fits, params = fit(made), int(runs["params"][0])
    forecast = predict(fits, params)
    if forecast is None:
        return
    ratios = extrapolation(fits, params)
    passes = {check.name: check.passed for check in table(Case(made, fits, forecast, ratios))}
    own = conformal(fits)
    for run in runs.iter_rows(named=True):
        yield {
            **names,
            "target": run["run"],
            "size": str(run["run"]).rpartition("-s")[0],
            "actual": run["loss"],
            "loss": forecast.loss,
            "low": forecast.low,
            "high": forecast.high,
            "noise": forecast.noise,
            "certified": forecast.certified,
            "reasons": list(forecast.reasons),
            "other": forecast.comparator,
            "other_half": own,
            "line": forecast.compute_line,
            "naive": forecast.naive,
            "cost": spent / (6.0 * run["params"] * run["tokens"]),
            **{f"reach_{axis}": ratios[axis] for axis in ("params", "tokens", "compute")},
            "gate": passes,
        }


def conformal(fits: Fits) -> float | None:
    """The comparator's own half-width in ln loss: of its errors on the largest 30% of runs, fitted to the others.

    The ⌈(n + 1) · 90%⌉-th smallest of n errors (split conformal prediction), the largest where there are too few.
    """
    frame = corrected(fits.rows["loss_law"].filter(pl.col("status") == "finished"))
    frame = frame.sort(pl.col("params").cast(pl.Float64) * pl.col("tokens"))
    rest = frame.height - max(round(0.3 * frame.height), 1)
    law = comparator(frame[:rest])
    errors = sorted(
        abs(math.log(law.losses(params=n, tokens=d)[0] / loss))
        for n, d, loss in frame[rest:].select("params", "tokens", "loss").iter_rows()
    )
    errors = [error for error in errors if math.isfinite(error)]
    return errors[min(math.ceil((len(errors) + 1) * LEVEL), len(errors)) - 1] if errors else None


def run(workers: int, kept: Path, *, rehearse: bool) -> pl.DataFrame:
    """Replay all designs, those already in the file `kept` excepted, and return a row a forecast."""
    done = {}
    if kept.exists():
        done = {entry["design"]: entry["rows"] for entry in map(json.loads, kept.read_text().splitlines())}
    source = rehearsed if rehearse else larger
    targets = {corpus: source(corpus) for corpus in CORPORA}
    wanted = [design for corpus in CORPORA if targets[corpus].height for design in designs(corpus)]
    left = [design for design in wanted if design.name not in done]
    print(f"{len(wanted)} designs, {len(wanted) - len(left)} of them done before", flush=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    began = time.perf_counter()
    spawn = multiprocessing.get_context(
        "spawn"
    )  # a forked worker would wait for a lock of the parent's polars
    with ProcessPoolExecutor(workers, spawn) as pool, kept.open("a") as file:
        futures = {
            pool.submit(replay, design, targets[design.corpus], paid=not rehearse): design.name
            for design in left
        }
        for number, future in enumerate(as_completed(futures), 1):
            name = futures[future]
            done[name] = future.result()
            file.write(json.dumps({"design": name, "rows": done[name]}) + "\n")
            file.flush()
            if number % 10 == 0 or number == len(left):
                seconds = time.perf_counter() - began
                print(
                    f"{number} of {len(left)}, ~{seconds / number * (len(left) - number):.0f} s left",
                    flush=True,
                )
    rows = [row for design in wanted for row in done[design.name]]
    return pl.from_dicts(rows, infer_schema_length=None)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=FOLDER / "replay")
    parser.add_argument("--rehearse", action="store_true")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    state = whole(digests())[:12]
    kept = given.out / f"{'rehearsal' if given.rehearse else 'forecasts'}-{state}.jsonl"
    found = run(given.workers, kept, rehearse=given.rehearse)
    differs = [] if given.rehearse else changed()
    text, good = page(
        found, {corpus: larger(corpus) for corpus in CORPORA}, differs, "" if given.rehearse else frozen()
    )
    if not given.rehearse:
        (HERE.parent / "bank.md").write_text(text)
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
