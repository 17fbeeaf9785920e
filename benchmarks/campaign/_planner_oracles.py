"""Worlds that answer what a run's loss would be, for the planner's campaign: synthetic ones, and published runs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from froude import laws

POOL = 6e20  # FLOPs of the largest published run that can be bought; the target's are 1.3e22
Points = NDArray[np.float64]  # rows of (params, tokens)


@dataclass(frozen=True)
class Oracle:
    """A world: `points` that can be bought, `once` or repeatedly, those to `start` with, and `grids` of growing size.

    `loss(point, number)` is what the run bought as the so-manieth gives; `actual` is the target's.
    """

    points: Points
    start: list[int]
    grids: list[Points]
    target: tuple[float, float]
    actual: float
    loss: Callable[[Points, int], float]
    once: bool


def synthetic(seed: int) -> Oracle:
    """A law with curvature in log-log; noise of 0.2 to 0.6% and learning rates off by up to 0.6 in ln (one sd)."""
    draw = np.random.default_rng(seed)
    floor = draw.uniform(1.5, 2.1)
    terms = draw.uniform(0.2, 0.6, 2)
    exponents, bends = draw.uniform(0.28, 0.42, 2), draw.normal(0, 0.006, 2)
    noise, mistuned = draw.uniform(0.002, 0.006), draw.uniform(0, 0.6)

    def mean(point: Points) -> float:
        x = np.log(np.asarray(point) / (2e8, 4e9))
        return float(floor + (terms * np.exp(-exponents * x - 0.5 * bends * x**2)).sum())

    def loss(point: Points, number: int) -> float:
        own = np.random.default_rng([seed, number])
        off = own.normal(
            0, mistuned
        )  # costs half the curvature of a U-curve, 0.046 in the median of 160 published ones
        return mean(point) * math.exp(noise * own.standard_normal()) + 0.5 * 0.046 * off**2

    target = (7e9, 1.4e11)
    points = lattice(9)
    low = [i for i, (n, d) in enumerate(points) if n <= 1.1e8 and d <= 4e9]
    near = [
        min(low, key=lambda i: float(np.abs(np.log(points[i] / at)).sum())) for at in lattice(3, 1e8, 3.2e9)
    ]
    return Oracle(
        points,
        sorted(set(near)),
        [lattice(k) for k in range(4, 9)],
        target,
        mean(np.array(target)),
        loss,
        False,
    )


def lattice(count: int, params: float = 1e9, tokens: float = 2e10) -> Points:
    """Sizes × horizons, evenly in log from 1e7 parameters and 5e8 tokens, at 2 to 1000 tokens per parameter."""
    n, d = np.meshgrid(np.geomspace(1e7, params, count), np.geomspace(5e8, tokens, count), indexing="ij")
    points = np.column_stack([n.ravel(), d.ravel()])
    ratio = points[:, 1] / points[:, 0]
    return points[(ratio >= 2) & (ratio <= 1000)]


def published(seed: int) -> Oracle:
    """Chinchilla's runs; the seed shifts the grids and chooses the runs to begin with among the small ones.

    The target is the largest run. What it is held to is the law fitted to all 240: one run alone is no truth.
    """
    rows = _chinchilla()
    large = rows.row(-1, named=True)
    pool = rows.filter(pl.col("flops_C") <= POOL)
    points, losses = pool.select("params", "tokens").to_numpy(), pool["loss"].to_numpy()
    known = {tuple(point): float(loss) for point, loss in zip(points, losses, strict=True)}
    draw = np.random.default_rng(seed)
    small = np.flatnonzero(points[:, 1] <= np.quantile(points[:, 1], 0.4))
    law = laws.loss_law(rows)
    return Oracle(
        points,
        nearest(points, small, 3, draw),
        [points[nearest(points, np.arange(len(points)), k, draw)] for k in (4, 5, 6, 7, 8, 10)],
        (large["params"], large["tokens"]),
        law.E + law.A / large["params"] ** law.alpha + law.B / large["tokens"] ** law.beta,
        lambda point, _: known[tuple(point)],
        True,
    )


def _chinchilla() -> pl.DataFrame:
    folder = os.environ.get("FROUDE_REFERENCE_DATA", "")
    if not folder:
        raise SystemExit(
            "FROUDE_REFERENCE_DATA names no folder: the published runs are not part of this repository"
        )
    rows = pl.read_csv(Path(folder) / "chinchilla_epoch.csv")
    kept = rows.filter(~pl.col("dropped_by_authors").cast(pl.Boolean))
    # Sorted by compute, then by what tells equal ones apart: the seeds count on the order.
    return kept.rename({"params_N": "params", "tokens_D": "tokens"}).sort("flops_C", "params", "tokens")


def nearest(points: Points, among: NDArray[np.intp], count: int, draw: np.random.Generator) -> list[int]:
    """The points next to those of a count × count lattice over the range of `among`, shifted by part of a cell."""
    logs = np.log(points)
    low, high = logs[among].min(0), logs[among].max(0)
    cell = (high - low) / count
    at = (np.arange(count) + 0.5)[:, None] * cell + low + draw.uniform(-0.4, 0.4, 2) * cell
    found = []
    for place in np.stack(np.meshgrid(at[:, 0], at[:, 1], indexing="ij"), axis=-1).reshape(-1, 2):
        off = np.abs((logs[among] - place) / cell).max(1)
        if off.min() <= 0.5:  # a cell without a run stays empty
            found.append(int(among[off.argmin()]))
    return sorted(set(found))
