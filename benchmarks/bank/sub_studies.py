"""What the later banks share: sub-studies of their proxies, and what the package forecasts from each.

A bank says what its designs are, which rows are a design's, and which run a row is; the rest is here.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from designs import cost
from replay import forecasts_of

from froude.config import Run
from froude.space import Trial
from froude.store import Location
from froude.study import Study
from froude.sweep import trial_store
from froude.train.rows import describe

ROLES = {"rates": "lr_transfer", "trunks": "loss_law", "deep": "loss_law"}


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


@dataclass(frozen=True)
class Bank:
    """A bank's own: its corpora, their designs, a design's rows, and the run that a row describes.

    `made(row, name)` takes a row's corpus, seed, width, depth, tokens and lr.
    """

    corpora: Sequence[str]
    designs: Callable[[str], Iterator[Design]]
    chosen: Callable[[Design, pl.DataFrame], pl.DataFrame]
    made: Callable[[Mapping[str, Any], str], Run]


def study(bank: Bank, rows: pl.DataFrame, target: Run, folder: Path) -> Study:
    """Write proxies as a sweep would have, and return them."""
    place = Location.parse(folder)
    stages: dict[str, dict[str, Any]] = {}
    for (name, trial), own in rows.group_by("stage", "trial", maintain_order=True):
        runs, found = [], []
        for row in own.sort("tokens").iter_rows(named=True):
            runs.append(bank.made(row, row["run"]).replace({"stage": name}, name=row["run"]))
            kept = {key: row[key] for key in ("params", "status", "loss", "flops")}
            found.append(
                {**describe(runs[-1]), **kept, "trial": trial, "attempts": 1, "workers": 1, "leaked": 0.0}
            )
        trial_store.write(place, Trial(str(trial), tuple(runs)), trials=found)
        stages.setdefault(str(name), {"role": ROLES[str(name)], "trials": 0})["trials"] += 1
    meta = {"froude": "study", "stages": stages, "target": target.to_dict()}
    (place / "study.json").replace(json.dumps(meta).encode())
    return Study(place)


def replay(
    bank: Bank, design: Design, rows: pl.DataFrame, larger: pl.DataFrame, paid: bool
) -> list[dict[str, Any]]:
    """Forecast each larger run of a design's corpus; if `paid`, those dearer than all of its proxies."""
    own, found = bank.chosen(design, rows), []
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
    for _, runs in worth.group_by("width", "depth", "tokens", maintain_order=True):
        target = bank.made(runs.row(0, named=True) | {"seed": 0}, "target")
        with tempfile.TemporaryDirectory() as folder:
            found += forecasts_of(study(bank, own, target, Path(folder)), names, runs, spent)
    return found


def all_of(bank: Bank, rows: pl.DataFrame, larger: pl.DataFrame, workers: int, *, paid: bool) -> pl.DataFrame:
    """One row a forecast, in the order of designs."""
    wanted = [design for corpus in bank.corpora for design in bank.designs(corpus)]
    os.environ["OMP_NUM_THREADS"] = "1"
    began, done = time.perf_counter(), {}
    # A forked worker would wait for a lock of the parent's polars.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(replay, bank, design, rows, larger, paid): design for design in wanted}
        for number, future in enumerate(as_completed(futures), 1):
            done[futures[future]] = future.result()
            if number % 20 == 0 or number == len(wanted):
                seconds = time.perf_counter() - began
                left = seconds / number * (len(wanted) - number)
                print(f"{number} of {len(wanted)}, ~{left:.0f} s left", flush=True)
    return pl.from_dicts([row for design in wanted for row in done[design]], infer_schema_length=None)
