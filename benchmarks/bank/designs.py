"""Sub-studies of the bank: which of its proxies a team might have run, as studies that the package reads.

A design is a ladder (in width, in width and depth, or both), the sizes and the horizons of it, the seeds, and the rates
that were looked for. All are written down here, before the larger runs are trained.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
from proxies import BATCH, run_of

from froude.config import Run
from froude.space import Trial
from froude.store import Location
from froude.study import Study
from froude.sweep import trial_store
from froude.train.rows import describe

HERE = Path(__file__).resolve().parent
ROLES = {"rates": "lr_transfer", "trunks": "loss_law", "deep": "loss_law", "search": "search"}
#: Sizes are widths; in the ladder in width and depth 32 has 2 layers, 48 has 3, 64 has 4, 80 has 5.
IN_WIDTH = ((32, 48, 64), (32, 64, 96), (32, 48, 64, 96))
IN_DEPTH = ((32, 48, 64), (48, 64, 80), (32, 48, 64, 80))
HORIZONS = ((240, 480, 960), (480, 960, 1920), (240, 960), (240, 480, 960, 1920))  # steps
SHORT_RATES, ALL_RATES = (32, 64), (32, 64, 96)  # widths at which rates are looked for


@dataclass(frozen=True)
class Design:
    """Proxies of one corpus; `widths` and `shapes` are the sizes of the two ladders, () where it has none."""

    corpus: str
    widths: tuple[int, ...]
    shapes: tuple[int, ...]
    steps: tuple[int, ...]
    seeds: tuple[int, ...]
    rates: tuple[int, ...]

    @property
    def ladder(self) -> str:
        return "both" if self.widths and self.shapes else "width" if self.widths else "width and depth"

    @property
    def name(self) -> str:
        parts = (self.widths, self.shapes, self.steps, self.seeds, self.rates)
        return f"{self.corpus} {self.ladder} " + " ".join("-".join(map(str, part)) or "0" for part in parts)

    @property
    def cluster(self) -> str:
        """What counts as one piece of evidence: corpus and proxies, whatever the seeds and the rates' widths."""
        return f"{self.corpus} {self.ladder} {self.widths} {self.shapes} {self.steps}"


def designs(corpus: str) -> Iterator[Design]:
    """Every design on a corpus, in one order."""
    seeds = ((0,), (1,), (0, 1))
    for rates in (SHORT_RATES, ALL_RATES):
        for steps in HORIZONS:
            for widths in IN_WIDTH:
                for own in seeds:
                    yield Design(corpus, widths, (), steps, own, rates)
            long = tuple(n for n in steps if n > 240)
            if len(long) > 1:
                for shapes in IN_DEPTH:
                    yield Design(corpus, (), shapes, long, (0,), rates)
                for widths, shapes in ((IN_WIDTH[0], IN_DEPTH[0]), (IN_WIDTH[2], IN_DEPTH[2])):
                    for own in ((0,), (0, 1)):
                        yield Design(corpus, widths, shapes, steps, own, rates)


@cache
def rows_of(corpus: str) -> pl.DataFrame:
    return pl.read_parquet(HERE / f"{corpus}-proxies.parquet")


def chosen(design: Design) -> pl.DataFrame:
    """The bank's rows of a design; rates at the longer horizon, which only set the trunks' rate, are in none."""
    rows = rows_of(design.corpus)
    stage, steps = pl.col("stage"), pl.col("tokens") // BATCH
    kept = rows.filter(
        ((stage == "rates") & pl.col("width").is_in(design.rates))
        | (
            (stage == "trunks")
            & pl.col("width").is_in(design.widths)
            & steps.is_in(design.steps)
            & pl.col("seed").is_in(design.seeds)
        )
        | ((stage == "deep") & pl.col("width").is_in(design.shapes) & steps.is_in(design.steps))
    )
    if design.widths and design.shapes:  # the size that both ladders have is trained once
        kept = kept.filter(~((stage == "deep") & (pl.col("depth") == 2)))
    return kept


def cost(rows: pl.DataFrame) -> float:
    """6·params·tokens of all runs; branches off one trunk cost it once, and a tenth of their length each."""
    flops = 6.0 * pl.col("params").cast(pl.Float64) * pl.col("tokens")
    trials = (
        rows.with_columns(own=flops).group_by("trial").agg(top=pl.col("own").max(), all=pl.col("own").sum())
    )
    return float(trials.select((0.9 * pl.col("top") + 0.1 * pl.col("all")).sum()).item())


def study(design: Design, target: Run, folder: Path) -> Study:
    """Write the design as a sweep would have, and return it."""
    place = Location.parse(folder)
    stages: dict[str, dict[str, Any]] = {}
    for (name, trial), rows in chosen(design).group_by("stage", "trial", maintain_order=True):
        runs, found = [], []
        for row in rows.sort("tokens").iter_rows(named=True):
            of = row["width"], row["tokens"] // BATCH, row["lr"]
            made = run_of(design.corpus, row["seed"], *of, depth=row["depth"], name=row["run"])
            run = made.replace({"stage": name}, name=row["run"])
            runs.append(run)
            kept = {key: row[key] for key in ("params", "status", "loss", "flops")}
            found.append(
                {**describe(run), **kept, "trial": trial, "attempts": 1, "workers": 1, "leaked": 0.0}
            )
        trial_store.write(place, Trial(str(trial), tuple(runs)), trials=found)
        stages.setdefault(str(name), {"role": ROLES[str(name)], "trials": 0})["trials"] += 1
    meta = {"froude": "study", "stages": stages, "target": target.to_dict()}
    (place / "study.json").replace(json.dumps(meta).encode())
    return Study(place)
