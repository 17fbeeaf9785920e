"""Studies to calibrate on: synthetic worlds that a loss law does not quite describe, and other people's runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

KINDS = ("clean", "curved", "mistuned", "bad size", "all three")
TARGETS = 6  # larger runs held out of each world
REACH = 100.0  # they have up to so many times the compute of the largest run fitted
LEAST_ROWS = 12  # of a split of published runs
CUTS = 5  # splits of a set of published runs, at most
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Study:
    """Runs to fit and larger runs to predict: frames with params, tokens, loss and, if `groups`, that column."""

    name: str
    kind: str
    fitted: pl.DataFrame
    held_out: pl.DataFrame
    groups: str | None = None


def world(seed: int, kind: str) -> Study:
    """Draw a law, a sweep of 4 to 8 sizes × 3 to 6 horizons, and larger runs up to 100 times its compute.

    Half of the sweeps stop the largest sizes short, a third have two seeds; noise is from 0.05% to 0.6%, normal or
    with heavy tails. "curved": both exponents drift by up to a quarter over the sweep's range, and go on drifting.
    "mistuned": each run's learning rate misses its optimum, by a random amount and by one that grows with size; the
    cost is that of notes on real curves, 0.045 nats per squared factor e, half as much again when too high. "bad
    size": one size of the sweep is 1% to 4% too high.
    """
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    floor, (alpha, beta) = rng.uniform(1.2, 2.2), rng.uniform(0.25, 0.5, 2)
    size, data = rng.uniform(0.3, 1.2, 2)  # the terms at 1e8 parameters and 2e9 tokens, nats
    smallest, span = 10 ** rng.uniform(6.5, 7.7), 10 ** rng.uniform(1, 1.8)
    sizes, horizons = rng.integers(4, 9), rng.integers(3, 7)
    ratios = np.geomspace(rng.uniform(4, 15), rng.uniform(60, 200), horizons)  # tokens per parameter
    n, ratio = (
        v.ravel() for v in np.meshgrid(np.geomspace(smallest, smallest * span, sizes), ratios, indexing="ij")
    )
    index = np.repeat(np.arange(sizes), horizons)
    if rng.random() < 0.5:
        compute = n**2 * ratio
        kept = compute <= rng.uniform(0.2, 1) * compute.max()
        n, ratio, index = n[kept], ratio[kept], index[kept]
    if rng.random() < 0.3:
        n, ratio, index = np.tile(n, 2), np.tile(ratio, 2), np.tile(index, 2)
    noise, dof = 10 ** rng.uniform(-3.3, -2.2), rng.choice([3, 5, 1000])
    largest, rows = (n**2 * ratio).max(), n.size
    reach = 10 ** rng.uniform(0.08, np.log10(REACH), TARGETS)
    ratio = np.append(ratio, np.exp(rng.uniform(*np.log(ratios[[0, -1]]), TARGETS)))
    n = np.append(n, np.sqrt(largest * reach / ratio[rows:]))
    d = n * ratio
    drifts = rng.uniform(-0.25, 0.25, 2) if kind in ("curved", "all three") else np.zeros(2)
    loss = (
        floor
        + _term(size, alpha, n, n[:rows], 1e8, drifts[0])
        + _term(data, beta, d, d[:rows], 2e9, drifts[1])
    )
    if kind in ("mistuned", "all three"):
        drift, spread = rng.uniform(-0.15, 0.15), rng.uniform(0.2, 0.6)
        miss = drift * np.log(n / n.min()) + spread * rng.standard_normal(n.size)
        loss += 0.5 * 0.045 * miss**2 * np.where(miss > 0, 1.5, 1.0)
    if kind in ("bad size", "all three"):
        bad = rng.integers(sizes)
        loss[:rows][index == bad] *= 1 + rng.uniform(0.01, 0.04)
    z = rng.standard_t(dof, n.size) * np.sqrt((dof - 2) / dof)
    frame = pl.DataFrame({"params": n, "tokens": d, "loss": loss * np.exp(noise * z)})
    return Study(f"{kind} {seed}", kind, frame[:rows], frame[rows:])


def _term(scale: float, exponent: float, x: Array, fitted: Array, unit: float, drift: float) -> Array:
    """Return scale · (x / unit)^-exponent; `drift` is the exponent's relative change over the range fitted."""
    middle, width = np.log(fitted.min() * fitted.max()) / 2, np.log(fitted.max() / fitted.min())
    u = np.log(x) - middle
    return np.asarray(scale * np.exp(-exponent * (middle - np.log(unit) + u + 0.5 * drift * u**2 / width)))


def published(folder: Path) -> Iterator[Study]:
    """Split each set of published runs."""
    return split(_sets(folder))


def split(sets: Iterable[tuple[str, pl.DataFrame, bool]]) -> Iterator[Study]:
    """Split each set of runs at several computes: runs up to it are fitted, those beyond it held out.

    A run goes with its largest compute, so that no run is on both sides.
    """
    for name, frame, groups in sets:
        compute = pl.col("params") * pl.col("tokens")
        frame = frame.with_columns(compute.alias("compute"), compute.max().over("run").alias("top"))
        cuts = []
        for cut in frame["top"].unique().sort().to_list()[:-1]:
            near = frame.filter(pl.col("top") <= cut * 1.01)  # isoFLOP runs differ by a rounded step
            far = frame.filter(pl.min_horizontal("top", "compute").is_between(cut * 1.01, REACH * cut))
            distinct = min(near["params"].n_unique(), near["tokens"].n_unique())
            new = not cuts or near.height > cuts[-1][1].height
            if new and near.height >= LEAST_ROWS and distinct >= 3 and far.height:
                cuts.append((cut, near, far))
        if len(cuts) > CUTS:
            cuts = [cuts[i] for i in np.unique(np.linspace(0, len(cuts) - 1, CUTS).round().astype(int))]
        for cut, near, far in cuts:
            yield Study(f"{name} up to {6 * cut:.2g}", name, near, far, "run" if groups else None)


def _sets(folder: Path) -> Iterator[tuple[str, pl.DataFrame, bool]]:
    """Yield name, rows and whether several rows stem from one run, of each set in ../shared/reference_data."""
    columns = [pl.col("params_N").cast(pl.Float64).alias("params"), pl.col("tokens_D").alias("tokens")]

    def read(file: str) -> pl.DataFrame:
        return pl.read_csv(folder / file).with_columns(pl.col("tokens_D").cast(pl.Float64))

    chinchilla = read("chinchilla_epoch.csv").filter(~pl.col("dropped_by_authors").cast(pl.Boolean))
    yield "Chinchilla", chinchilla.select(*columns, "loss").with_row_index("run"), False
    for end in ("hot", "cool_end"):
        rows = read(f"gemstones_{end}.csv").select(*columns, "loss", run="run_name")
        yield f"Gemstones {end}", rows, True
    gadre = read("gadre_redpajama.csv").select(*columns, loss="loss_c4_val")
    yield "Gadre", gadre.with_row_index("run"), False
    # Where the schedule ends with the budget ("chinchilla"), each of Porian's points is a run; else those of one size
    # lie on one training curve.
    points = read("porian_refinedweb_points.csv")
    for key, rows in points.group_by("hparams", "warmup", "decay", "val", maintain_order=True):
        own = "chinchilla" in key
        rows = rows.select(*columns, "loss", run="params_N").with_row_index("row")
        rows = rows.with_columns(run=pl.col("row" if own else "run")) if own else rows
        yield f"Porian {' '.join(str(part) for part in key)}", rows, not own
    # Of each size and horizon the best of its learning rates and batches, as a tuned study would have.
    tuned = read("steplaw_dense_below_1b.csv").group_by("params_N", "tokens_D", maintain_order=True)
    yield "Step Law", tuned.agg(pl.col("loss").min()).select(*columns, "loss").with_row_index("run"), False
