"""The rules by which the bank judges forecasts, and the page that says how they came out.

Of each forecast: reach is the larger of the ratios of params and of tokens to the largest proxy's. The far ones, on
which the rules are, reach at least 10 times in compute and 4 times in params. The three seeds of one larger run weigh a
third each. Clusters are corpus × proxies.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _machine import commit, cpu

FAR_COMPUTE, FAR_PARAMS = 10.0, 4.0
BANDS = (3.0, 10.0, 50.0)
NEAR = 10.0
CERTIFIED, COVERAGE, LEAST = 0.5, (0.88, 0.96), 0.8
LEVEL = 0.9
RESAMPLES = 2000
WORDS = {1: "one", 2: "two", 4: "four", 8: "eight"}


def scored(frame: pl.DataFrame) -> pl.DataFrame:
    """Add errors, half-widths and interval scores (Winkler), relative to the actual loss, bands and weights."""
    actual = pl.col("actual")

    def winkler(low: pl.Expr, high: pl.Expr) -> pl.Expr:
        outside = pl.max_horizontal(low - actual, actual - high, pl.lit(0.0))
        return ((high - low) / 2 + outside / (1 - LEVEL)) / actual

    other, half = pl.col("other"), pl.col("other_half")
    seeds = pl.len().over("design", "size")
    return frame.with_columns(
        pl.max_horizontal("reach_params", "reach_tokens").alias("reach"),
        far=(pl.col("reach_compute") >= FAR_COMPUTE) & (pl.col("reach_params") >= FAR_PARAMS),
        inside=actual.is_between("low", "high"),
        error=(pl.col("loss") / actual).log(),
        other_error=(other / actual).log(),
        line_error=(pl.col("line") / actual).log(),
        naive_error=(pl.col("naive") / actual).log(),
        half=(pl.col("high") - pl.col("low")) / 2 / actual,
        score=winkler(pl.col("low"), pl.col("high")),
        other_inside=actual.is_between(other * (-half).exp(), other * half.exp()),
        other_score=winkler(other * (-half).exp(), other * half.exp()),
        weight=1.0 / seeds,
    )


def mean(frame: pl.DataFrame, column: str) -> float:
    """The weighted mean; NaN without rows."""
    kept = frame.drop_nulls(column)
    weight = kept["weight"].to_numpy()
    return (
        float(np.average(kept[column].cast(pl.Float64).to_numpy(), weights=weight))
        if kept.height
        else math.nan
    )


def median(frame: pl.DataFrame, column: str) -> float:
    """The weighted median of the absolute value; NaN without rows."""
    kept = frame.drop_nulls(column).select(pl.col(column).abs(), "weight").sort(column)
    if kept.is_empty():
        return math.nan
    share = kept["weight"].cum_sum().to_numpy() / float(kept["weight"].sum())
    return float(kept[column][int(np.searchsorted(share, 0.5))])


def clustered(frame: pl.DataFrame, column: str = "inside") -> float:
    """Lower end of a mean, one-sided 95%, clusters resampled; NaN without rows."""
    sums = frame.group_by("cluster", maintain_order=True).agg(
        (pl.col(column).cast(pl.Float64) * pl.col("weight")).sum().alias("sum"), pl.col("weight").sum()
    )
    if sums.is_empty():
        return math.nan
    draws = np.random.default_rng(0).integers(0, sums.height, (RESAMPLES, sums.height))
    ratio = sums["sum"].to_numpy()[draws].sum(1) / sums["weight"].to_numpy()[draws].sum(1)
    return float(np.quantile(ratio, 0.05))


def rules(frame: pl.DataFrame) -> list[tuple[str, str, bool]]:
    """What is asked of the far forecasts, what was measured, whether it holds."""
    far = frame.filter("far")
    near, certified = far.filter(pl.col("reach") <= NEAR), far.filter("certified")
    share, inside, least = mean(near, "certified"), mean(certified, "inside"), clustered(certified)
    score, other_score = mean(far, "score"), mean(far, "other_score")
    error, other = median(far, "error"), median(far, "other_error")
    own = median(certified, "error"), median(certified, "other_error")
    return [
        (
            f"certified where params and tokens reach at most {NEAR:g}×: ≥ {CERTIFIED:.0%}",
            f"{share:.0%}",
            share >= CERTIFIED,
        ),
        (
            f"coverage of the certified: {COVERAGE[0]:.0%} to {COVERAGE[1]:.0%}",
            f"{inside:.1%}",
            COVERAGE[0] <= inside <= COVERAGE[1],
        ),
        (f"its clustered lower bound: ≥ {LEAST:.0%}", f"{least:.1%}", least >= LEAST),
        (
            "interval score below that of published exponents",
            f"{100 * score:.2f} against {100 * other_score:.2f}",
            score < other_score,
        ),
        (
            "median error at most that of published exponents",
            f"{error:.2%} against {other:.2%} (certified: {own[0]:.2%} against {own[1]:.2%})",
            error <= other,
        ),
    ]


HEAD = (
    "forecasts",
    "certified",
    "covers",
    "clustered, at least",
    "half-width",
    "median error",
    "mean error",
    "interval score",
    "published exponents: covers",
    "median error",
    "interval score",
    "line in compute: median error",
    "largest proxy: median error",
    "not certified: covers",
)


def line(name: str, rows: pl.DataFrame) -> str:
    own, rest = rows.filter("certified"), rows.filter(~pl.col("certified"))
    shown = own if own.height else rows
    cells = [
        f"{rows.height}",
        f"{mean(rows, 'certified'):.0%}",
        f"{mean(own, 'inside'):.1%}" if own.height else "–",
        f"{clustered(own):.0%}" if own.height else "–",
        f"{median(shown, 'half'):.2%}",
        f"{median(shown, 'error'):.2%}",
        f"{mean(shown, 'error'):+.2%}",
        f"{100 * mean(shown, 'score'):.2f}",
        f"{mean(shown, 'other_inside'):.1%}",
        f"{median(shown, 'other_error'):.2%}",
        f"{100 * mean(shown, 'other_score'):.2f}",
        f"{median(shown, 'line_error'):.2%}",
        f"{median(shown, 'naive_error'):.2%}",
        f"{mean(rest, 'inside'):.1%}" if rest.height else "–",
    ]
    return f"| {name} | {' | '.join(cells)} |"


def table(title: str, parts: Sequence[tuple[str, pl.DataFrame]]) -> str:
    lines = [f"| {title} | {' | '.join(HEAD)} |", "|---" * (len(HEAD) + 1) + "|"]
    return "\n".join([*lines, *(line(name, rows) for name, rows in parts if rows.height)])


def banded(frame: pl.DataFrame, axis: str) -> list[tuple[str, pl.DataFrame]]:
    found, low = [], 0.0
    for high in (*BANDS, math.inf):
        rows = frame.filter((pl.col(axis) > low) & (pl.col(axis) <= high))
        found.append((f"to {high:g}×" if math.isfinite(high) else f"beyond {low:g}×", rows))
        low = high
    return found


def by(frame: pl.DataFrame, *columns: str) -> list[tuple[str, pl.DataFrame]]:
    return [(" ".join(map(str, key)), rows) for key, rows in frame.group_by(columns, maintain_order=True)]


def floors(targets: Mapping[str, pl.DataFrame], far: pl.DataFrame) -> str:
    """The scatter between seeds of one larger run, and what of the errors there is above it."""
    lines = [
        "| corpus | larger run | seeds | sd of the loss | rms error of the forecasts | above the floor |",
        "|---|---|---|---|---|---|",
    ]
    for corpus, rows in targets.items():
        if rows.is_empty():
            continue
        own = rows.filter(pl.col("run").str.starts_with("wide"))
        if own.height < 2:
            continue
        sd = float(own["loss"].log().std())  # type: ignore[arg-type]
        errors = far.filter((pl.col("corpus") == corpus) & (pl.col("size") == "wide"))
        rms = (
            math.sqrt(mean(errors.with_columns(square=pl.col("error") ** 2), "square"))
            if errors.height
            else math.nan
        )
        lines.append(
            f"| {corpus} | wide | {own.height} | {sd:.2%} | {rms:.2%} | {math.sqrt(max(rms**2 - sd**2, 0)):.2%} |"
        )
    return "\n".join(lines)


def reasons(frame: pl.DataFrame) -> str:
    counted = (
        frame.filter(~pl.col("certified"))
        .explode("reasons")
        .with_columns(pl.col("reasons").str.replace_all(r"\d[\d.e+%]*", "N"))
        .group_by("reasons")
        .agg(pl.len().alias("n"))
        .sort("n", "reasons", descending=[True, False])
        .head(10)
    )
    lines = ["| reason | forecasts |", "|---|---|"]
    return "\n".join([*lines, *(f"| {why} | {n} |" for why, n in counted.iter_rows())])


def gates(frame: pl.DataFrame) -> str:
    names = frame["gate"].struct.fields if frame.height else []
    lines = ["| check of the gate | passes in |", "|---|---|"]
    for name in names:
        lines.append(f"| {name} | {mean(frame.with_columns(frame['gate'].struct.field(name)), name):.0%} |")
    return "\n".join(lines)


def page(
    found: pl.DataFrame,
    targets: Mapping[str, pl.DataFrame],
    differs: Sequence[str],
    frozen: str,
    script: str = "benchmarks/bank/replay.py",
) -> tuple[str, bool]:
    """The page of what `script` found, and whether all rules hold."""
    frame = scored(found)
    far = frame.filter("far")
    judged = rules(frame)
    said = (
        f"What forecasts was frozen as {frozen[:12]} before the first larger run began "
        f"(`{Path(script).parent}/frozen.json`)."
        + (f" **Changed since: {', '.join(differs)}.**" if differs else " Nothing of it has changed since.")
        if frozen
        else "A rehearsal: the largest proxies stand in for larger runs; they were seen while the method was made."
    )
    trained = ", ".join(
        f"{corpus}: {', '.join(rows['run']) if rows.height else 'none'}" for corpus, rows in targets.items()
    )
    text = f"""# Forecasts of larger runs from a bank of proxies

`python {script}`: {found["design"].n_unique()} sub-studies of {WORDS[len(targets)]} corpora, each
costing less than the run that it forecasts, through the package's fit, gate and forecast. {said}
Larger runs: {trained}.

| asked of forecasts at ≥ {FAR_COMPUTE:g}× the compute and ≥ {FAR_PARAMS:g}× the params | measured | holds |
|---|---|---|
{chr(10).join(f"| {rule} | {value} | {'yes' if holds else 'NO'} |" for rule, value, holds in judged)}

"Certified" is what a forecast says of itself; widths, errors and scores (half-width plus ten times what lies outside,
in percent of the loss) are of certified forecasts where there are any. Proxies cost {median(far, "cost"):.2f} of their
target, the search of rates included (median).

{table("far, reach in params", banded(far, "reach_params"))}

{table("far, reach in tokens", banded(far, "reach_tokens"))}

{table("far, corpus", by(far, "corpus"))}

{table("far, larger run", by(far, "corpus", "size"))}

{table("far, ladder", by(far, "ladder"))}

{table("nearer, reach in compute", banded(frame.filter(~pl.col("far")), "reach_compute"))}

## The floor of noise

{floors(targets, far)}

## Why far forecasts were not certified

{reasons(far)}

## What the gate says of the far ones

{gates(far)}

{datetime.now(UTC):%Y-%m-%d}, commit {commit("bank", Path(script).parent.name)}; {cpu()}.
"""
    return text, all(holds for *_, holds in judged)
