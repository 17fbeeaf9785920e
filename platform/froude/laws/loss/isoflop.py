"""The best size at each compute budget, and how it grows: isoFLOP profiles (Hoffmann et al. 2203.15556, approach 2).

Each budget's losses get a smoothing spline in ln params whose limit is the usual parabola. One smoothness holds for all
budgets, chosen by leaving sizes out: parabolas over wide or uneven grids are biased (2603.22339), and interpolation
follows the noise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import stats
from scipy.interpolate import RBFInterpolator

from froude.laws.drawing import rows as drawn
from froude.laws.drawing.panel import Axis, Line, Note, Panel, Points, Series
from froude.laws.law import Law
from froude.laws.lr.optimum import PowerLaw, optimum_law
from froude.laws.stats import uncertainty
from froude.laws.stats.frames import Array, Mask, Sample, plausible, read
from froude.laws.stats.results import NO_ESTIMATE, Estimate, Status, positive, table_of

SAME_BUDGET = math.log(1.05)  # runs whose compute differs by less belong to one budget
MIN_SIZES, MIN_BUDGETS = 3, 3
MIN_TESTED = 5  # sizes that a budget needs to say how smooth its curve is
SMOOTHNESS = 10.0 ** np.arange(-6, 5.5, 0.5)  # in (ln params)^5; the largest makes a parabola
MAX_SIZES = 60  # of one budget; closer ones are averaged
FLAT = 0.7  # a 95% interval of ln params wider than ± this places no optimum


@dataclass(frozen=True, eq=False)
class _Budget:
    """One budget: ln of its distinct sizes, the weighted mean ln loss of each, and its rows.

    `weight` is a size's, over the mean of all sizes; `place` is each row's size, `share` its share in the mean.
    """

    flops: float
    size: Array
    log_loss: Array
    weight: Array
    rows: NDArray[np.intp]
    place: NDArray[np.intp]
    share: Array

    def smoother(self, smoothness: float) -> RBFInterpolator:
        """Return the spline's response to each mean: evaluated at ln sizes it gives points × sizes."""
        return RBFInterpolator(
            self.size[:, None],
            np.eye(self.size.size),
            kernel="quintic",
            degree=2,
            smoothing=smoothness / self.weight,
        )


@dataclass(frozen=True, eq=False)
class _Optimum:
    """A budget's spline: values and leverages at the sizes, and its minimum: where, how low, how each mean moves it."""

    fitted: Array
    leverage: Array
    log_size: float
    log_loss: float
    response: Array
    status: Status


@dataclass(frozen=True, eq=False)
class IsoFlop(Law):
    """The best sizes and their power law: params = coefficient · flops^n_exponent, at 95%.

    `optima` has a row per budget: `flops, params, loss` (nats per token), `status`; only those that are `ok` enter the
    law. `edge` has the best size tried. `line` is the law through them (`.predict(flops=)`). Fitted to a row is its
    budget's spline; rows of budgets of one or two sizes have none.
    """

    optima: pl.DataFrame
    n_exponent: Estimate
    line: PowerLaw
    smoothness: float
    _fits: tuple[tuple[_Budget, "_Optimum | None"], ...] = field(repr=False)

    def params(self, flops: float) -> float:
        """Return the best size at a budget, on the fitted law; ValueError where there is none."""
        return self.line.predict(flops=positive("flops", flops)).value

    def table(self) -> pl.DataFrame:
        """Return `parameter, value, se, low, high` at 95% for the coefficient and the exponent."""
        return table_of({"n_coefficient": self.line.coefficient, "n_exponent": self.n_exponent})

    def residuals(self) -> tuple[Array, Array, Mask] | None:
        size = self.sample.size
        fitted, leverage = np.full(size, np.nan), np.zeros(size)
        for budget, fit in self._fits:
            if fit is not None:
                fitted[budget.rows] = fit.fitted[budget.place]
                leverage[budget.rows] = fit.leverage[budget.place] * budget.share
        known = np.isfinite(fitted)
        marks = np.zeros(size, dtype=bool)
        if known.any():
            residual = np.log(self.sample["loss"][known]) - fitted[known]
            root, used = np.sqrt(self.sample.weights[known]), math.ceil(float(leverage.sum()))
            marks[known] = uncertainty.studentized_outliers(root * residual, leverage[known], used)
        return np.exp(fitted), self.sample["loss"] - np.exp(fitted), marks

    def drawing(self) -> tuple[Panel, ...]:
        """Losses against size, a colour a budget, with their optima; and the best size against compute."""
        rows, budgets = self.rows.filter(drawn.FINITE_LOSS), tuple(self.optima["flops"].to_list())
        left: list[Series] = []
        right: list[Series] = []
        for flops, size, loss, status in self.optima.select("flops", "params", "loss", "status").iter_rows():
            here = rows.filter(pl.col("flops").cast(pl.Float64) == flops).sort("params")
            left.append(Line(here["params"], here["loss"], style="joined", size=flops))
            if status == "ok":
                left.append(Points([size], [loss], style="optimum", size=flops))
                right.append(Points([flops], [size], style="best", size=flops))
            elif math.isfinite(size):
                right += [Points([flops], [size], style="left out"), Note(status, flops, size)]
        title, slope = "", self.n_exponent
        if math.isfinite(slope.value):
            at = np.geomspace(min(budgets) / 1.5, max(budgets) * 1.5, 40)
            right.append(Line(at, [self.params(float(flops)) for flops in at]))
            title = f"exponent {slope.value:.3f}  [{slope.low:.3f}, {slope.high:.3f}]"
        left += drawn.outliers(rows, "params", "loss")
        return (
            Panel(
                Axis("parameters N", base=10), Axis("loss (nats per token)"), tuple(left),
                "loss at equal compute", sizes=budgets, legend="FLOPs",
            ),
            Panel(
                Axis("compute C (FLOPs)", base=10), Axis("best size N (parameters)", base=10), tuple(right),
                title, sizes=budgets,
            ),
        )  # fmt: skip


def iso_flop(
    frame: pl.DataFrame | pl.LazyFrame,
    *,
    weights: str | None = None,
    groups: str | Sequence[str] | None = None,
) -> IsoFlop:
    """Find the best size per budget and fit its power law: columns `flops, params, loss` (nats per token).

    Runs within 5% of compute are one budget; several seeds are several rows. Budgets whose best size is the smallest
    or largest finished (`edge`), with fewer than three sizes, or whose optimum is not known within a factor of 2
    (`flat`, also of all budgets where parabolas explain no more than noise would) are left out of the law and named in
    `reasons`. The interval is by Student's t from the scatter of the optima about the law, or from what rows of one of
    the `groups` (default: each row) share, whichever is wider. Status `too_few_points` below three optima. Raises as
    `froude.laws.stats.frames.read` does.
    """
    sample = read(frame, ["flops", "params"], loss=True, weights=weights, groups=groups)
    plausible(sample, ["flops", "params", "loss"])
    budgets = _budgets(sample)
    smoothness = _smoothness(budgets)
    splines = [_fit(budget, smoothness) for budget in budgets]
    noise, lost = _noise(budgets, splines), _is_noise(budgets)
    rows: list[tuple[float, float, float, str]] = []
    for budget, spline in zip(budgets, splines, strict=True):
        if spline is None:
            best = int(budget.log_loss.argmin())
            rows.append((budget.flops, *np.exp([budget.size[best], budget.log_loss[best]]), "too_few_points"))
            continue
        status = spline.status
        reach = uncertainty.t_quantile(uncertainty.LEVEL, 10_000) * noise
        vague = reach * math.sqrt(float(spline.response**2 @ (1 / budget.weight))) > FLAT
        if status == "ok" and (lost or vague):
            status = "flat"
        rows.append((budget.flops, math.exp(spline.log_size), math.exp(spline.log_loss), status))
    schema = {**dict.fromkeys(("flops", "params", "loss"), pl.Float64), "status": pl.String}
    optima = pl.DataFrame(rows, schema=schema, orient="row")
    line = optimum_law(optima, target="params", over=["flops"])
    used = optima["status"] == "ok"
    status, reasons = line.status, [] if line.status == "ok" else list(line.reasons)
    if used.sum() < MIN_BUDGETS:
        status, reasons = "too_few_points", [f"{used.sum()} budgets with an optimum; needs {MIN_BUDGETS}"]
    for name, text in (
        ("edge", "the best size is at the edge of the sizes tried"),
        ("flat", "the losses do not place the optimum within a factor of 2"),
        ("too_few_points", f"fewer than {MIN_SIZES} sizes"),
    ):
        left = optima.filter(pl.col("status") == name)["flops"].to_list()
        if left:
            reasons.append(f"left out: {', '.join(f'{flops:.3g}' for flops in left)} FLOPs: {text}")
    fits = tuple(zip(budgets, splines, strict=True))
    known = [fit for fit, ok in zip(fits, used, strict=True) if ok]
    exponent = _widened(line, known, sample) if status == "ok" else NO_ESTIMATE
    return IsoFlop(
        optima, exponent, line, smoothness, fits, status=status, reasons=tuple(reasons), sample=sample
    )


def _budgets(sample: Sample) -> list[_Budget]:
    log_c, log_n, y = (np.log(sample[name]) for name in ("flops", "params", "loss"))
    weight = sample.weights
    order = np.argsort(log_c, kind="stable")
    found = []
    for rows in (
        np.split(order, np.flatnonzero(np.diff(log_c[order]) > SAME_BUDGET) + 1) if order.size else ()
    ):
        width = max(float(np.ptp(log_n[rows])), 1e-9)
        _, place = np.unique(
            np.round((log_n[rows] - log_n[rows].min()) / width * MAX_SIZES), return_inverse=True
        )
        total = np.asarray(np.bincount(place, weight[rows]), dtype=np.float64)
        size, loss = (np.bincount(place, weight[rows] * values[rows]) / total for values in (log_n, y))
        flops = float(np.sort(sample["flops"][rows])[rows.size // 2])
        found.append(_Budget(flops, size, loss, total, rows, place, weight[rows] / total[place]))
    mean = float(np.mean(np.concatenate([budget.weight for budget in found]))) if found else 1.0
    return [replace(budget, weight=budget.weight / mean) for budget in found]


def _smoothness(budgets: Sequence[_Budget]) -> float:
    """Return the smoothness with the least median error of predicting a size from its budget's others."""
    tested = [budget for budget in budgets if budget.size.size >= MIN_TESTED]
    if not tested:
        return float(SMOOTHNESS[-1])

    def error(smoothness: float) -> float:
        left_out = []
        for budget in tested:
            hat = budget.smoother(smoothness)(budget.size[:, None])
            left = np.maximum(1 - np.diag(hat), 1e-9)
            left_out.append((budget.log_loss - hat @ budget.log_loss) / left)
        return float(np.median(np.abs(np.concatenate(left_out))))

    return float(min(SMOOTHNESS, key=lambda value: error(float(value))))


def _fit(budget: _Budget, smoothness: float) -> _Optimum | None:
    x, y = budget.size, budget.log_loss
    if x.size < MIN_SIZES:
        return None
    smoother = budget.smoother(smoothness)
    hat = smoother(x[:, None])
    fitted, leverage, best = hat @ y, np.diag(hat), int(y.argmin())

    def at(index: int, status: Status) -> _Optimum:
        return _Optimum(fitted, leverage, float(x[index]), float(y[index]), np.zeros(x.size), status)

    if np.ptp(y) <= 1e-12:
        return at(best, "flat")
    if best in (0, x.size - 1):
        return at(best, "edge")
    fine = np.unique(np.concatenate([np.linspace(a, b, 40) for a, b in pairwise(x)]))
    values = smoother(fine[:, None]) @ y
    i = int(values.argmin())
    if i in (0, fine.size - 1):
        return at(0 if i == 0 else x.size - 1, "edge")
    # One Newton step from the best of the fine points, with differences of the spline itself.
    step = float(fine[i + 1] - fine[i - 1]) / 4
    low, middle, high = smoother(fine[i] + step * np.array([[-1.0], [0.0], [1.0]]))
    slope, bend = (high - low) / (2 * step), (high - 2 * middle + low) / step**2
    curvature = float(bend @ y)
    if not curvature > 0:
        return at(best, "not_convex")
    log_size = float(np.clip(fine[i] - (slope @ y) / curvature, fine[i - 1], fine[i + 1]))
    log_loss = float((smoother(np.array([[log_size]])) @ y).item())
    return _Optimum(fitted, leverage, log_size, log_loss, -slope / curvature, "ok")


def _is_noise(budgets: Sequence[_Budget], error: float = 0.05) -> bool:
    """Whether parabolas in ln params explain all budgets' losses no better than their means do (F test)."""
    gained, left, dof = 0.0, 0.0, np.zeros(2)
    for budget in budgets:
        if budget.size.size <= MIN_SIZES:
            continue
        x, y, root = budget.size, budget.log_loss, np.sqrt(budget.weight)
        around = [root * (y - np.polynomial.Polynomial.fit(x, y, k, w=root)(x)) for k in (0, 2)]
        rest = float(around[1] @ around[1])
        gained, left = gained + float(around[0] @ around[0]) - rest, left + rest
        dof += (2, budget.size.size - 3)
    return bool(dof[0] and gained / dof[0] <= stats.f.isf(error, *dof) * left / dof[1])


def _noise(budgets: Sequence[_Budget], splines: Sequence[_Optimum | None]) -> float:
    """Return the sd of ln loss about the splines, of a size of weight 1, from the median: ends of grids stray."""
    errors = [
        (budget.log_loss - spline.fitted) * np.sqrt(budget.weight / np.maximum(1 - spline.leverage, 0.05))
        for budget, spline in zip(budgets, splines, strict=True)
        if spline is not None and budget.size.size > MIN_SIZES
    ]
    return 1.4826 * float(np.median(np.abs(np.concatenate(errors)))) if errors else 0.0


def _widened(line: PowerLaw, fits: Sequence[tuple[_Budget, _Optimum | None]], sample: Sample) -> Estimate:
    """Return the exponent with the larger of two standard errors: from the optima's scatter, or from groups of rows."""
    exponent = line.exponents["flops"]
    log_c = np.log([budget.flops for budget, _ in fits])
    pull = (log_c - log_c.mean()) / float(((log_c - log_c.mean()) ** 2).sum())
    moved = np.zeros(sample.n_groups)
    for move, (budget, fit) in zip(pull, fits, strict=True):
        assert fit is not None
        error = np.log(sample["loss"][budget.rows]) - fit.fitted[budget.place]
        error /= np.sqrt(np.maximum(1 - fit.leverage[budget.place] * budget.share, 0.05))
        np.add.at(moved, sample.groups[budget.rows], move * fit.response[budget.place] * budget.share * error)
    shared = math.sqrt(float(moved @ moved))
    return uncertainty.interval(exponent.value, max(exponent.se, shared), len(fits) - 2)
