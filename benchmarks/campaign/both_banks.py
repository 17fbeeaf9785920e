"""Both banks by today's version, as one: sub-studies of six corpora, each corpus weighing the same. A later look.

What forecast the larger runs first, frozen before these were trained, is in benchmarks/bank.md and second_bank.md.
Since then the rule of certificates (docs/decisions/0038) and the width (0039) have changed, with these runs in sight.
Rules and clusters are theirs (benchmarks/bank/verdict.py). Writes benchmarks/both_banks.md; what is done is kept.

    python benchmarks/campaign/both_banks.py [--workers 2] [--out runs/both_banks]
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE), str(HERE / "bank"), str(HERE / "second_bank")]
import forecasts  # noqa: E402
import replay  # noqa: E402
from _machine import commit, cpu  # noqa: E402
from corpora import CORPORA, text  # noqa: E402
from proxies import FOLDER  # noqa: E402
from sub_studies import all_of  # noqa: E402
from verdict import NEAR, by, reasons, rules, scored, table  # noqa: E402

RESULT = HERE / "both_banks.md"


def found(workers: int, out: Path) -> pl.DataFrame:
    """A row a forecast of either bank, scored; each corpus weighs the same among the far ones."""
    out.mkdir(parents=True, exist_ok=True)
    for corpus in CORPORA:  # made once: two workers would each fetch it into the same file
        text(corpus, FOLDER)
    first = replay.run(workers, out / f"first-{commit('bank')}.jsonl", rehearse=False)
    kept = out / f"second-{commit('second_bank')}.parquet"
    if not kept.exists():
        rows = pl.read_parquet(forecasts.HERE / "runs.parquet")
        larger = rows.filter(pl.col("stage") == "larger")
        all_of(forecasts.BANK, rows, larger, workers, paid=True).write_parquet(kept)
    second = pl.read_parquet(kept)
    parts = [
        scored(bank.drop("gate")).with_columns(bank=pl.lit(name))
        for name, bank in (("1", first), ("2", second))
    ]
    frame = pl.concat(parts, how="diagonal_relaxed").unique(["bank", "design", "target"], maintain_order=True)
    frame = frame.with_columns(
        cluster=pl.format("{} {}", "bank", "cluster"), corpus=pl.format("{} ({})", "corpus", "bank")
    )
    return frame.with_columns(weight=pl.col("weight") / pl.col("weight").sum().over("corpus", "far"))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/both_banks"))
    given = parser.parse_args()
    frame = found(given.workers, given.out)
    far, judged = frame.filter("far"), rules(frame)
    page = f"""# Both banks, by today's version: a later look

`python benchmarks/campaign/both_banks.py`, whose head says what was seen before. {far["design"].n_unique()} sub-studies
of {far["corpus"].n_unique()} corpora, of which each weighs the same; the number behind a corpus is its bank's.
Columns are those of [second_bank.md](second_bank.md).

| asked of forecasts at ≥ 10× the compute and ≥ 4× the params | measured | holds |
|---|---|---|
{chr(10).join(f"| {rule} | {value} | {'yes' if holds else 'NO'} |" for rule, value, holds in judged)}

{table("far, corpus", by(far, "corpus"))}

{table("far, bank", by(far, "bank"))}

{table(f"far, params and tokens at most {NEAR:g}×, corpus", by(far.filter(pl.col("reach") <= NEAR), "corpus"))}

## Why far forecasts were not certified

{reasons(far)}

{datetime.now(UTC):%Y-%m-%d}, commit {commit("bank", "second_bank")}; {cpu()}.
"""
    RESULT.write_text(page)
    print(page)
    return 0 if all(holds for *_, holds in judged) else 1


if __name__ == "__main__":
    raise SystemExit(main())
