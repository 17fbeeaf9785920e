"""Would larger proxies have told that the third bank's dictionary would be forecast badly? Looked for after its look.

Trunks of widths beyond the ladder's 64, on one seed, trained as the third bank's: how far they end from a law of the
ladder, and what the package forecasts of the larger runs with them among the proxies. Pascal, which was forecast well,
stands beside. Writes benchmarks/larger_proxies.md; what is trained is kept.

    python benchmarks/campaign/larger_proxies.py [--processes 2] [--out runs/larger_proxies]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE / name) for name in ("third_bank", "second_bank", "bank", "")]
from _machine import commit, cpu  # noqa: E402
from forecasts import BANK  # noqa: E402
from packages import text  # noqa: E402
from sub_studies import Design, replay  # noqa: E402
from train import Kept, train  # noqa: E402
from trials import BATCH, HORIZONS, TEXTS, WIDTHS, Job, best_rate, run_of  # noqa: E402

from froude import laws  # noqa: E402

RESULT = HERE / "larger_proxies.md"
WIDER = {"dictionary": (80, 96, 112, 128), "pascal": (96, 128)}
ADDED = {
    "dictionary": ((), (80,), (96,), (112,), (128,), (80, 96), (80, 96, 112), (80, 96, 112, 128)),
    "pascal": ((), (96,), (128,)),
}


def jobs(rows: pl.DataFrame) -> Iterator[Job]:
    """Trunks of the wider proxies, at their corpus's rate."""
    for corpus, widths in WIDER.items():
        lr = best_rate(rows.filter(corpus=corpus).to_dicts())
        for width in widths:
            name = f"trunks-w{width}-d2-s0"
            runs = (run_of(corpus, 0, width, n, lr, name=f"{name}-n{n}") for n in HORIZONS)
            yield Job(corpus, "trunks", name, tuple(runs))


def beyond(rows: pl.DataFrame, wider: pl.DataFrame) -> Iterator[str]:
    """How far each wider proxy ended from the posterior of the ladder's law."""
    for corpus in WIDER:
        ladder = rows.filter(corpus=corpus, stage="trunks")
        law = laws.loss_law(ladder, groups="trial")
        top = ladder["params"].max()
        for (width, params), own in (
            wider.filter(corpus=corpus)
            .sort("params", "tokens")
            .group_by("width", "params", maintain_order=True)
        ):
            off = [
                f"{math.log(law.predict(params=params, tokens=row['tokens']).loss / row['loss']):+.1%}"
                for row in own.iter_rows(named=True)
            ]
            yield f"| {corpus} | {width} | {params / top:.2f}× | {' | '.join(off)} |"  # type: ignore[operator]


def forecasts(rows: pl.DataFrame, wider: pl.DataFrame, larger: pl.DataFrame) -> Iterator[str]:
    """What is forecast of each larger run of the first seed, with wider proxies in the ladder."""
    for corpus, sets in ADDED.items():
        targets = larger.filter(pl.col("corpus") == corpus, pl.col("seed") == 0)
        for added in sets:
            every = pl.concat([rows, wider.filter(pl.col("width").is_in(added)).select(rows.columns)])
            for seeds in ((0, 1), (0,)):
                design = Design(corpus, WIDTHS + added, False, HORIZONS, seeds)
                for row in sorted(replay(BANK, design, every, targets, False), key=lambda row: row["size"]):
                    inside = row["low"] <= row["actual"] <= row["high"]
                    yield (
                        f"| {corpus} | {', '.join(map(str, added)) or '–'} | {len(seeds)} | {row['size']} | "
                        f"{row['loss']:.3f} [{row['low']:.3f}, {row['high']:.3f}] | {row['actual']:.3f} | "
                        f"{row['loss'] / row['actual'] - 1:+.1%} | {'yes' if inside else 'NO'} | "
                        f"{'yes' if row['certified'] else row['reasons'][0].partition(' (')[0]} |"
                    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/larger_proxies"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for corpus in WIDER:
        text(corpus, TEXTS)
    rows = pl.read_parquet(HERE / "third_bank" / "proxies.parquet")
    kept = Kept(given.out / "trunks.parquet")
    if train(kept, lambda: kept.left([*jobs(rows)]), given.processes, math.inf):
        raise SystemExit("some trunks failed; the same command goes on")
    wider, larger = pl.DataFrame(kept.rows), pl.read_parquet(HERE / "third_bank" / "larger.parquet")
    steps = " | ".join(f"{n:,} steps" for n in HORIZONS)
    page = f"""# Would larger proxies have told?

`python benchmarks/campaign/larger_proxies.py`: proxies wider than the third bank's largest (width 64), one seed each,
at the ladder's rate, of {BATCH:,} tokens a step. Looked for after [the bank's look](third_bank.md), and no rule was
changed by it.

The forecast of a law of the ladder (both seeds, all horizons), relative to what the wider proxy ended at (ln):

| corpus | width | params, of the largest | {steps} |
|---|---|---|{"---|" * len(HORIZONS)}
{chr(10).join(beyond(rows, wider))}

With them among the proxies, what the package forecasts of the larger runs:

| corpus | widths added | seeds of the ladder | larger run | forecast [90%] | actual | error | inside | certified |
|---|---|---|---|---|---|---|---|---|
{chr(10).join(forecasts(rows, wider, larger))}

{datetime.now(UTC):%Y-%m-%d}, commit {commit("third_bank")}; {cpu()}.
"""
    RESULT.write_text(page)
    print(page)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
