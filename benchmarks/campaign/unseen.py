"""Do intervals hold, and forecasts err less than their comparator, on public runs that nobody looked at before?

Sets of four sources that took no part in making the method, each split by compute as those of calibration.py are,
through the package as it is. What counts is said in `rules`, committed with the hashes of the tables before the first
forecast; `_four_sources.py` says where the tables are from.

    FROUDE_UNSEEN_DATA=FOLDER python benchmarks/campaign/unseen.py [--workers 2]     # writes benchmarks/unseen.md
"""

from __future__ import annotations

import argparse
import os
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
from _calibration_report import NEAR, clustered, reasons, scored, table
from _four_sources import sets
from _worlds import split
from calibration import HERE, commit, cpu, run

RESULT = HERE / "unseen.md"
SHARE, COVERAGE = {"within 10×": 0.5, "10 to 100×": 0.3}, 0.88


def rules(frame: pl.DataFrame) -> list[tuple[str, str, bool]]:
    """What is asked in each band of reach, what was measured with every source weighing the same, whether it holds."""
    found = []
    for name, share in SHARE.items():
        part = frame.filter(pl.col("reach") <= NEAR if name == "within 10×" else pl.col("reach") > NEAR)
        own = scored(part.filter("certified")).group_by("source")
        every = part.group_by("source").agg(pl.col("certified").mean())["certified"].mean()
        inside = own.agg(pl.col("inside").mean())["inside"].mean()
        errors = own.agg(pl.col("error", "other_error").median())
        error, other = errors["error"].mean(), errors["other_error"].mean()
        certified, held, mine, theirs = (float(value or 0.0) for value in (every, inside, error, other))  # type: ignore[arg-type]
        found += [
            (f"{name}: certified ≥ {share:.0%}", f"{certified:.0%}", certified >= share),
            (
                f"{name}: coverage of the certified ≥ {COVERAGE:.0%}",
                f"{held:.1%} (clustered, all predictions alike: at least {clustered(part.filter('certified')):.0%})",
                held >= COVERAGE,
            ),
            (
                f"{name}: median error below that of published exponents",
                f"{mine:.2%} against {theirs:.2%}",
                mine < theirs,
            ),
        ]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/unseen"))
    given = parser.parse_args()
    folder = os.environ.get("FROUDE_UNSEEN_DATA")
    if not folder:
        print(
            "not run: FROUDE_UNSEEN_DATA is not set, the folder of the tables that _four_sources.py describes"
        )
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    found = run(
        list(split(sets(Path(folder)))), given.workers, given.out / f"predictions-{commit('campaign')}.jsonl"
    )
    frame = found.with_columns(
        source=pl.col("kind").str.split(" ").list.first(),
        set=pl.col("kind").str.split(" ").list.last(),
        band=pl.when(pl.col("reach") <= NEAR).then(pl.lit("to 10")).otherwise(pl.lit("to 100")),
    ).sort("reach")
    judged = rules(frame)
    text = f"""# Public runs of four sources that took no part at first

`python benchmarks/campaign/unseen.py`: what its head says of sources and splits. Tables and rules were committed before
the first forecast. This is a **later look**: the first one ([unseen_first_look.md](unseen_first_look.md)) is what the
term `noise.MISSED` and the factor `calibration.WIDER` were chosen by, among others (docs/decisions/0039). mLSTM's runs
of a loss above 6 diverged; they count.

| asked, each source weighing the same | measured | holds |
|---|---|---|
{chr(10).join(f"| {rule} | {said} | {'yes' if holds else 'NO'} |" for rule, said, holds in judged)}

{table(frame, "band", "reach in compute")}

{table(frame.filter(pl.col("reach") <= NEAR), "set", "set, reach to 10")}

{table(frame.filter(pl.col("reach") > NEAR), "set", "set, reach 10 to 100")}

## Why predictions were not certified

{reasons(frame)}

{datetime.now(UTC):%Y-%m-%d}, commit {commit("campaign")}; {cpu()}.
"""
    RESULT.write_text(text)
    print(text)
    return 0 if all(holds for *_, holds in judged) else 1


if __name__ == "__main__":
    raise SystemExit(main())
