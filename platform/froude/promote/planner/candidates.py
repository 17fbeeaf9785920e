"""Candidates for a study's next proxies: sizes, horizons and seeds that could be run, or runs that can be had."""

from __future__ import annotations

import math

import numpy as np
import polars as pl

from froude.config import Run, whole_steps
from froude.laws.loss.reach import RATIO
from froude.laws.stats.frames import Array
from froude.promote.promotion import parameters

POINTS = 14  # sizes, and horizons, of the grid


def candidates(
    rows: pl.DataFrame, params: float, tokens: float, reach: float, template: Run | None, trust: bool
) -> pl.DataFrame:
    """Return `params, tokens, width, seed, ratio, flops`: what could be run before a target of `params` and `tokens`.

    Sizes and horizons are those of the finished `rows` of a loss law, and up to `reach` times the largest of each; all
    cheaper than the target, and of tokens per parameter (`ratio`) that the rows or the law's form cover. `width` is
    that of the `template`'s model of this size (null without one), `seed` the next at a point that has been run. A
    point at which all runs have diverged is none.
    """
    every, rows = rows, rows.filter(pl.col("status") == "finished")
    sizes = rows["params"].cast(pl.Float64).to_numpy()
    horizons = rows["tokens"].cast(pl.Float64).to_numpy()
    ratios = horizons / sizes
    low, high = min(RATIO[0], float(ratios.min())), max(RATIO[1], float(ratios.max()))
    lengths: list[float] = _axis(horizons, min(reach * float(horizons.max()), tokens))
    top = min(reach * float(sizes.max()), params)
    if template is not None:
        tried = set(rows["width"].drop_nulls().to_list()) if "width" in rows.columns else set()
        widths = _widths(template, tried, float(sizes.min()), top, trust)
        lengths = sorted(
            {float(whole_steps(length, template.batch, template.schedule.ramp)) for length in lengths}
        )
        lengths = [n for n in lengths if n >= warmup(rows, template, n)]
    else:
        widths = [(size, None) for size in _axis(sizes, top)]
    known = "seed" in rows.columns and every["seed"].null_count() == 0
    last = pl.col("seed").max() + 1 if known else pl.len().cast(pl.Int64)
    seeds = (
        every.group_by("params", "tokens")
        .agg(seed=last, diverged=(pl.col("status") == "diverged").all())
        .cast({"params": pl.Float64, "tokens": pl.Float64})
    )
    return (
        pl.DataFrame(
            [(size, length, width) for size, width in widths for length in lengths],
            schema={"params": pl.Float64, "tokens": pl.Float64, "width": pl.Int64},
            orient="row",
        )
        .join(seeds, on=["params", "tokens"], how="left")
        .filter(~pl.col("diverged").fill_null(value=False))
        .drop("diverged")
        .with_columns(
            pl.col("seed").fill_null(rows["seed"].min() if known else 0),
            ratio=pl.col("tokens") / pl.col("params"),
            flops=6 * pl.col("params") * pl.col("tokens"),
        )
        .filter(pl.col("ratio").is_between(low, high), pl.col("flops") < 6 * params * tokens)
        .sort("params", "tokens")
    )


def warmup(rows: pl.DataFrame, template: Run, tokens: float) -> int:
    """Warmup of a proxy of this horizon, in tokens: that of a ladder whose horizons share one, else its share of a run.

    `rows` are those of the loss law.
    """
    told = rows.filter(pl.col("status") == "finished", pl.col("warmup_tokens").is_not_null())
    if told["tokens"].n_unique() > 1 and told["warmup_tokens"].n_unique() == 1:
        return int(told["warmup_tokens"][0])
    share = template.schedule.warmup_tokens / template.tokens
    return round(share * tokens / template.batch) * template.batch


def offered_runs(offers: pl.DataFrame, params: float, tokens: float) -> pl.DataFrame:
    """Return the same columns, and the frame's others, for runs on offer that are cheaper than the target.

    Those of one point are distinct runs; `width` and `seed` are null where the frame has none.
    """
    null = pl.lit(None, pl.Int64)
    lacking = {name: null for name in ("width", "seed") if name not in offers.columns}
    return (
        offers.cast({"params": pl.Float64, "tokens": pl.Float64})
        .with_columns(
            **lacking,
            ratio=pl.col("tokens") / pl.col("params"),
            flops=6 * pl.col("params") * pl.col("tokens"),
        )
        .filter(pl.col("flops") < 6 * params * tokens)
        .sort("params", "tokens", maintain_order=True)
    )


def _axis(values: Array, top: float) -> list[float]:
    """The values that occur, or, of many, as many points over their range; wide gaps halved; up to `top`."""
    points = np.unique(values)
    if points.size > POINTS // 2:
        points = np.geomspace(points[0], points[-1], POINTS // 2)
    points = np.append(points, [x for x in (top / math.sqrt(2), top) if x > points[-1]])
    while points.size < POINTS:
        gaps = np.diff(np.log(points))
        if not gaps.size or gaps.max() <= math.log(2) + 1e-9:
            break
        widest = int(gaps.argmax())
        points = np.insert(points, widest + 1, math.sqrt(points[widest] * points[widest + 1]))
    return [float(point) for point in points]


def _widths(
    template: Run, tried: set[int], low: float, high: float, trust: bool
) -> list[tuple[float, int | None]]:
    """Parameters and widths of the template's model: those tried, and multiples of its heads by sixths."""
    found: dict[int, float] = {}
    head = width = template.model.unit
    while (size := float(parameters(template.replace({"model.width": width}), trust=trust))) <= high * 1.001:
        found[width] = size
        between = [tried_one for tried_one in tried if tried_one > width and not tried_one % head]
        width = min([*between, max(width + head, round(width * 7 / 6 / head) * head)])
    return [(size, width) for width, size in found.items() if size >= low * 0.999]
