"""The best size at each compute budget, and how it grows: isoFLOP profiles (Hoffmann et al. 2203.15556, approach 2).

Each budget's losses get a smoothing spline in ln params whose limit is the usual parabola. One smoothness holds for all
budgets, chosen by leaving sizes out: parabolas over wide or uneven grids are biased (2603.22339), and interpolation
follows the noise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import polars as pl
from scipy import stats

from froude.laws.compute.profile import (
    MIN_SIZES,
    SAME_BUDGET,
    WIDEST,
    Budget,
    Minimum,
    budgets_of,
    minimum,
    smoothness_of,
)
from froude.laws.drawing import rows as drawn
from froude.laws.drawing.panel import Axis, Line, Note, Panel, Points, Series
from froude.laws.law import Law
from froude.laws.lr.optimum import PowerLaw, optimum_law
from froude.laws.stats import uncertainty
from froude.laws.stats.frames import Array, Mask, Sample, plausible, read
from froude.laws.stats.results import NO_ESTIMATE, Estimate, open_unit, positive, table_of

MIN_BUDGETS = 3
FLAT = 0.7  # a 95% interval of ln params wider than ± this places no optimum
#: Budgets that the noise of the losses is worth as evidence of how far optima scatter about the law: two to five
#: optima more than the line needs say little of that themselves (benchmarks/isoflop.md).
WORTH = 4


class Optimum(NamedTuple):
    """The best size at a budget and the tokens that it leaves for training."""

    params: Estimate
    tokens: Estimate


@dataclass(frozen=True, eq=False)
class _Line:
    """ln params = level + slope · (ln flops - center): (level, slope) and its covariances.

    `noise` is what the losses' noise makes of it, each optimum by its response; `grouped` the same if what a group's
    rows share is left together; `scatter` is that of least squares, from the optima's distances to the line.
    """

    center: float
    beta: Array
    noise: Array
    grouped: Array
    scatter: Array
    spare: int  # optima more than two
    worth: int  # of the losses' noise, in optima
    dof: int  # of the losses' noise

    def estimate(self, weights: Array, level: float) -> Estimate:
        """Return weights · (level, slope): the noise of the losses and the optima's scatter weighed by their worth."""
        noise, grouped, scatter = (
            float(weights @ part @ weights) for part in (self.noise, self.grouped, self.scatter)
        )
        least = max(noise, grouped)
        variance = max((self.worth * least + self.spare * scatter) / max(self.worth + self.spare, 1), least)
        dof = min(self.worth + self.spare, self.dof)
        return uncertainty.interval(float(weights @ self.beta), math.sqrt(variance), dof, level)


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
    _fits: tuple[tuple[Budget, Minimum | None], ...] = field(repr=False)
    _line: _Line | None = field(repr=False)

    def params(self, flops: float) -> float:
        """Return the best size at a budget, on the fitted law; ValueError where there is none."""
        return self.line.predict(flops=positive("flops", flops)).value

    def optimum(self, *, flops: float, level: float = 0.9) -> Optimum:
        """Return the best size at a budget, and its tokens (flops / 6 / params), with intervals at `level`.

        They are of the optimum itself; `line.predict` has one for where a new profile would place it.
        """
        budget, level = positive("flops", flops), open_unit("level", level)
        if self._line is None:
            raise self.refusal()
        log_budget = math.log(budget)
        log_size = self._line.estimate(np.array([1.0, log_budget - self._line.center]), level)
        value, low, high = (uncertainty.bounded_exp(x) for x in (log_size.value, log_size.low, log_size.high))
        tokens = budget / 6 / value
        return Optimum(
            Estimate(value, value * log_size.se, low, high),
            Estimate(tokens, tokens * log_size.se, tokens * value / high, tokens * value / low),
        )

    def table(self) -> pl.DataFrame:
        """Return `parameter, value, se, low, high` at 95% for the coefficient and the exponent."""
        return table_of({"n_coefficient": self.line.coefficient, "n_exponent": self.n_exponent})

    def residuals(self) -> tuple[Array, Array, Mask] | None:
        size = self.sample.size
        fitted, leverage = np.full(size, np.nan), np.zeros(size)
        for budget, fit in self._fits:
            if fit is not None:
                fitted[budget.rows] = fit.fitted[budget.place] + budget.gained
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
        used = self.sample.frame.filter(pl.Series(self.sample.used))
        budgets = tuple(self.optima["flops"].to_list())
        left: list[Series] = []
        right: list[Series] = []
        optima = self.optima.select("flops", "params", "loss", "status").iter_rows()
        for (budget, _), (flops, size, loss, status) in zip(self._fits, optima, strict=True):
            here = used[budget.rows].sort("params")
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
        left += drawn.outliers(self.rows.filter(drawn.FINITE_LOSS), "params", "loss")
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

    Runs within 5% of the next one's compute are one budget; where it is wider than 2.5%, losses are brought to one
    compute (`froude.laws.compute.profile.budgets_of`), and one wider than 1.5 times is left out. Several seeds are
    several rows. Budgets whose best size is the smallest or largest finished (`edge`), with fewer than three sizes,
    or whose optimum is not known within a factor of 2 (`flat`, also of all budgets where parabolas explain no more
    than noise would) are left out of the law and named in `reasons`. Intervals are by Student's t from the noise of
    the losses, pooled over all budgets, or from what rows of one of the `groups` share if that is more, weighed with
    the scatter of the optima about the law. Status `too_few_points` below three optima. Raises as
    `froude.laws.stats.frames.read` does.
    """
    sample = read(frame, ["flops", "params"], loss=True, weights=weights, groups=groups)
    plausible(sample, ["flops", "params", "loss"])
    budgets = budgets_of(sample)
    smoothness = smoothness_of(budgets)
    splines = [minimum(budget, smoothness) for budget in budgets]
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
    wide = pl.Series([budget.wide for budget in budgets], dtype=pl.Boolean)
    if wide.any():
        chains = ", ".join(f"{budget.flops:.3g}" for budget in budgets if budget.wide)
        reasons.append(
            f"left out: about {chains} FLOPs: runs over more than {math.exp(WIDEST):g} times the compute, with no gap "
            f"of {100 * (math.exp(SAME_BUDGET) - 1):.0f}%, are no budget"
        )
    for name, text in (
        ("edge", "the best size is at the edge of the sizes tried"),
        ("flat", "the losses do not place the optimum within a factor of 2"),
        ("too_few_points", f"fewer than {MIN_SIZES} sizes"),
    ):
        left = optima.filter((pl.col("status") == name) & ~wide)["flops"].to_list()
        if left:
            reasons.append(f"left out: {', '.join(f'{flops:.3g}' for flops in left)} FLOPs: {text}")
    fits = tuple(zip(budgets, splines, strict=True))
    known = [each for each, ok in zip(fits, used, strict=True) if ok]
    drawn = _line(known, splines, sample, budgets) if status == "ok" else None
    slope = drawn.estimate(np.array([0.0, 1.0]), uncertainty.LEVEL) if drawn else NO_ESTIMATE
    return IsoFlop(
        optima, slope, line, smoothness, fits, drawn, status=status, reasons=tuple(reasons), sample=sample
    )


def _is_noise(budgets: Sequence[Budget], error: float = 0.05) -> bool:
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


def _noise(budgets: Sequence[Budget], splines: Sequence[Minimum | None]) -> float:
    """Return the sd of ln loss about the splines, of a size of weight 1, from the median: ends of grids stray."""
    errors = [
        (budget.log_loss - spline.fitted) * np.sqrt(budget.weight / np.maximum(1 - spline.leverage, 0.05))
        for budget, spline in zip(budgets, splines, strict=True)
        if spline is not None and budget.size.size > MIN_SIZES
    ]
    return 1.4826 * float(np.median(np.abs(np.concatenate(errors)))) if errors else 0.0


def _line(
    known: Sequence[tuple[Budget, Minimum | None]],
    splines: Sequence[Minimum | None],
    sample: Sample,
    budgets: Sequence[Budget],
) -> _Line:
    """Return the line through the optima that are known, by least squares, and how well it is known."""
    log_c = np.log([budget.flops for budget, _ in known])
    center = float(log_c.mean())
    x = np.column_stack([np.ones(log_c.size), log_c - center])
    inverse = np.linalg.inv(x.T @ x)
    pull = inverse @ x.T  # (level, slope) × optima
    y = np.array([fit.log_size for _, fit in known if fit is not None])
    beta = pull @ y
    spare = y.size - 2
    square, dof = 0.0, 0.0
    for budget, spline in zip(budgets, splines, strict=True):
        if spline is not None:
            square += float(budget.weight @ (budget.log_loss - spline.fitted) ** 2)
            dof += budget.size.size - float(spline.leverage.sum())
    noise, moved = np.zeros((2, 2)), np.zeros((sample.n_groups, 2))
    for each, (budget, fit) in zip(pull.T, known, strict=True):
        assert fit is not None
        noise += np.outer(each, each) * float(fit.response**2 @ (1 / budget.weight)) * square / max(dof, 1e-9)
        error = np.log(sample["loss"][budget.rows]) - budget.gained - fit.fitted[budget.place]
        error /= np.sqrt(np.maximum(1 - fit.leverage[budget.place] * budget.share, 0.05))
        shift = fit.response[budget.place] * budget.share * error
        np.add.at(moved, sample.groups[budget.rows], np.outer(shift, each))
    alone = sample.n_groups == sample.size
    grouped = np.zeros((2, 2)) if alone else moved.T @ moved
    scatter = inverse * float(np.sum((y - x @ beta) ** 2)) / max(spare, 1)
    most = int(dof) if alone else min(int(dof), sample.n_groups - 1)
    worth = WORTH if dof >= 1 else 0  # three sizes a budget leave nothing to tell their noise by
    return _Line(center, beta, noise, grouped, scatter, spare, worth, most or spare)
