"""The curves of a setting, each at one value of a size, and how their optima lie on a power law of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from froude.laws.lr.curve import MIN_RATES, LrCurve, lr_curve
from froude.laws.stats import uncertainty
from froude.laws.stats.frames import Array, Sample, without_rounding

SAME = 0.02  # in ln: settings so near are one, since tokens are rounded to steps, and a batch to sequences
LEVEL = 0.9  # of the interval of an exponent


@dataclass(frozen=True, eq=False)
class Curve:
    """The losses over one setting, of runs alike in all else; `line` numbers what is held, `size` is what moves.

    `fit.lr` is the best value of the setting, whatever that is.
    """

    line: int
    size: float
    fit: LrCurve
    seeds: int

    @property
    def at(self) -> float:
        """Natural logarithm of the best value."""
        return math.log(self.fit.lr)

    @property
    def dof(self) -> int:
        """Runs to spare, without those that the seeds' own floors took."""
        return self.fit.dof - self.seeds + 1


@dataclass(frozen=True, eq=False)
class Slope:
    """at = level[line] + exponent · ln size, weighted by the optima's standard errors `se`, one for each curve.

    `error` is the exponent's standard error, `dof` those of its t; `misfit` says that the optima scatter by more than
    their errors (F test, 1%).
    """

    curves: tuple[Curve, ...]
    exponent: float
    error: float
    dof: int
    misfit: bool
    se: Array
    centers: dict[int, tuple[float, float]]  # weighted means of ln size and of the optima, by line

    @property
    def interval(self) -> tuple[float, float]:
        """The exponent's, at 90%."""
        half = uncertainty.t_quantile(LEVEL, self.dof) * self.error
        return self.exponent - half, self.exponent + half


def curves(
    sample: Sample, setting: str, over: str, held: Sequence[str], tuned: Sequence[str]
) -> tuple[Curve, ...]:
    """Return the curves of at least MIN_RATES values, on lines of at least two sizes.

    `held` are alike on a line; `tuned` are alike on a curve, and of several curves at a size the fullest counts.
    """
    counted = sample.frame.with_row_index("_row").filter(pl.Series(sample.used | sample.diverged))
    table = counted.with_columns(
        _line=_code(counted, held), _size=_code(counted, [over]), _tuned=_code(counted, tuned)
    )
    keys = ["_line", "_size"]
    table = without_rounding(table, setting, [*keys, "_tuned"])
    full = (
        table.group_by(*keys, "_tuned")
        .agg(
            done=pl.col(setting).filter(pl.col("loss").cast(pl.Float64).is_finite()).n_unique(),
            values=pl.col(setting).n_unique(),
            runs=pl.len(),
            best=pl.col("loss").min(),
        )
        .filter(pl.col("values") >= MIN_RATES)
        .sort("done", "values", "runs", "best", descending=[True, True, True, False], nulls_last=True)
        .unique(keys, keep="first", maintain_order=True)
        .filter(pl.len().over("_line") > 1)
        .sort(keys)
    )
    found = []
    for line, size, tune in full.select(*keys, "_tuned").iter_rows():
        rows = table.filter(
            (pl.col("_line") == line) & (pl.col("_size") == size) & (pl.col("_tuned") == tune)
        )
        level, seeds = without_floors(rows, setting)
        value = float(rows[over].cast(pl.Float64).to_numpy().mean())
        found.append(Curve(int(line), value, lr_curve(level.with_columns(lr=pl.col(setting))), seeds))
    return tuple(found)


def without_floors(rows: pl.DataFrame, setting: str) -> tuple[pl.DataFrame, int]:
    """Take from each loss what its seed does to all values of the setting; and the number of such seeds.

    A seed's own floor moves no optimum, but would count as noise. It is the median difference to the mean of all
    seeds, so a run near divergence does not set it. Only where each seed has each finished value once.
    """
    finite = pl.col("loss").cast(pl.Float64).is_finite()
    done = rows.filter(finite.fill_null(False))
    if "seed" not in rows.columns or done["seed"].null_count():
        return rows, 1
    seeds, values = done["seed"].n_unique(), done[setting].n_unique()
    if seeds < 2 or done.height != seeds * values or done.select(setting, "seed").is_duplicated().any():
        return rows, 1
    apart = done.select("_row", "seed", apart=pl.col("loss") - pl.col("loss").mean().over(setting))
    floors = apart.select("_row", _floor=pl.col("apart").median().over("seed"))
    joined = rows.join(floors, on="_row", how="left")
    return joined.with_columns(pl.col("loss") - pl.col("_floor").fill_null(0.0)).drop("_floor"), seeds


def slope(found: Sequence[Curve]) -> Slope | None:
    """Fit the exponent to the curves that place an optimum; None where no line has two.

    The noise is pooled over the curves. What a quadratic may be off by counts as error. Where the optima scatter by
    more than that, the exponent's error grows in proportion (Birge 1932).
    """
    placed = [curve for curve in found if curve.fit.status == "ok"]
    lines = [curve.line for curve in placed]
    placed = [curve for curve in placed if lines.count(curve.line) > 1]
    dof = sum(max(curve.dof, 0) for curve in placed)
    if not placed or dof < 1:
        return None
    noise = math.sqrt(sum(curve.fit.noise**2 * curve.fit.dof for curve in placed if curve.fit.dof > 0) / dof)
    errors = np.array([curve.fit.errors for curve in placed])
    se = np.maximum(np.hypot(noise * errors[:, 0], errors[:, 1]), 1e-9)
    x, y = np.log([curve.size for curve in placed]), np.array([curve.at for curve in placed])
    line, w = np.array([curve.line for curve in placed]), 1 / se**2
    centers = {}
    for number in np.unique(line):
        here = line == number
        cx, cy = float(np.average(x[here], weights=w[here])), float(np.average(y[here], weights=w[here]))
        centers[int(number)] = (cx, cy)
        x, y = np.where(here, x - cx, x), np.where(here, y - cy, y)
    information = float(w @ x**2)
    exponent = float(w @ (x * y)) / information
    chi2, free = float(w @ (y - exponent * x) ** 2), len(placed) - len(centers) - 1
    scatter = max(chi2 / free, 1.0) if free > 0 else 1.0
    return Slope(
        curves=tuple(placed),
        exponent=exponent,
        error=math.sqrt(scatter / information),
        dof=dof,
        misfit=uncertainty.beyond_noise(chi2, free, 1.0, dof),
        se=se,
        centers=centers,
    )


def by_line(found: Slope | None) -> pl.DataFrame:
    """Return `line, sizes, exponent, se`: the exponent of each line by itself, weighted as in the common fit."""
    rows = []
    for number, (cx, cy) in found.centers.items() if found is not None else ():
        assert found is not None
        here = [i for i, curve in enumerate(found.curves) if curve.line == number]
        x = np.array([math.log(found.curves[i].size) - cx for i in here])
        y = np.array([found.curves[i].at - cy for i in here])
        w = 1 / found.se[here] ** 2
        rows.append((number, len(here), float(w @ (x * y) / (w @ x**2)), float((w @ x**2) ** -0.5)))
    schema = {"line": pl.Int64, "sizes": pl.Int64, "exponent": pl.Float64, "se": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _code(table: pl.DataFrame, names: Sequence[str]) -> pl.Series:
    """Number the combinations of settings; values within SAME of the next are one, and so are those that are null."""
    codes = []
    for name in names:
        if not table[name].dtype.is_numeric():
            codes.append(table[name].rank("dense").fill_null(0).alias(name))
            continue
        values = table[name].cast(pl.Float64).fill_null(math.nan).to_numpy()
        logs = np.where(values > 0, np.log(np.where(values > 0, values, 1.0)), -1e3)
        order = np.argsort(logs, kind="stable")
        code = np.zeros(logs.size, dtype=np.int64)
        code[order] = np.cumsum(np.diff(logs[order], prepend=logs[order][:1]) > SAME)
        codes.append(pl.Series(name, code))
    if not codes:
        return pl.zeros(table.height, pl.UInt32, eager=True)
    return pl.DataFrame(codes).select(pl.struct(pl.all()).rank("dense")).to_series()
