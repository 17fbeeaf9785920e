"""Forecast the second bank's larger runs from sub-studies of its proxies, by what the package ships.

A design says which proxies a team might have run: a ladder in width, in width and depth, or both; its sizes, horizons
and seeds. Rules and page are the first bank's (benchmarks/bank/verdict.py). Writes benchmarks/second_bank.md.

    python benchmarks/second_bank/forecasts.py [--workers 2] [--runs benchmarks/second_bank/runs.parquet]
    python benchmarks/second_bank/forecasts.py --rehearse FILE     # its largest proxies in the larger runs' place
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

sys.path.append(str(Path(__file__).resolve().parents[1] / "bank"))
from designs import cost
from freeze import changed, frozen
from replay import forecasts_of
from runs import BATCH, CENTRE, CORPORA, DEPTH, HORIZONS, WIDTHS, run_of
from verdict import page

from froude.space import Trial
from froude.store import Location
from froude.study import Study
from froude.sweep import trial_store
from froude.train.rows import describe

HERE = Path(__file__).resolve().parent
TEXTS = Path("runs/second_bank/texts")
ROLES = {"rates": "lr_transfer", "trunks": "loss_law", "deep": "loss_law"}
IN_WIDTH = ((48, 64, 80, 96), (48, 64, 96, 128), (64, 80, 96, 128), (48, 80, 128), WIDTHS)
STEPS = ((1000, 1400, 2000), (1400, 2000, 2800), (1000, 2000), HORIZONS)
IN_DEPTH = (48, 64, 80, 96)  # the widths; their depths are 2 to 5
BOTH = ((48, 64, 80, 96), WIDTHS)


@dataclass(frozen=True)
class Design:
    """Proxies of one corpus: `widths` of the ladder in width, whether there is one in width and depth, steps, seeds."""

    corpus: str
    widths: tuple[int, ...]
    deep: bool
    steps: tuple[int, ...]
    seeds: tuple[int, ...]

    @property
    def ladder(self) -> str:
        return "both" if self.widths and self.deep else "width" if self.widths else "width and depth"

    @property
    def name(self) -> str:
        parts = (self.widths, self.steps, self.seeds)
        return f"{self.corpus} {self.ladder} " + " ".join("-".join(map(str, part)) or "0" for part in parts)

    @property
    def cluster(self) -> str:
        """What counts as one piece of evidence: corpus and proxies, whatever the seeds."""
        return f"{self.corpus} {self.ladder} {self.widths} {self.steps}"


def designs(corpus: str) -> Iterator[Design]:
    """Every design on a corpus, in one order."""
    for steps in STEPS:
        for seeds in ((0,), (0, 1)):
            for widths in IN_WIDTH:
                yield Design(corpus, widths, False, steps, seeds)
            for widths in BOTH:
                yield Design(corpus, widths, True, steps, seeds)
        if len(steps) > 2:
            yield Design(corpus, (), True, steps, (0,))


def chosen(design: Design, rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of a design; the size that both ladders have is the ladder in width's."""
    stage, steps = pl.col("stage"), pl.col("tokens") // BATCH
    trunks = (stage == "trunks") & pl.col("width").is_in(design.widths) & pl.col("seed").is_in(design.seeds)
    deep = stage == "deep"
    if not design.widths:
        deep |= (stage == "trunks") & (pl.col("width") == 64) & (pl.col("seed") == 0)
    ladder = trunks | deep if design.deep else trunks
    return rows.filter(
        (pl.col("corpus") == design.corpus) & ((stage == "rates") | (ladder & steps.is_in(design.steps)))
    )


def study(rows: pl.DataFrame, target: Any, folder: Path) -> Study:
    """Write proxies as a sweep would have, and return them."""
    place = Location.parse(folder)
    stages: dict[str, dict[str, Any]] = {}
    for (name, trial), own in rows.group_by("stage", "trial", maintain_order=True):
        runs, found = [], []
        for row in own.sort("tokens").iter_rows(named=True):
            of = row["corpus"], row["seed"], row["width"], row["tokens"] // BATCH, row["lr"]
            made = run_of(*of, depth=row["depth"], name=row["run"], texts=TEXTS)
            runs.append(made.replace({"stage": name}, name=row["run"]))
            kept = {key: row[key] for key in ("params", "status", "loss", "flops")}
            found.append(
                {**describe(runs[-1]), **kept, "trial": trial, "attempts": 1, "workers": 1, "leaked": 0.0}
            )
        trial_store.write(place, Trial(str(trial), tuple(runs)), trials=found)
        stages.setdefault(str(name), {"role": ROLES[str(name)], "trials": 0})["trials"] += 1
    meta = {"froude": "study", "stages": stages, "target": target.to_dict()}
    (place / "study.json").replace(json.dumps(meta).encode())
    return Study(place)


def replay(design: Design, rows: pl.DataFrame, larger: pl.DataFrame, *, paid: bool) -> list[dict[str, Any]]:
    """Forecast each larger run of a design's corpus; if `paid`, those dearer than all of its proxies."""
    own, found = chosen(design, rows), []
    flops, spent = 6.0 * pl.col("params").cast(pl.Float64) * pl.col("tokens"), cost(own)
    ladder = own.filter(pl.col("stage") != "rates")
    top = float(ladder.select(flops.max()).item())
    worth = larger.filter(
        pl.col("corpus") == design.corpus,
        flops > (spent if paid else 0.0),
        flops > 1.5 * top,
        ~pl.col("run").is_in(ladder["run"].implode()),
    )
    names = {name: getattr(design, name) for name in ("corpus", "cluster", "ladder")} | {
        "design": design.name
    }
    for (width, depth, tokens), runs in worth.group_by("width", "depth", "tokens", maintain_order=True):
        of = design.corpus, 0, int(width), int(tokens) // BATCH, CENTRE
        target = run_of(*of, depth=int(depth), name="target", texts=TEXTS)
        with tempfile.TemporaryDirectory() as folder:
            found += forecasts_of(study(own, target, Path(folder)), names, runs, spent)
    return found


def all_of(rows: pl.DataFrame, larger: pl.DataFrame, workers: int, *, paid: bool) -> pl.DataFrame:
    """One row a forecast, in the order of designs."""
    wanted = [design for corpus in CORPORA for design in designs(corpus)]
    os.environ["OMP_NUM_THREADS"] = "1"
    began, done = time.perf_counter(), {}
    # A forked worker would wait for a lock of the parent's polars.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(replay, design, rows, larger, paid=paid): design for design in wanted}
        for number, future in enumerate(as_completed(futures), 1):
            done[futures[future]] = future.result()
            if number % 20 == 0 or number == len(wanted):
                seconds = time.perf_counter() - began
                left = seconds / number * (len(wanted) - number)
                print(f"{number} of {len(wanted)}, ~{left:.0f} s left", flush=True)
    return pl.from_dicts([row for design in wanted for row in done[design]], infer_schema_length=None)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=Path, default=HERE / "runs.parquet")
    parser.add_argument("--rehearse", action="store_true", help="largest proxies in the larger runs' place")
    given = parser.parse_args()
    rows = pl.read_parquet(given.runs)
    larger = rows.filter(pl.col("stage") == "larger")
    if given.rehearse:
        longest, widest = pl.col("tokens") == HORIZONS[-1] * BATCH, pl.col("width") == WIDTHS[-1]
        larger = rows.filter(
            (pl.col("stage") == "trunks") & longest & widest & (pl.col("depth") == DEPTH)
        ).with_columns(pl.format("wide-s{}", "seed").alias("run"))
    found = all_of(rows, larger, given.workers, paid=not given.rehearse)
    targets = {corpus: larger.filter(pl.col("corpus") == corpus) for corpus in CORPORA}
    script = "benchmarks/second_bank/forecasts.py"
    text, good = page(
        found, targets, changed() if not given.rehearse else [], "" if given.rehearse else frozen(), script
    )
    if not given.rehearse:
        (HERE.parent / "second_bank.md").write_text(text)
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
