"""How far the best learning rate moves from the proxies to a target: by width, depth, horizon, or any other size."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import polars as pl
from scipy import optimize, stats

from froude.laws.lr.contradiction import off_line
from froude.laws.lr.transfer import lr_transfer
from froude.laws.stats.frames import Array

TEST = 0.05  # level of each of the two one-sided tests
#: Power with which runs to add are planned: of sweeps with .82 to .85, .65 to .82 passed, since they estimate what is
#: taken as known here; they are to have .8.
POWER = 0.9
SAME = 0.02  # in ln size: sizes so near are one, since tokens are rounded to steps
SIDED_RATES = 6  # of a curve, from which on its two sides may have two curvatures
SEEDS, FACTORS = 8, (2, 4, 8, 16)  # how many seeds, and how far from the proxies, runs to add may go
COST = {"width": 2}  # power of a size in the cost of a run; 1 of others
Sizes = Mapping[str, float]


class More(NamedTuple):
    """Runs to add: `seeds` new ones for each of `rates` rates at each of these sizes, and the power they would give."""

    sizes: tuple[Sizes, ...]
    rates: int
    seeds: int
    power: float

    @property
    def runs(self) -> int:
        return len(self.sizes) * self.rates * self.seeds


@dataclass(frozen=True, eq=False)
class Drift:
    """The shift of the optimum in ln lr, from the sizes at which a recipe reads its rate to those of its target.

    `low` and `high` are its 90% interval: what lies beyond, two one-sided 5% tests reject. `curvature` (nats per ln lr
    squared) is that of the curve that all sizes share, on its steeper side; `loss` is its least, `noise` the sd of a
    run, both in nats per token. `missing` names sizes that differ at the target and that the runs do not tell
    apart, `bad` curves without an optimum, `off_line` the optima where they do not lie on a line; with any of these
    there is no shift, and what was not fitted is NaN.
    """

    shift: float = math.nan
    low: float = math.nan
    high: float = math.nan
    curvature: float = math.nan
    loss: float = math.nan
    noise: float = math.nan
    missing: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    off_line: tuple[str, ...] = ()
    _design: "_Design | None" = field(default=None, repr=False)

    def cost(self, shift: float) -> float:
        """What a rate that is so far off costs, as a proportion of the loss, on the steeper side of the curve."""
        return self.curvature * shift**2 / 2 / self.loss

    def allowed(self, regret: float) -> float:
        """The shift that costs this proportion of the loss."""
        return math.sqrt(2 * regret * self.loss / self.curvature)

    def equivalent(self, regret: float) -> bool:
        """Whether both tests reject a shift that costs more than this proportion of the loss."""
        return math.isfinite(self.high - self.low) and max(-self.low, self.high) <= self.allowed(regret)

    def moves(self, regret: float) -> bool:
        """Whether there is a shift, and the best estimate of it costs more than that."""
        return abs(self.shift) > self.allowed(regret) and not self.low <= 0 <= self.high

    def error(self, axis: str = "", added: More | None = None) -> float:
        """The standard error (ln lr) of the optimum where the rate is read, or of its shift along one `axis`.

        With the runs `added`, if any; few degrees of freedom count as Student's t at 90% does. Infinite where the runs
        do not tell it.
        """
        design = self._design
        if design is None or not self.noise > 0:
            return math.inf
        if added is not None:
            sizes = [[math.log(each[name]) for name in design.axes] for each in added.sizes]
            design = design.with_runs(np.array(sizes) - design.at, added.seeds)
        there = np.where([name == axis for name in design.axes], design.delta, 0.0)
        se, dof = replace(design, delta=there).spread(origin=0.0 if axis else 1.0)
        if dof < 1 or _untold(design.z, there):
            return math.inf
        return se * self.noise * float(stats.t.isf(TEST, dof) / stats.norm.isf(TEST))

    def options(self, regret: float) -> Iterator[More]:
        """One new seed of the rates at each size of the runs alone, and wherever else `more` looks."""
        design = self._design
        if design is None or not self.noise > 0:
            return
        allowed = self.allowed(regret) / self.noise
        alone = (size[None] for size in np.unique(design.z, axis=0))
        places = {str(design.sizes(z)): z for z in itertools.chain(alone, _candidates(design))}
        for z in places.values():
            yield More(design.sizes(z), design.rates.size, 1, design.with_runs(z, 1).power(allowed))

    def more(self, regret: float) -> More | None:
        """The cheapest runs that are planned to show a shift of zero (`POWER`); None where 8 seeds would not.

        Where the runs have that power already, those that would show the shift that they found to be no larger.
        """
        if self._design is None or not self.noise > 0:
            return None
        allowed = self.allowed(regret) / self.noise
        if self._design.power(allowed) >= POWER:
            allowed -= abs(self.shift) / self.noise
        return _cheapest(self._design, allowed) if allowed > 0 else None


@dataclass(frozen=True, eq=False)
class _Design:
    """Rows of a fit: `v` is ln lr above the optimum, `z` (a column an axis) ln size above where the rate is read."""

    axes: tuple[str, ...]
    v: Array
    z: Array
    groups: Array
    shape: tuple[float, float]  # half the two sides' mean curvature, and half of what the upper has more
    sided: bool  # whether the two may differ
    delta: Array  # the target's z
    at: Array  # ln of the sizes at which the rate is read
    rates: Array  # v of one curve

    def jacobian(self) -> Array:
        """Derivatives of the loss by the floors, the curvature, the skew if there is one, the optimum, its slopes."""
        floors = (self.groups[:, None] == np.unique(self.groups)).astype(np.float64)
        a, c = self.shape
        slope = -2 * (a * self.v + c * np.abs(self.v))
        curve = [self.v**2, self.v * np.abs(self.v)][: 1 + self.sided]
        return np.column_stack([floors, *curve, slope, slope[:, None] * self.z])

    def spread(self, origin: float = 0.0) -> tuple[float, int]:
        """The standard error of the shift, and of `origin` times the optimum, at a noise of one; degrees of freedom."""
        j = self.jacobian()
        weights = np.zeros(j.shape[1])
        weights[-self.delta.size - 1] = origin
        weights[-self.delta.size :] = self.delta
        dof = j.shape[0] - int(np.linalg.matrix_rank(j))
        return math.sqrt(max(float(weights @ np.linalg.pinv(j.T @ j) @ weights), 0.0)), dof

    def power(self, allowed: float) -> float:
        """The probability that both tests reject shifts of `allowed` (over the noise) where there is none."""
        se, dof = self.spread()
        if dof < 1 or _untold(self.z, self.delta):
            return 0.0
        reach = allowed / se - float(stats.t.isf(TEST, dof)) if se > 0 else math.inf
        return max(1 - 2 * float(stats.t.sf(reach, dof)), 0.0)

    def with_runs(self, z: Array, seeds: int) -> "_Design":
        """The rows and `seeds` new ones of each rate at each of these sizes."""
        n, curves = self.rates.size, z.shape[0] * seeds
        return replace(
            self,
            v=np.concatenate([self.v, np.tile(self.rates, curves)]),
            z=np.concatenate([self.z, np.repeat(np.tile(z, (seeds, 1)), n, axis=0)]),
            groups=np.concatenate([self.groups, self.groups.max() + 1 + np.repeat(np.arange(curves), n)]),
        )

    def sizes(self, z: Array) -> tuple[Sizes, ...]:
        return tuple(
            dict(zip(self.axes, (float(round(x)) for x in np.exp(row + self.at)), strict=True)) for row in z
        )


def lr_drift(frame: pl.DataFrame | pl.LazyFrame, *, at: Sizes, to: Sizes) -> Drift:
    """Fit the shift of the optimum from the sizes `at` to the sizes `to`: columns `lr`, `loss`, these sizes[, seed].

    One fit: ln of the optimum is linear in the ln of each size; all curves have one shape, a parabola on each side of
    the optimum where they have six rates (real ones are steeper above it), else one for both. Each seed of each size
    has a floor of its own, so that what a seed does to all rates is no noise. Rows are those that `lr_transfer` fits,
    within reach of the optimum. The interval is Student's t by the delta method. Where the optima of all
    combinations of sizes lie farther off a line than noise and shape explain (F test at 1%), there is no shift. Raises
    as `froude.laws.stats.frames.read` does.
    """
    table = frame.lazy().collect()
    axes = tuple(to)
    table = table.with_columns(_curve=pl.struct(axes).rank("dense").cast(pl.Float64))
    law = lr_transfer(table, over="_curve")
    sample, inside = law.sample, law._in_fit
    rows = sample.frame.filter(pl.Series(sample.used)).filter(pl.Series(inside))
    bad = _bad(table, axes, law.curves, fitted=bool(inside.any()))
    if bad:
        return Drift(bad=bad)
    key = ["_curve", *(["seed"] if "seed" in rows.columns else [])]
    x, y = np.log(sample["lr"][inside]), sample["loss"][inside]
    middle = float(x.mean())
    x = x - middle
    z, delta, origin = _apart(rows, at, to)
    groups = rows.select(pl.struct(key).rank("dense")).to_series().to_numpy().astype(np.float64)
    rates = max((np.unique(x[groups == group]) for group in np.unique(groups)), key=lambda one: int(one.size))
    least = min(np.unique(x[rows["_curve"].to_numpy() == curve]).size for curve in rows["_curve"].unique())
    start = _Design(axes, x, z, groups, (1.0, 0.0), least >= SIDED_RATES, delta, origin, rates)
    fitted = _fit(start, x, y)
    if fitted is None:
        return Drift(bad=("the joint fit: not_convex",))
    design, floor, noise, shift = fitted
    curve = Drift(
        curvature=2 * float(design.shape[0] + abs(design.shape[1])), loss=floor, noise=noise, _design=design
    )
    if lacking := _untold(z, delta):
        return replace(curve, missing=tuple(axes[i] for i in lacking))
    if off := _off_line(start, x, y):
        return replace(curve, off_line=tuple(f"{math.exp(middle + at):.3g} at {where}" for where, at in off))
    se, dof = design.spread()
    half = float(stats.t.isf(TEST, dof)) * se * noise if dof > 0 else math.inf
    return replace(curve, shift=shift, low=shift - half, high=shift + half)


def missing(frame: pl.DataFrame, *, at: Sizes, to: Sizes) -> tuple[str, ...]:
    """The sizes that differ between `at` and `to` and whose effect runs of these sizes would not tell apart."""
    z, delta, _ = _apart(frame, at, to)
    return tuple(tuple(to)[i] for i in _untold(z, delta))


def _apart(rows: pl.DataFrame, at: Sizes, to: Sizes) -> tuple[Array, Array, Array]:
    """How far each row and the target lie from `at`, in ln size; and the ln of `at`."""
    origin, goal = (np.log([float(sizes[axis]) for axis in to]) for sizes in (at, to))
    delta = np.where(np.abs(goal - origin) <= SAME, 0.0, goal - origin)
    return np.log(rows.select(pl.col(list(to)).cast(pl.Float64)).to_numpy()) - origin, delta, origin


def _untold(z: Array, delta: Array) -> list[int]:
    """The axes without which the sizes do not determine the shift: those that do not vary, else all of the target's."""
    sizes = np.unique(z, axis=0)
    apart = (sizes - sizes[0]).T
    if np.abs(apart @ np.linalg.lstsq(apart, delta)[0] - delta).max(initial=0.0) <= SAME:
        return []
    differ = [int(i) for i in np.flatnonzero(delta)]
    return [i for i in differ if np.ptp(apart[i]) <= SAME] or differ


def _bad(table: pl.DataFrame, axes: Sequence[str], curves: pl.DataFrame, *, fitted: bool) -> tuple[str, ...]:
    """The sizes whose curves have no optimum; all, if there is no common fit."""
    sizes = {key: values for key, *values in table.select("_curve", *axes).unique().iter_rows()}
    wrong = ("edge", "not_convex") if fitted else ("edge", "not_convex", "flat", "too_few_points")
    return tuple(
        f"{', '.join(f'{axis} {value:,}' for axis, value in zip(axes, sizes[key], strict=True))}: {status}"
        for key, status in curves.sort("_curve").select("_curve", "status").iter_rows()
        if status in wrong
    )


def _fit(start: _Design, x: Array, y: Array) -> tuple[_Design, float, float, float] | None:
    """Least squares: the design at the optimum, the mean floor, the noise and the shift; None without a minimum."""
    floors = start.groups[:, None] == np.unique(start.groups)
    n, order = floors.shape[1], 1 + start.sided
    linear = np.column_stack([floors, x**2, x, x[:, None] * start.z])
    beta = np.linalg.lstsq(linear, y)[0]
    if not beta[n] > 0:
        return None
    theta = np.concatenate([beta[: n + 1], [0.0] * (order - 1), -beta[n + 1 :] / (2 * beta[n])])

    def at(theta: Array) -> _Design:
        optima = theta[n + order] + start.z @ theta[n + order + 1 :]
        return replace(start, v=x - optima, shape=(theta[n], theta[n + 1] if start.sided else 0.0))

    def residual(theta: Array) -> Array:
        now = at(theta)
        curve = (now.shape[0] + now.shape[1] * np.sign(now.v)) * now.v**2
        return np.asarray(floors @ theta[:n] + curve - y)

    if y.size < theta.size:
        return None
    # Sizes that do not vary leave directions free; Levenberg and Marquardt's steps do not go there.
    found = optimize.least_squares(residual, theta, lambda theta: at(theta).jacobian(), method="lm")
    design = at(found.x)
    floor = float(found.x[:n].mean())
    if not (design.shape[0] > 0 and floor > 0):
        return None
    _, dof = design.spread()
    left = residual(found.x)
    noise = math.sqrt(float(left @ left) / dof) if dof > 0 else math.nan
    design = replace(design, rates=start.rates - found.x[n + order])
    return design, floor, noise, float(design.delta @ found.x[n + order + 1 :])


def _off_line(start: _Design, x: Array, y: Array) -> tuple[tuple[str, float], ...]:
    """Each combination of sizes in words, with its optimum in x, if these optima do not lie on a line."""
    sizes, first, which = np.unique(start.z, axis=0, return_index=True, return_inverse=True)
    own = np.eye(len(sizes))[which.ravel()][:, 1:]
    found = _fit(replace(start, z=own, delta=np.zeros(own.shape[1])), x, y) if own.shape[1] else None
    if found is None:
        return ()
    design, _, noise, _ = found
    _, dof = design.spread()
    j = design.jacobian()
    # The last parameters are the first size's optimum and how far the others lie from it.
    covariance = np.linalg.pinv(j.T @ j)[-len(sizes) :, -len(sizes) :]
    to_optima = np.eye(len(sizes))
    to_optima[:, 0] = 1.0
    optima = (x - design.v)[first]
    if dof < 1 or not off_line(optima, noise**2 * to_optima @ covariance @ to_optima.T, sizes, dof):
        return ()
    words = [", ".join(f"{axis} {size:,.0f}" for axis, size in each.items()) for each in start.sizes(sizes)]
    return tuple(zip(words, optima.tolist(), strict=True))


def _cheapest(design: _Design, allowed: float) -> More | None:
    """The runs of least cost, by the sizes' product, with which the test has its power."""
    found: list[tuple[float, More]] = []
    for z in _candidates(design):
        cost = float(np.exp((z + design.at) @ [COST.get(axis, 1) for axis in design.axes]).sum())
        for seeds in range(1, SEEDS + 1):
            power = design.with_runs(z, seeds).power(allowed)
            if power >= POWER:
                found.append((cost * seeds, More(design.sizes(z), design.rates.size, seeds, power)))
                break
    return min(found, key=lambda each: each[0])[1] if found else None


def _candidates(design: _Design) -> Iterator[Array]:
    """Sizes of which runs could be added: all there are, new ones from the middle towards the target's, or both."""
    sizes = np.unique(design.z, axis=0)
    yield sizes
    middle = sizes[np.abs(sizes).sum(axis=1).argmin()]
    ahead = design.delta - np.where(design.delta, middle, 0.0)
    steps = [[0.0, *(math.log(f) for f in FACTORS if math.log(f) <= abs(far) + SAME)] for far in ahead]
    for chosen in itertools.product(*steps):
        if moved := [axis for axis, step in enumerate(chosen) if step]:
            z = np.tile(middle, (len(moved), 1))
            for row, axis in zip(z, moved, strict=True):
                row[axis] += math.copysign(chosen[axis], ahead[axis])
            yield z
            yield np.concatenate([sizes, z])
