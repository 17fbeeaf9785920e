"""The tables of the calibration campaign: coverage and sharpness of each kind of interval, and the acceptance."""

from __future__ import annotations

import numpy as np
import polars as pl
from _worlds import KINDS

INTERVALS = ("calibrated", "bootstrap", "residual")
NEAR = 10.0  # reach within which at least half of the predictions should be certified
LEAST = 30  # held-out runs that make a class
CLASSES = (("kind", "world"), ("by_reach", "reach in compute"), ("by_rows", "rows fitted"))
HEAD = (
    "studies",
    "certified",
    "coverage",
    "not certified",
    "coverage",
    f"certified where reach ≤ {NEAR:g}",
    "half-width",
    "bootstrap: coverage",
    "half-width",
    "residual: coverage",
    "half-width",
    "median error",
)


def tables(predictions: pl.DataFrame) -> tuple[str, bool]:
    """Return the report's tables as Markdown, and whether the acceptance holds."""
    reach = pl.col("reach").bin_intervals([3.16, NEAR, 31.6], labels=["to 3", "to 10", "to 32", "to 100"])
    rows = pl.col("rows").bin_intervals([15, 25, 40], labels=["to 15", "to 25", "to 40", "above"])
    frame = predictions.with_columns(
        pl.lit("all").alias("all"),
        reach.cast(pl.String).alias("by_reach"),
        rows.cast(pl.String).alias("by_rows"),
    ).sort("reach")
    worlds, runs = frame.filter(pl.col("kind").is_in(KINDS)), frame.filter(~pl.col("kind").is_in(KINDS))
    classes = [shares(worlds, by) for by, _ in CLASSES]
    accepted = checks(worlds, runs, classes)
    lines = ["| asked | measured | holds |", "|---|---|---|"]
    lines += [f"| {rule} | {measured} | {'yes' if holds else 'NO'} |" for rule, measured, holds in accepted]
    single = shares(worlds.filter(pl.col("kind") != "all three"), "all")["coverage"].item()
    without = f'Without the class "all three" the pooled coverage of worlds is {percent(single)}.'
    parts = ["\n".join(lines), without, "## Synthetic worlds", _table(worlds, "all", "worlds")]
    parts += [_table(worlds.sort("rows") if by == "by_rows" else worlds, by, title) for by, title in CLASSES]
    if runs.height:
        parts += [
            "## Published runs",
            "Each set is split at up to five computes: the runs up to there are fitted, all larger ones (up to 100\n"
            "times) predicted. A run is on one side only, and resampling is by run. The splits of one set share runs:\n"
            "the sets are independent, the splits are not.",
            _table(runs, "all", "published"),
            _table(runs.sort("kind"), "kind", "set"),
            _table(runs, "by_reach", "reach in compute"),
        ]
    parts += ["## Why predictions were not certified", _reasons(frame)]
    return "\n\n".join(parts), all(holds for _, _, holds in accepted)


def shares(frame: pl.DataFrame, by: str) -> pl.DataFrame:
    """Coverage and sharpness for each value of `by`: of certified predictions, and beside them of the others."""
    certified, rest = pl.col("certified"), ~pl.col("certified")
    return frame.group_by(by, maintain_order=True).agg(
        pl.col("study").n_unique().alias("studies"),
        certified.sum().alias("predictions"),
        rest.sum().alias("others"),
        certified.filter(pl.col("reach") <= NEAR).mean().alias("share"),
        pl.col("calibrated").filter(certified).mean().alias("coverage"),
        pl.col("calibrated").filter(rest).mean().alias("others_coverage"),
        *(pl.col(name).filter(certified).mean().alias(f"{name}_coverage") for name in INTERVALS[1:]),
        *(pl.col(f"{name}_width").filter(certified).median().alias(f"{name}_half") for name in INTERVALS),
        pl.col("error").filter(certified).abs().median().alias("error_half"),
    )


def checks(
    worlds: pl.DataFrame, runs: pl.DataFrame, classes: list[pl.DataFrame]
) -> list[tuple[str, str, bool]]:
    """The acceptance: what is asked, what was measured, whether it holds."""
    pooled = shares(worlds, "all").row(0, named=True)
    counted = [row for frame in classes for row in frame.iter_rows() if row[2] >= LEAST]
    worst = min(counted, key=lambda row: row[5])
    everything = pl.concat([worlds, runs])
    plain = shares(everything, "all")["share"].item()
    near = [near_share(frame) for frame in (worlds, runs, everything)]
    found = [
        ("worlds: at least 300", str(pooled["studies"]), pooled["studies"] >= 300),
        (
            "worlds, pooled: 88 to 95%",
            f"{percent(pooled['coverage'])} (standard error {percent(spread(worlds))}, by study)",
            0.88 <= pooled["coverage"] <= 0.95,
        ),
        (
            f"worlds, each class of at least {LEAST} runs: ≥ 80%",
            f"least {percent(worst[5])} ({worst[0]}, {worst[2]} runs)",
            worst[5] >= 0.8,
        ),
        (
            f"certified where reach ≤ {NEAR:g}, mean over studies: ≥ 50%",
            f"{percent(near[2])} (worlds {percent(near[0])}, published {percent(near[1])}); "
            f"of predictions {percent(plain)}",
            near[2] is not None and near[2] >= 0.5,
        ),
    ]
    if runs.height:
        coverage = shares(runs, "all")["coverage"].item()
        text = f"{percent(coverage)} (standard error {percent(spread(runs))}, by split)"
        found.append(("published runs, pooled: ≥ 85%", text, coverage >= 0.85))
    return found


def near_share(frame: pl.DataFrame) -> float | None:
    """The certified share of predictions within reach, each study counting once however many runs it holds out."""
    by_study = frame.filter(pl.col("reach") <= NEAR).group_by("study").agg(pl.col("certified").mean())
    return float(by_study["certified"].to_numpy().mean()) if by_study.height else None


def spread(frame: pl.DataFrame) -> float:
    """Standard error of the certified coverage, studies being independent and runs within one not."""
    by_study = frame.filter("certified").group_by("study").agg(pl.col("calibrated").mean(), pl.len())
    weight = by_study["len"].to_numpy() / by_study["len"].sum()
    coverage = by_study["calibrated"].to_numpy()
    return float(np.sqrt(np.sum((weight * (coverage - weight @ coverage)) ** 2)))


def percent(share: float | None, digits: int = 1) -> str:
    """A share as text, a dash where there is none."""
    return "–" if share is None else f"{100 * share:.{digits}f}%"


def _table(frame: pl.DataFrame, by: str, title: str) -> str:
    lines = [f"| {title} | {' | '.join(HEAD)} |", "|---" * (len(HEAD) + 1) + "|"]
    for row in shares(frame, by).iter_rows(named=True):
        cells = [
            row[by],
            row["studies"],
            row["predictions"],
            percent(row["coverage"]),
            row["others"],
            percent(row["others_coverage"]),
            percent(row["share"], 0),
            percent(row["calibrated_half"], 2),
            percent(row["bootstrap_coverage"]),
            percent(row["bootstrap_half"], 2),
            percent(row["residual_coverage"]),
            percent(row["residual_half"], 2),
            percent(row["error_half"], 2),
        ]
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    return "\n".join(lines)


def _reasons(frame: pl.DataFrame) -> str:
    """Count the reasons, numbers in them left out."""
    counted = (
        frame.filter(~pl.col("certified"))
        .explode("reasons")
        .with_columns(pl.col("reasons").str.replace_all(r"\d[\d.e+%]*", "N"))
        .group_by("reasons")
        .agg(pl.len().alias("predictions"), pl.col("study").n_unique())
        .sort("predictions", "reasons", descending=True)
        .head(12)
    )
    lines = ["| reason | predictions | studies |", "|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| {' | '.join(str(cell) for cell in row)} |" for row in counted.iter_rows())]
    )
