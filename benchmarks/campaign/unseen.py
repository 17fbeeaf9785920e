"""Do intervals hold, and forecasts err less than their comparator, on public runs that nobody looked at before?

Sets of four sources that took no part in making the method, each split by compute as those of calibration.py are,
through the package as it is. What counts is said in `rules`, committed with the hashes of the tables (`FROZEN`) before
the first forecast. Each set is a file `<name>.csv` of a folder, with columns params, tokens and loss; of several runs
of one size and tokens the lowest loss is taken.

- farseer, datablations: `benchmark/dataset/{farseer,data_constrained}_scaling_law/*.parquet` of
  github.com/PlanarG/active-sl at e0a58ff (Farseer, arXiv 2506.10972; Muennighoff et al., arXiv 2305.16264), train and
  test; of the second the runs whose unique tokens are at least .999 of their tokens: one pass over the data.
- openeurollm: `data/best_HPs/lr_gbsz_min_smooth.csv` of github.com/OpenEuroLLM/dense_english_scaling_laws at 781af43,
  the minimum over rates and batches, smoothed by its authors.
- xlstm_…: `data/isoflop_{llama_ctx2048,llama_ctx8192,llama_ctx16384,mlstm_ctx16384}_wandb_data.pkl` of
  github.com/NX-AI/xlstm_scaling_laws at 604bb30 (arXiv 2510.02228): num_params, global_batch_size × num_train_steps ×
  context, and dclm_loss of each run's summary, of runs that had ended.

Left out: the vocabulary runs of the first repository, whose losses are below zero, and its parallel, sparse and
mixture runs, whose rows have other variables than params and tokens.

    FROUDE_UNSEEN_DATA=FOLDER python benchmarks/campaign/unseen.py [--workers 2]     # writes benchmarks/unseen.md
"""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
from _calibration_report import NEAR, clustered, reasons, scored, table
from _worlds import split
from calibration import HERE, commit, cpu, run

RESULT = HERE / "unseen.md"
#: Name and source of each set, and the SHA-256 of its table.
FROZEN: dict[str, tuple[str, str]] = {
    "farseer": ("Farseer", "0fde086cdf6b3fb488bb73c728ad06e07d7730a5b5d0b04b75d07fafe2c26fbe"),
    "datablations": ("Datablations", "e60bcbc2fd49ec8ef55f23ce04566846b5989ae00807ee7b91be87aac99874fd"),
    "openeurollm": ("OpenEuroLLM", "7bbcd57a3fbaed4e57c4178336ad650955a77ac91d64b1b0c695aad084d2cf74"),
    "xlstm_llama_2048": ("xLSTM", "09b377664afdce6739319ea5be65dd28000d27d0a18f66947aa097bd07c76aa7"),
    "xlstm_llama_8192": ("xLSTM", "6050664add1a51bee4399e041b10e7824a7d6143e50355adcc1684d24a334812"),
    "xlstm_llama_16384": ("xLSTM", "91b93324328fea310bf07a6a1732620671941222458dc07d004e539a92be5838"),
    "xlstm_mlstm_16384": ("xLSTM", "bfb2aa8ab6c569fce295e9f0df0bc52820a35f24d5a7454d0c1d0ef024323080"),
}
SHARE, COVERAGE = {"within 10×": 0.5, "10 to 100×": 0.3}, 0.88


def sets(folder: Path) -> Iterator[tuple[str, pl.DataFrame, bool]]:
    """Name, rows, and that no two rows stem from one run, of each set."""
    for name, (source, sha256) in FROZEN.items():
        file = folder / f"{name}.csv"
        found = hashlib.sha256(file.read_bytes()).hexdigest()
        if found != sha256:
            raise SystemExit(f"{file} has SHA-256 {found[:12]}…, the table that was frozen {sha256[:12]}…")
        rows = pl.read_csv(file).cast(pl.Float64)
        yield f"{source} {name}", rows.with_row_index("run"), False


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
        raise SystemExit("set FROUDE_UNSEEN_DATA to the folder of the tables that --help describes")
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
