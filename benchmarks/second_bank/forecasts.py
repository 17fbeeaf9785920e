"""Forecast the second bank's larger runs from sub-studies of its proxies, by what the package ships.

A design says which proxies a team might have run: a ladder in width, in width and depth, or both; its sizes, horizons
and seeds. Rules and page are the first bank's (benchmarks/bank/verdict.py). Writes benchmarks/second_bank.md.

    python benchmarks/second_bank/forecasts.py [--workers 2] [--runs benchmarks/second_bank/runs.parquet]
    python benchmarks/second_bank/forecasts.py --rehearse FILE     # its largest proxies in the larger runs' place
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

sys.path.append(str(Path(__file__).resolve().parents[1] / "bank"))
from freeze import FROZEN
from runs import BATCH, CORPORA, DEPTH, HORIZONS, WIDTHS, run_of
from sub_studies import Bank, Design, all_of
from verdict import page

from froude.config import Run

HERE = Path(__file__).resolve().parent
TEXTS = Path("runs/second_bank/texts")
IN_WIDTH = ((48, 64, 80, 96), (48, 64, 96, 128), (64, 80, 96, 128), (48, 80, 128), WIDTHS)
STEPS = ((1000, 1400, 2000), (1400, 2000, 2800), (1000, 2000), HORIZONS)
BOTH = ((48, 64, 80, 96), WIDTHS)


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


def made(row: Mapping[str, Any], name: str) -> Run:
    """The run that a row describes."""
    of = row["corpus"], row["seed"], row["width"], row["tokens"] // BATCH, row["lr"]
    return run_of(*of, depth=row["depth"], name=name, texts=TEXTS)


BANK = Bank(CORPORA, designs, chosen, made)


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
    found = all_of(BANK, rows, larger, given.workers, paid=not given.rehearse)
    targets = {corpus: larger.filter(pl.col("corpus") == corpus) for corpus in CORPORA}
    script = "benchmarks/second_bank/forecasts.py"
    text, good = page(
        found,
        targets,
        [] if given.rehearse else FROZEN.changed(),
        "" if given.rehearse else FROZEN.whole(),
        script,
    )
    if not given.rehearse:
        (HERE.parent / "second_bank.md").write_text(text)
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
