"""Power laws of an optimum (learning rate, batch, critical batch, …) in size, horizon or anything else."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from froude.laws.drawing import rows as drawn
from froude.laws.drawing.numbers import short
from froude.laws.drawing.panel import Axis, Band, Line, Panel, Points
from froude.laws.law import Law
from froude.laws.stats import uncertainty
from froude.laws.stats.frames import Array, Mask, Sample, read
from froude.laws.stats.results import NO_ESTIMATE, Estimate, Status, open_unit, positive, table_of


@dataclass(frozen=True, eq=False)
class _Fit:
    beta: Array  # intercept at the geometric means, then the exponents
    covariance: Array
    variance: float  # of one row's ln target
    dof: int
    center: Array
    inverse: Array  # (X'WX)^-1


@dataclass(frozen=True, eq=False)
class PowerLaw(Law):
    """target = coefficient · Π column^exponent, by least squares in natural logs.

    `coefficient` is in the target's unit at columns of 1; `exponents` maps each column to an Estimate; both
    at 95%. `r2` is of ln target. Residuals are target - fitted. NaN where the status says that there is no fit.
    """

    target: str
    over: tuple[str, ...]
    coefficient: Estimate
    exponents: dict[str, Estimate]
    r2: float
    _fit: _Fit | None = field(repr=False)

    def predict(self, *, level: float = 0.9, **columns: float) -> Estimate:
        """Predict the target of one new study at the given columns (keywords named as in `over`).

        The interval holds the law's uncertainty and one row's scatter. ValueError for a column missing,
        unknown or not positive and finite, a level outside (0, 1), or a status without a fit.
        """
        level = open_unit("level", level)
        unknown = set(columns) - set(self.over)
        missing = [name for name in self.over if name not in columns]
        if unknown or missing:
            raise ValueError(f"predict needs {', '.join(self.over)}, but got {', '.join(columns) or 'none'}.")
        x = np.log([positive(name, columns[name]) for name in self.over])
        if self._fit is None:
            raise self.refusal()
        row = np.array([1.0, *(x - self._fit.center)])
        mean = float(row @ self._fit.beta)
        se = math.sqrt(max(float(row @ self._fit.covariance @ row), 0.0) + self._fit.variance)
        return uncertainty.log_interval(mean, se, self._fit.dof, level)

    def table(self) -> pl.DataFrame:
        """Return `parameter, value, se, low, high` at 95%: the coefficient, then one row per exponent."""
        return table_of({"coefficient": self.coefficient, **self.exponents})

    def residuals(self) -> tuple[Array, Array, Mask] | None:
        if self._fit is None:
            return None
        design, y = _design(self.sample, self.over, self.target)
        fitted = np.exp(np.minimum(design @ self._fit.beta, 709.0))  # ln of the largest double
        return fitted, self.sample[self.target] - fitted, self._outliers(design, y)

    def drawing(self) -> tuple[Panel, ...]:
        """A panel per column: the target, moved along the law to the other columns' geometric means, and the line."""
        return tuple(self._panel(name) for name in self.over)

    def _panel(self, name: str) -> Panel:
        x_axis = Axis(name, base=10)
        if self._fit is None:
            return Panel(x_axis, Axis(self.target, base=10), ())
        rows = drawn.thinned(self.rows.filter(pl.col("fitted").is_not_null()))
        logs = {each: np.log(rows[each].cast(pl.Float64).to_numpy()) for each in self.over}
        means = {each: math.exp(float(values.mean())) for each, values in logs.items()}
        others = [each for each in self.over if each != name]
        moved = rows[self.target].cast(pl.Float64).to_numpy().copy()
        for other in others:
            moved *= np.exp(self.exponents[other].value * (math.log(means[other]) - logs[other]))
        at = np.exp(np.linspace(logs[name].min() - 0.2, logs[name].max() + 0.2, 60))
        line = [self.predict(**{**means, name: float(x)}) for x in at]
        series = (
            Points(np.exp(logs[name]), moved),
            Line(at, [e.value for e in line]),
            Band(at, [e.low for e in line], [e.high for e in line]),
        )
        held = ", ".join(f"{other} = {short(means[other])}" for other in others)
        y_axis = Axis(self.target + (f" (at {held})" if held else ""), base=10)
        e = self.exponents[name]
        return Panel(x_axis, y_axis, series, f"exponent {e.value:.3f}  [{e.low:.3f}, {e.high:.3f}]")

    def _outliers(self, design: Array, y: Array) -> Mask:
        assert self._fit is not None
        groups, residual = self.sample.groups, y - design @ self._fit.beta
        leverage = self.sample.weights * np.einsum("ij,jk,ik->i", design, self._fit.inverse, design)
        if self.sample.n_groups == groups.size:
            root = np.sqrt(self.sample.weights)
            return uncertainty.studentized_outliers(root * residual, leverage, design.shape[1])
        # One row out has a closed form; a group of several needs the block of the hat matrix.
        left_out = residual / np.maximum(1 - leverage, 1e-12)
        order = np.argsort(groups, kind="stable")
        for block in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
            if block.size > 1:
                x = design[block]
                hat = x @ self._fit.inverse @ (x * self.sample.weights[block, None]).T
                left_out[block] = np.linalg.lstsq(np.eye(block.size) - hat, residual[block], rcond=1e-10)[0]
        return uncertainty.outliers(left_out)


def optimum_law(
    frame: pl.DataFrame | pl.LazyFrame,
    target: str = "lr",
    over: Sequence[str] = ("params", "tokens"),
    *,
    weights: str | None = None,
    groups: str | Sequence[str] | None = None,
) -> PowerLaw:
    """Fit ln target = ln coefficient + Σ exponent · ln column by (weighted) least squares.

    One row per optimum; `target` and `over` name positive columns. Intervals use Student's t; with `groups`
    the covariance is the cluster-robust one (CR1) with one degree of freedom less than groups. Status
    `too_few_points` with fewer than two rows (or groups) more than exponents or one value in a column,
    `flat` if the target is constant or the columns cannot be told apart. Raises as
    `froude.laws.stats.frames.read` does.
    """
    names = (over,) if isinstance(over, str) else tuple(over)
    if not names or len(set(names)) != len(names) or target in names:
        raise ValueError(
            f"over must name one or more distinct columns other than {target!r}, but got {over!r}."
        )
    sample = read(frame, [target, *names], weights=weights, groups=groups)

    def nothing(status: Status, reason: str) -> PowerLaw:
        none = dict.fromkeys(names, NO_ESTIMATE)
        return PowerLaw(
            target, names, NO_ESTIMATE, none, math.nan, None, status=status, reasons=(reason,), sample=sample
        )

    k = len(names) + 1
    if min(sample.size, sample.n_groups) < k + 1:
        return nothing("too_few_points", f"{sample.n_groups} rows or groups; needs {k + 1}")
    for name in names:
        if np.ptp(np.log(sample[name])) <= 1e-9:
            return nothing("too_few_points", f"column {name!r} has one value")
    design, y = _design(sample, names, target)
    root = np.sqrt(sample.weights)[:, None]
    norms = np.linalg.norm(design * root, axis=0)
    _, r = np.linalg.qr(design * root / norms)
    if np.linalg.svd(r, compute_uv=False)[-1] < 1e-7:
        return nothing("flat", f"{', '.join(names)} vary together: their exponents cannot be told apart")
    fit = _least_squares(design, y, sample, k)
    spread = float(sample.weights @ (y - np.average(y, weights=sample.weights)) ** 2)
    error = float(sample.weights @ (y - design @ fit.beta) ** 2)
    constant = bool(np.ptp(y) <= 1e-12 * max(1.0, float(np.abs(y).max())))
    shift = np.array([1.0, *(-fit.center)])
    se = np.sqrt(np.maximum(np.diag(fit.covariance), 0.0))
    return PowerLaw(
        target=target,
        over=names,
        coefficient=uncertainty.log_interval(
            float(shift @ fit.beta), math.sqrt(max(float(shift @ fit.covariance @ shift), 0.0)), fit.dof
        ),
        exponents={
            name: uncertainty.interval(float(fit.beta[i]), float(se[i]), fit.dof)
            for i, name in enumerate(names, 1)
        },
        r2=0.0 if constant else 1 - error / spread,
        status="flat" if constant else "ok",
        reasons=(f"every {target} is the same",) if constant else (),
        sample=sample,
        _fit=fit,
    )


def _design(sample: Sample, names: tuple[str, ...], target: str) -> tuple[Array, Array]:
    logs = np.column_stack([np.log(sample[name]) for name in names])
    return np.column_stack([np.ones(sample.size), logs - logs.mean(axis=0)]), np.log(sample[target])


def _least_squares(design: Array, y: Array, sample: Sample, k: int) -> _Fit:
    w = sample.weights
    center = np.array([float(np.log(sample[name]).mean()) for name in list(sample.columns)[1:k]])
    q, r = np.linalg.qr(design * np.sqrt(w)[:, None])
    beta = np.linalg.solve(r, q.T @ (np.sqrt(w) * y))
    inverse = np.linalg.inv(r.T @ r)
    residual = y - design @ beta
    n, g = sample.size, sample.n_groups
    variance = float(w @ residual**2) / (n - k) / float(w.mean())
    covariance, dof = variance * float(w.mean()) * inverse, n - k
    if g < n:
        scores = np.zeros((g, k))
        np.add.at(scores, sample.groups, design * (w * residual)[:, None])
        covariance = inverse @ (scores.T @ scores) @ inverse * (g / (g - 1)) * ((n - 1) / (n - k))
        dof = g - 1
    return _Fit(beta, covariance, variance, dof, center, inverse)
