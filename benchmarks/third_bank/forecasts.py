"""Forecast the third bank's larger runs from sub-studies of its proxies, by what the package ships.

Designs are the second bank's: ladders in width, on half of the corpora also with one in width and depth, by widths,
horizons and seeds. Rules and page are the first bank's (benchmarks/bank/verdict.py). Writes benchmarks/third_bank.md,
once all larger runs are there: a look at some of them would be one more look.

    python benchmarks/third_bank/forecasts.py [--workers 2]
    python benchmarks/third_bank/forecasts.py --rehearse     # the largest proxies in the larger runs' place
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
from sub_studies import Bank, Design, all_of
from trials import BATCH, CORPORA, DEEP, HORIZONS, WIDTHS, larger, run_of
from verdict import page, rules, scored

from froude.config import Run

HERE = Path(__file__).resolve().parent
STEPS = ((720, 1000, 1400), (1000, 1400, 2000), (720, 1400), HORIZONS)
IN_WIDTH = ((32, 40, 48, 56), (32, 40, 56, 64), (40, 48, 56, 64), (32, 48, 64), WIDTHS)
#: Where there is a ladder in width and depth, too: those in width alone, and those that go with it.
ALONE, BOTH = ((32, 40, 48, 56), (32, 48, 64), WIDTHS), ((32, 40, 48, 56), WIDTHS)
NOT_SHOWN = """Written down before the look: its bound resamples corpora, of which there are eight, and two of
them come from one program's help. A ladder in width alone is never certified for a deeper run, nor three widths of one
seed for any; designs of two horizons can't tell whether a loss falls faster late than early. The rate is the best of
720 steps for all horizons."""


def designs(corpus: str) -> Iterator[Design]:
    """Every design on a corpus, in one order: forty on each."""
    for steps in STEPS:
        for seeds in ((0,), (0, 1)):
            for widths in ALONE if corpus in DEEP else IN_WIDTH:
                yield Design(corpus, widths, False, steps, seeds)
            for widths in BOTH if corpus in DEEP else ():
                yield Design(corpus, widths, True, steps, seeds)


def chosen(design: Design, rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of a design."""
    stage, steps = pl.col("stage"), pl.col("tokens") // BATCH
    ladder = (stage == "trunks") & pl.col("width").is_in(design.widths) & pl.col("seed").is_in(design.seeds)
    if design.deep:
        ladder |= stage == "deep"
    return rows.filter(
        (pl.col("corpus") == design.corpus) & ((stage == "rates") | (ladder & steps.is_in(design.steps)))
    )


def made(row: Mapping[str, Any], name: str) -> Run:
    """The run that a row describes."""
    of = row["corpus"], row["seed"], row["width"], row["tokens"] // BATCH, row["lr"]
    return run_of(*of, depth=row["depth"], name=name)


BANK = Bank(CORPORA, designs, chosen, made)


def trained(rows: pl.DataFrame) -> pl.DataFrame:
    """The larger runs; SystemExit while one of the first seed is missing, or is not what was to be forecast."""
    file = HERE / "larger.parquet"
    found = (
        pl.read_parquet(file)
        if file.exists()
        else pl.DataFrame(schema={"corpus": pl.String, "run": pl.String})
    )
    jobs = [job for corpus in CORPORA for job in larger(corpus, rows.filter(corpus=corpus).to_dicts())]
    have = set(found.select("corpus", "run").iter_rows())
    wanted = [(job.corpus, job.trial) for job in jobs if job.runs[0].seed == 0]
    if missing := [job for job in wanted if job not in have]:
        raise SystemExit(
            f"{len(missing)} of {len(wanted)} larger runs are missing ({' '.join(missing[0])} for one); "
            "run `python benchmarks/third_bank/train.py larger` to its end"
        )
    due = {(job.corpus, job.trial): job.runs[0].optimizer.lr for job in jobs}
    for row in found.iter_rows(named=True):
        before = row["frozen"] != FROZEN.whole() or row["began"] < FROZEN.when().timestamp()
        if before or row["status"] != "finished" or row["lr"] != due[row["corpus"], row["run"]]:
            raise SystemExit(
                f"{row['corpus']} {row['run']} is not what was to be forecast: it is {row['status']}, at a rate of "
                f"{row['lr']:g}, under {row['frozen'][:12]}; leave it out by hand, and say so"
            )
    return found


def by_corpus(found: pl.DataFrame) -> str:
    """The rules with each corpus weighing the same, and corpora resampled."""
    frame = scored(found).with_columns(cluster=pl.col("corpus"))
    frame = frame.with_columns(weight=pl.col("weight") / pl.col("weight").sum().over("corpus", "far"))
    lines = [f"| {rule} | {value} | {'yes' if holds else 'NO'} |" for rule, value, holds in rules(frame)]
    return "\n".join(["| each corpus weighs the same | measured | holds |", "|---|---|---|", *lines])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rehearse", action="store_true", help="largest proxies in the larger runs' place")
    given = parser.parse_args()
    rows = pl.read_parquet(HERE / "proxies.parquet")
    if given.rehearse:
        stands = (pl.col("stage") == "trunks") & (pl.col("width") == WIDTHS[-1])
        of = rows.filter(stands & (pl.col("tokens") == HORIZONS[-1] * BATCH))
        runs = of.with_columns(pl.format("wide-s{}", "seed").alias("run"))
    else:
        runs = trained(rows)
    found = all_of(BANK, rows, runs, given.workers, paid=not given.rehearse)
    targets = {corpus: runs.filter(corpus=corpus) for corpus in CORPORA}
    differs, sha256 = ([], "") if given.rehearse else (FROZEN.changed(), FROZEN.whole())
    text, good = page(found, targets, differs, sha256, "benchmarks/third_bank/forecasts.py")
    text += f"\n## A second view\n\n{by_corpus(found)}\n\n{NOT_SHOWN}\n"
    if not given.rehearse:
        (HERE.parent / "third_bank.md").write_text(text)
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
