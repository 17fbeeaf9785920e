"""What the planner's campaign replays: synthetic worlds, published runs, and the bank's own proxies and larger runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from _worlds import KINDS, Array, _sets, _term
from numpy.typing import NDArray

START = 0.12  # of the grid's cost, at most, for the runs to begin with
LEAST, MOST_START = 4, 8  # runs to begin with
TRIES = 50  # shifts of the lattice that chooses them
CUTS = (0.5, 0.65, 0.8)  # quantiles of a set's compute up to which its runs can be bought
NEAREST, FARTHEST = 1.5, 100.0  # a target's compute over that of the largest run on offer
ALONE = 30.0  # and at most so many times its params, and its tokens
BANK = Path(__file__).resolve().parents[1] / "bank"
BANK_POOLS = (
    (64, 2_949_120),
    (48, 2_949_120),
    (64, 1_474_560),
    (48, 1_474_560),
)  # largest width, most tokens


@dataclass(frozen=True)
class Replay:
    """One forecast to be made twice; frames have `trial, params, tokens, loss`.

    The planner has `start` and buys of `offers`, each row once, or, without any, whatever it proposes at `loss(params,
    tokens, number of the run)`; the uniform `grid` is bought whole. `source` is what weighs the same as others of its
    `kind`, `cluster` what shares a world, a set of runs or a target.
    """

    name: str
    kind: str
    source: str
    cluster: str
    start: pl.DataFrame
    grid: pl.DataFrame
    target: tuple[float, float]
    actual: float
    offers: pl.DataFrame | None = None
    loss: Callable[[float, float, int], float] | None = None


def flops(frame: pl.DataFrame) -> Array:
    return 6 * frame["params"].to_numpy() * frame["tokens"].to_numpy()


def world(seed: int, kind: str) -> Replay:
    """Draw a law as `_worlds.world` does, for any run: a grid of 4 to 7 sizes × 3 to 5 horizons and one larger run.

    Noise, drift, misses of the learning rate and the bad size (all runs nearest to that size) are as there.
    """
    rng = np.random.default_rng([seed, KINDS.index(kind), 17])
    floor, (alpha, beta) = rng.uniform(1.2, 2.2), rng.uniform(0.25, 0.5, 2)
    size, data = rng.uniform(0.3, 1.2, 2)  # the terms at 1e8 parameters and 2e9 tokens, nats
    smallest, span = 10 ** rng.uniform(6.5, 7.7), 10 ** rng.uniform(1, 1.8)
    ratios = np.geomspace(
        rng.uniform(4, 15), rng.uniform(60, 200), rng.integers(3, 6)
    )  # tokens per parameter
    sizes = np.geomspace(smallest, smallest * span, rng.integers(4, 8))
    noise, dof = 10 ** rng.uniform(-3.3, -2.2), float(rng.choice([3, 5, 1000]))
    drifts = rng.uniform(-0.25, 0.25, 2) if kind in ("curved", "all three") else np.zeros(2)
    off = kind in ("mistuned", "all three")
    drift, spread = (rng.uniform(-0.15, 0.15), rng.uniform(0.2, 0.6)) if off else (0.0, 0.0)
    bad, excess = int(rng.integers(sizes.size)), rng.uniform(0.01, 0.04)
    step = np.log(sizes[1] / sizes[0])
    n, d = (v.ravel() for v in np.meshgrid(sizes, ratios, indexing="ij"))
    d = n * d

    def loss(params: float, tokens: float, number: int, *, target: bool = False) -> float:
        own = np.random.default_rng([seed, KINDS.index(kind), 23, number])
        one, other = np.array([params]), np.array([tokens])
        found = floor + float(
            _term(size, alpha, one, n, 1e8, drifts[0])[0] + _term(data, beta, other, d, 2e9, drifts[1])[0]
        )
        miss = drift * np.log(params / smallest) + spread * own.standard_normal()
        found += 0.5 * 0.045 * miss**2 * (1.5 if miss > 0 else 1.0)
        near = abs(np.log(params / sizes[bad])) <= step / 2
        if kind in ("bad size", "all three") and near and not target:
            found *= 1 + excess
        return float(found * np.exp(noise * own.standard_t(dof) * np.sqrt((dof - 2) / dof)))

    # Runs of the grid and the target's have numbers of their own: those bought count from 1000.
    losses = [loss(*point, number) for number, point in enumerate(zip(n, d, strict=True))]
    grid = pl.DataFrame({"params": n, "tokens": d, "loss": losses}).with_row_index("place")
    grid = grid.with_columns(trial=pl.format("grid-{}", "place"))
    first = np.isin(n, sizes[:3]) & np.isin(np.arange(n.size) % ratios.size, (0, ratios.size // 2))
    reach = float(flops(grid).max()) / 6 * 10 ** rng.uniform(0.3, 1.8)
    ratio = float(np.exp(rng.uniform(*np.log(ratios[[0, -1]]))))
    target = (float(np.sqrt(reach / ratio)), float(np.sqrt(reach * ratio)))
    return Replay(
        f"{kind} {seed}",
        "worlds",
        kind,
        f"{kind} {seed}",
        grid.filter(pl.Series(first)),
        grid,
        target,
        loss(*target, 999, target=True),
        loss=loss,
    )


def published(folder: Path, seeds: range) -> Iterator[Replay]:
    """Of each set and seed, runs up to a quantile of compute on offer, and one larger run that the seed chooses."""
    for number, (name, frame, _) in enumerate(_sets(folder)):
        if " kaplan " in name:
            continue  # points of schedules that go on decaying: no run that could be bought ends there
        frame = frame.with_columns(flops=6 * pl.col("params") * pl.col("tokens"))
        frame = frame.sort("flops", "params", "loss")
        for seed in seeds:
            rng = np.random.default_rng([seed, number, 29])
            limit = float(frame["flops"].quantile(float(rng.choice(CUTS))) or 0.0)
            pool = frame.filter(pl.col("flops") <= limit)
            far = beyond(frame, pool)
            if not far.height:
                continue
            target = far.row(int(rng.integers(far.height)), named=True)
            pool = pool.filter(pl.col("run") != target["run"]).with_columns(trial=pl.format("{}", "run"))
            points = pool.select("params", "tokens").to_numpy()
            grid = nearest(points, np.arange(len(points)), 5, rng)
            source = "Gemstones" if name.startswith("Gemstones") else name.split()[0]
            source = "Step Law" if source == "Step" else source
            replay = of_pool(f"{name} {seed}", "published", source, name, pool, pool[grid], target, rng)
            if replay is not None and len(grid) >= 9:
                yield replay


def bank(seeds: range) -> Iterator[Replay]:
    """Of each corpus and seed, its small proxies on offer, and one larger run; with `*-targets.parquet` those, too.

    The grid is all proxies on offer, which differ in width, depth and horizon.
    """
    for number, file in enumerate(sorted(BANK.glob("*-proxies.parquet"))):
        corpus = file.name.removesuffix("-proxies.parquet")
        rows = pl.read_parquet(file)
        rows = rows.filter(pl.col("stage").is_in(["trunks", "deep"]), pl.col("status") == "finished")
        rows = rows.cast({"params": pl.Float64, "tokens": pl.Float64})
        rows = rows.with_columns(flops=6 * pl.col("params") * pl.col("tokens")).sort("flops", "run")
        larger = BANK / f"{corpus}-targets.parquet"
        pools = [*BANK_POOLS, None] if larger.exists() else list(BANK_POOLS)
        for seed in seeds:
            rng = np.random.default_rng([seed, number, 31])
            kind = pools[seed % len(pools)]
            if kind is None:
                pool, far = rows, pl.read_parquet(larger).with_columns(trial="run")
            else:
                pool = rows.filter(pl.col("width") <= kind[0], pl.col("tokens") <= kind[1])
                far = beyond(rows, pool)
            target = far.row(int(rng.integers(far.height)), named=True)
            pool = pool.filter(pl.col("trial") != target["trial"])
            cluster = f"{corpus} {target['run']}"
            replay = of_pool(f"bank {corpus} {seed}", "bank", corpus, cluster, pool, pool, target, rng)
            if replay is not None:
                yield replay


def beyond(rows: pl.DataFrame, pool: pl.DataFrame) -> pl.DataFrame:
    """The rows that may be targets of a pool: larger in compute, and not too far on any axis."""
    if not pool.height:
        return rows.clear()
    top = float(pool["flops"].max())  # type: ignore[arg-type]
    near = [pl.col(axis) <= ALONE * float(pool[axis].max()) for axis in ("params", "tokens")]  # type: ignore[arg-type]
    return rows.filter(pl.col("flops").is_between(NEAREST * top, FARTHEST * top), *near)


def of_pool(
    name: str,
    kind: str,
    source: str,
    cluster: str,
    pool: pl.DataFrame,
    grid: pl.DataFrame,
    target: dict[str, float],
    rng: np.random.Generator,
) -> Replay | None:
    """A replay whose planner buys of a pool; None where that has no few cheap runs of several sizes and horizons."""
    columns = ["trial", "params", "tokens", "loss"]
    pool = pool.select(columns).with_row_index("place")
    points, cost = pool.select("params", "tokens").to_numpy(), flops(pool)
    spent = np.cumsum(np.sort(cost)) / flops(grid).sum()
    small = np.flatnonzero(cost <= np.sort(cost)[min(int((spent <= 2 * START).sum()), cost.size - 1)])
    for _ in range(TRIES):
        first = sorted(nearest(points, small, 3, rng), key=lambda i: float(cost[i]))
        spent = np.cumsum(cost[first]) / flops(grid).sum()
        begin = pool[first[: min(int((spent <= START).sum()), MOST_START)]]
        axes = begin["params"].n_unique(), begin["tokens"].n_unique()
        if begin.height >= LEAST and min(axes) >= 2:
            break
    else:
        return None
    offers = pool.filter(~pl.col("place").is_in(begin["place"].to_list()))
    at = float(target["params"]), float(target["tokens"])
    return Replay(
        name,
        kind,
        source,
        cluster,
        begin.select(columns),
        grid.select(columns),
        at,
        float(target["loss"]),
        offers,
    )


def nearest(points: Array, among: NDArray[np.intp], count: int, rng: np.random.Generator) -> list[int]:
    """The points next to those of a count × count lattice over the range of `among`, shifted by part of a cell."""
    logs = np.log(points)
    low, high = logs[among].min(0), logs[among].max(0)
    cell = np.maximum((high - low) / count, 1e-9)
    at = (np.arange(count) + 0.5)[:, None] * cell + low + rng.uniform(-0.4, 0.4, 2) * cell
    found = []
    for place in np.stack(np.meshgrid(at[:, 0], at[:, 1], indexing="ij"), axis=-1).reshape(-1, 2):
        off = np.abs((logs[among] - place) / cell).max(1)
        if off.min() <= 0.5:  # a cell without a run stays empty
            found.append(int(among[off.argmin()]))
    return sorted(set(found))
