"""All three banks by today's version, as one: sub-studies of fourteen corpora, each weighing the same. A later look.

What forecast the larger runs first, frozen before these were trained, is in benchmarks/bank.md, second_bank.md and
third_bank.md. After the second bank the rule of certificates (docs/decisions/0038) and the width (0039) were changed,
with the six corpora of the first two in sight. Nothing was changed after the third.
Rules and clusters are theirs (benchmarks/bank/verdict.py). Writes benchmarks/all_banks.md; what is done is kept.

    python benchmarks/campaign/all_banks.py [--workers 2] [--out runs/all_banks]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

HERE = Path(__file__).resolve().parents[1]
sys.path += [str(HERE), str(HERE / "bank")]
from _machine import commit, cpu  # noqa: E402
from verdict import NEAR, by, clustered, reasons, rules, scored, table  # noqa: E402

RESULT = HERE / "all_banks.md"
BANKS = {"1": "bank", "2": "second_bank", "3": "third_bank"}


def replayed(bank: str, workers: int, kept: Path) -> pl.DataFrame:
    """A row a forecast of one bank; its folder comes first on the path, since their modules have the same names."""
    sys.path.insert(0, str(HERE / BANKS[bank]))
    if bank == "1":
        import replay
        from corpora import CORPORA, text
        from proxies import FOLDER

        for corpus in CORPORA:  # made once: two workers would each fetch it into the same file
            text(corpus, FOLDER)
        return replay.run(workers, kept.with_suffix(".jsonl"), rehearse=False)
    import forecasts
    from sub_studies import all_of

    if bank == "2":
        rows = pl.read_parquet(forecasts.HERE / "runs.parquet")
        larger = rows.filter(pl.col("stage") == "larger")
    else:
        rows = pl.read_parquet(forecasts.HERE / "proxies.parquet")
        larger = forecasts.trained(rows)
    return all_of(forecasts.BANK, rows, larger, workers, paid=True)


def found(workers: int, out: Path) -> pl.DataFrame:
    """A row a forecast of any bank, scored; each corpus weighs the same among the far ones."""
    out.mkdir(parents=True, exist_ok=True)
    parts = []
    for name, folder in BANKS.items():
        kept = out / f"{name}-{commit(folder)}.parquet"
        if not kept.exists():
            one = [sys.executable, __file__, "--workers", str(workers), "--bank", name, "--kept", str(kept)]
            subprocess.run(one, check=True)
        parts.append(scored(pl.read_parquet(kept).drop("gate")).with_columns(bank=pl.lit(name)))
    frame = pl.concat(parts, how="diagonal_relaxed").unique(["bank", "design", "target"], maintain_order=True)
    frame = frame.with_columns(
        cluster=pl.format("{} {}", "bank", "cluster"), corpus=pl.format("{} ({})", "corpus", "bank")
    )
    return frame.with_columns(weight=pl.col("weight") / pl.col("weight").sum().over("corpus", "far"))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/all_banks"))
    parser.add_argument("--bank", choices=BANKS, help=argparse.SUPPRESS)
    parser.add_argument("--kept", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bank:
        replayed(given.bank, given.workers, given.kept).write_parquet(given.kept)
        return 0
    frame = found(given.workers, given.out)
    far, judged = frame.filter("far"), rules(frame)
    by_corpus = clustered(far.filter("certified").with_columns(cluster=pl.col("corpus")))
    page = f"""# All three banks, by today's version: a later look

`python benchmarks/campaign/all_banks.py`, whose head says what was seen before. {far["design"].n_unique()} sub-studies
of {far["corpus"].n_unique()} corpora, of which each weighs the same; the number behind a corpus is its bank's.
Columns are those of [second_bank.md](second_bank.md).

| asked of forecasts at ≥ 10× the compute and ≥ 4× the params | measured | holds |
|---|---|---|
{chr(10).join(f"| {rule} | {value} | {'yes' if holds else 'NO'} |" for rule, value, holds in judged)}

The lower bound resamples corpus × proxies, as the banks' own do; where corpora are resampled it is
{by_corpus:.0%}.

{table("far, corpus", by(far, "corpus"))}

{table("far, bank", by(far, "bank"))}

{table(f"far, params and tokens at most {NEAR:g}×, corpus", by(far.filter(pl.col("reach") <= NEAR), "corpus"))}

## Why far forecasts were not certified

{reasons(far)}

{datetime.now(UTC):%Y-%m-%d}, commit {commit(*BANKS.values())}; {cpu()}.
"""
    RESULT.write_text(page)
    print(page)
    return 0 if all(holds for *_, holds in judged) else 1


if __name__ == "__main__":
    raise SystemExit(main())
