"""Loss curves as functions of the learning-rate schedule: the annealing law and the multi-power law."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from froude.laws.curve import fit
from froude.laws.curve.data import (
    BLOCKS,
    Schedule,
    Trajectory,
    mean_squares,
    progress,
    runs_of,
    schedule_of,
    tenth,
)
from froude.laws.curve.fit import Annealing, Form, MultiPower, Problem
from froude.laws.drawing import rows as drawn
from froude.laws.drawing.panel import Axis, Line, Panel, Points, Series
from froude.laws.law import Law
from froude.laws.stats import robust, uncertainty
from froude.laws.stats.frames import Array, Mask, Sample, plausible, read
from froude.laws.stats.results import Prediction, Status, open_unit

MIN_POINTS = 20  # smoothed points after the warmup, over all runs
MIN_HELD_OUT = 3  # runs that were predicted from the others
FARTHEST = 10.0  # certified up to this many times the largest sum of learning rates fitted
SAME_PEAK = 1.01  # one law holds for one peak learning rate
EVALUATED = 2_048  # steps of a long schedule that are computed; between them losses are interpolated
FEW_RUNS = 7  # of more, a legend names none
FORMULAS = {
    "annealing": "L0 + A·S1^-alpha - C·S2",
    "multi_power": "L0 + A·S1^-alpha - B·Σ falls·(1 - (C·lr^-gamma·S + 1)^-beta)",
}
UNITS: dict[str, dict[str, str]] = {
    "annealing": {"A": "nats·(lr·steps)^alpha", "alpha": "1", "C": "nats/(lr·steps)", "decay": "1"},
    "multi_power": {
        "A": "nats·(lr·steps)^alpha",
        "alpha": "1",
        "B": "nats/lr",
        "C": "lr^gamma/(lr·steps)",
        "beta": "1",
        "gamma": "1",
    },
}


@dataclass(frozen=True, eq=False)
class CurveBand:
    """Losses along a schedule, in nats per token: arrays over its steps, from step 1, and a band around them.

    `low` and `high` bound one row of a new run, logged as the fitted rows were, at `level`. `certified` is
    True only if the law predicted runs held out and the schedule is within reach; else `reasons` says why
    not. During the warmup, which no such law describes, the numbers are the formula's.
    """

    lr: Array
    loss: Array
    low: Array
    high: Array
    level: float
    certified: bool
    reasons: tuple[str, ...]

    def table(self) -> pl.DataFrame:
        """Return `step, lr, loss, low, high`, one row per step."""
        columns = {"lr": self.lr, "loss": self.loss, "low": self.low, "high": self.high}
        return pl.DataFrame({"step": np.arange(1, self.loss.size + 1), **columns})

    def __array__(self, *args: Any, **options: Any) -> NDArray[Any]:
        """The losses, for numpy."""
        return np.array(self.loss, *args, **options)


@dataclass(frozen=True, eq=False)
class CurveLaw(Law):
    """A fitted curve law; learning rates and steps as in the frame, losses in nats per token.

    `parameters` maps the symbols of the formula to numbers, L0 among them unless each value of a column has
    its own: then those are in `floors`. `objective` is the sum of Huber terms over the smoothed points. NaN
    where nothing was fitted. Rows of a warmup do not enter the fit; residuals are loss - fitted.
    """

    form: Literal["annealing", "multi_power"]
    parameters: dict[str, float]
    floors: dict[float, float]
    objective: float
    _runs: tuple[Trajectory, ...] = field(repr=False)
    _problem: Problem | None = field(repr=False)
    _theta: Array | None = field(repr=False)

    def predict(
        self,
        lr_schedule: Sequence[float] | Array | pl.Series,
        *,
        level: float = 0.9,
        floor: float | None = None,
        final: Prediction | None = None,
    ) -> CurveBand:
        """Predict the loss at every step of a schedule: the learning rates of steps 1, 2, …, warmup included.

        `floor` picks the L0 of a law that has several. `final`, a forecast of the last step's loss at the same
        level, takes the place of L0, as for a run of another size: the curve is moved to end there and the band
        holds the forecast's uncertainty too. ValueError for an empty schedule, rates that are negative or not
        finite, a floor that was not fitted, and where the status says that there is no law.
        """
        schedule = schedule_of(lr_schedule)
        level = open_unit("level", level)
        problem, theta = self._fit
        if final is not None and final.level != level:
            raise ValueError(f"level must be the forecast's, {final.level!r}, but got {level!r}.")
        steps = np.arange(1, schedule.rate.size + 1)
        if steps.size > EVALUATED:
            half = EVALUATED // 2
            chosen = [np.linspace(1, steps.size, half), np.geomspace(1, steps.size, half)]
            steps = np.unique(np.round(np.concatenate(chosen)).astype(np.int64))
        ahead = problem.along(schedule, steps.astype(np.float64), self._floor(floor, final))
        loss = ahead.fitted(theta)
        slope = ahead.jacobian(theta) * loss[:, None]
        if final is not None:
            loss, slope = loss - loss[-1] + final.loss, slope - slope[-1]
        variance = np.maximum(np.einsum("ij,jk,ik->i", slope, self._covariance, slope), 0.0)
        place = progress(steps.astype(np.float64), schedule.warm + 1.0, float(steps[-1]))
        middles = np.arange(BLOCKS) + 0.5
        noise, course = (np.interp(place, middles, part) * loss**2 for part in self._scatter)
        # Rows scatter by themselves; how far a run strays from its prediction, a few runs have told.
        many = uncertainty.t_quantile(level, max(BLOCKS * len(self._runs) - theta.size, 1))
        few = uncertainty.t_quantile(level, max(len(self._runs) - 1, 1))
        reach = np.sqrt(many**2 * noise + few**2 * (variance + course))
        below, above = (
            (reach, reach)
            if final is None
            else (np.hypot(reach, final.loss - final.low), np.hypot(reach, final.high - final.loss))
        )
        every = np.arange(1, schedule.rate.size + 1)
        along, low, high = (np.interp(every, steps, line) for line in (loss, loss - below, loss + above))
        reasons = (*self._uncertified(schedule), *(final.reasons if final is not None else ()))
        return CurveBand(schedule.rate, along, low, high, level, not reasons, reasons)

    def table(self) -> pl.DataFrame:
        """Return `parameter, value, unit`: the formula's symbols, and L0 for each value of the floor's column."""
        rows = [*self.parameters.items(), *((f"L0[{key:g}]", value) for key, value in self.floors.items())]
        units = [UNITS[self.form].get(name, "nats/token") for name, _ in rows]
        names, values = zip(*rows, strict=True)
        return pl.DataFrame({"parameter": names, "value": values, "unit": units})

    def residuals(self) -> tuple[Array, Array, Mask] | None:
        if self._theta is None:
            return None
        fitted, loss = self._by_row, self.sample["loss"]
        return fitted, loss - fitted, uncertainty.outliers(np.log(loss / fitted))

    def drawing(self) -> tuple[Panel, ...]:
        """Each run's losses after the warmup and the law's curve; and their learning rates."""
        names = self.rows["run"].unique(maintain_order=True).to_list() if self.rows.height else []
        sizes = tuple(np.geomspace(1, 2, len(names)).tolist())  # only for their colours
        few = 0 < len(names) <= FEW_RUNS
        fitted = self.rows["fitted"].count() > 0
        left: list[Series] = []
        right: list[Series] = []
        for name, size in zip(names, sizes, strict=True):
            rows = self.rows.filter((pl.col("run") == name) & drawn.FINITE_LOSS).sort("step")
            if rows.height > drawn.DRAWN_ROWS:
                rows = rows.gather_every(rows.height // drawn.DRAWN_ROWS + 1)
            late = rows.filter(pl.col("fitted").is_not_null()) if fitted else rows
            words = str(name) if few else ""
            left.append(Line(late["step"], late["fitted"], size=size, name=words))
            left.append(Points(late["step"], late["loss"], style="row", size=size))
            right.append(Line(rows["step"], rows["lr"], size=size, name=words))
        legend = "law (dots: rows)" if few else ""
        return (
            Panel(
                Axis("step", base=10), Axis("loss (nats per token)"), tuple(left), FORMULAS[self.form],
                sizes=sizes, legend=legend,
            ),
            Panel(Axis("step"), Axis("learning rate"), tuple(right), sizes=sizes),
        )  # fmt: skip

    @property
    def _fit(self) -> tuple[Problem, Array]:
        if self._problem is None or self._theta is None:
            raise self.refusal()
        return self._problem, self._theta

    def _floor(self, floor: float | None, final: Prediction | None) -> int:
        if final is not None or (floor is None and not self.floors):
            return 0
        if floor not in self.floors:
            known = ", ".join(f"{key:g}" for key in self.floors) or "one L0 for all: leave it out"
            raise ValueError(f"floor must be one that was fitted, but got {floor!r}. There are: {known}.")
        return list(self.floors).index(floor)

    @cached_property
    def _by_row(self) -> Array:
        """The fitted loss of every row that entered the fit."""
        problem, theta = self._fit
        fitted = np.empty(self.sample.size)
        for run in self._runs:
            fitted[run.rows] = problem.along(run.schedule, run.step, run.floor).fitted(theta)
        return fitted

    @cached_property
    def _covariance(self) -> Array:
        problem, theta = self._fit
        blocks = np.concatenate([BLOCKS * i + curve.blocks for i, curve in enumerate(problem.curves)])
        _, groups = np.unique(blocks, return_inverse=True)
        ones = np.ones(groups.size)
        return robust.covariance(problem.jacobian(theta), problem.residual(theta), ones, groups, robust.DELTA)

    @cached_property
    def _scatter(self) -> tuple[Array, Array]:
        """Relative variances by tenths of a run: of a row about its run's course, and of a course left out."""
        problem, theta = self._fit
        logs = np.log(self.sample["loss"] / self._by_row)
        tenths = np.concatenate([tenth(run.step, run.step[0], run.step[-1]) for run in self._runs])
        rows = mean_squares(np.concatenate([logs[run.rows] for run in self._runs]), tenths)
        if len(self._held_out) < MIN_HELD_OUT:
            return np.zeros_like(rows), rows
        tested = list(self._held_out)
        blocks = np.concatenate([problem.curves[run].blocks for run in tested])
        inside = mean_squares(problem.only(tested).residual(theta), blocks)
        outside = mean_squares(np.concatenate([self._held_out[run] for run in tested]), blocks)
        return np.maximum(rows - inside, 0.0), np.maximum(outside, inside)

    @cached_property
    def _held_out(self) -> dict[int, Array]:
        """ln(loss / predicted) of each run's smoothed points from the other runs, where those determine the law."""
        problem, theta = self._fit
        found = {}
        for run in range(len(self._runs)) if len(self._runs) >= MIN_HELD_OUT else ():
            rest, alone = problem.only([i for i in range(len(self._runs)) if i != run]), problem.only([run])
            known = bool(np.any(rest.floor == alone.floor[0]))
            keep = np.arange(theta.size) != (-1 if known else alone.floor[0])
            again, _ = fit.solve(rest, [theta])
            if robust.undetermined(rest.jacobian(again)[:, keep]):
                continue
            if not known:  # its own L0 lies where the others' shape meets its losses
                again = again.copy()
                again[alone.floor[0]] += float(np.mean(alone.curves[0].loss - alone.fitted(again)))
            found[run] = -alone.residual(again)
        return found

    def _uncertified(self, schedule: Schedule) -> tuple[str, ...]:
        problem, _ = self._fit
        reasons = [] if self.status == "ok" else [f"status {self.status}: {'; '.join(self.reasons)}"]
        peaks = [run.schedule.peak for run in self._runs]
        if not max(*peaks, schedule.peak) <= SAME_PEAK * min(*peaks, schedule.peak):
            reasons.append(
                f"peak learning rate {schedule.peak:.3g}; the law was fitted at {min(peaks):.3g} to {max(peaks):.3g}"
            )
        ratio = float(schedule.area[-1]) / max(float(curve.area[-1]) for curve in problem.curves)
        if ratio > FARTHEST:
            reasons.append(f"sum of learning rates {ratio:.3g} times the largest fitted, beyond {FARTHEST:g}")
        if len(self._held_out) < MIN_HELD_OUT:
            reasons.append(f"{len(self._held_out)} runs were predicted from the others; needs {MIN_HELD_OUT}")
        return tuple(reasons)


def annealing(frame: pl.DataFrame | pl.LazyFrame, *, floor: str | None = None) -> CurveLaw:
    """Fit L = L0 + A · S1^-alpha - C · S2 to the columns `run, step, lr, loss` (Tissue et al. 2408.11029).

    S1 is the sum of learning rates, S2 that of m_i = decay · m_(i-1) + lr_(i-1) - lr_i, both up to the step; the
    `decay` of that memory is profiled. Curves are fitted after their warmup (the steps before the first at the highest
    rate), smoothed to 200 log-spaced points, in ln L with Huber's loss. Between rows the rate is interpolated, except
    for lone jumps, which come right after a row. `floor` names a column (for instance params) each of whose values has
    an L0 of its own; the rest is shared. Status `too_few_points` below 20 points, `flat` where the losses are equal or
    the rates never fall (C is not determined), `at_bound` where a parameter ran to its limit. Raises as
    `froude.laws.stats.frames.read` does, and ValueError for steps that are not whole, repeat within a run, or exceed 10
    million.
    """
    sample, runs, floors = _read(frame, floor)
    forms = [Annealing(decay) for decay in fit.DECAYS]
    return _law("annealing", sample, runs, floors, forms)


def multi_power(frame: pl.DataFrame | pl.LazyFrame, *, floor: str | None = None) -> CurveLaw:
    """Fit L = L0 + A · S1^-alpha - B · Σ_k (lr_(k-1) - lr_k) · (1 - (C · lr_k^-gamma · S_k + 1)^-beta) (2503.12811).

    S_k is the sum of learning rates since step k; columns, options, statuses and errors as for `annealing`. It takes
    a fall of the rate to different depths in different runs to tell C and gamma apart.
    """
    sample, runs, floors = _read(frame, floor)
    peak = max((run.schedule.peak for run in runs), default=1.0)
    return _law("multi_power", sample, runs, floors, [MultiPower(peak)])


def _read(
    frame: pl.DataFrame | pl.LazyFrame, floor: str | None
) -> tuple[Sample, tuple[Trajectory, ...], list[float]]:
    columns = ["step", "lr", *([floor] if floor else [])]
    # A log begins before the first update, and a linear decay ends at a rate of zero.
    sample = read(frame, columns, loss=True, groups="run", zero=["step", "lr"])
    plausible(sample, ["lr", "loss"])
    keys = sample[floor] if floor else np.zeros(sample.size)
    floors, codes = np.unique(keys, return_inverse=True)
    runs, warm = runs_of(sample, np.asarray(codes, dtype=np.intp), floor)
    return sample.without(warm), runs, [float(key) for key in floors] if floor else []


def _law(
    form: Literal["annealing", "multi_power"],
    sample: Sample,
    runs: tuple[Trajectory, ...],
    floors: list[float],
    forms: Sequence[Form],
) -> CurveLaw:
    def law(status: Status, reasons: Sequence[str], problem: Problem | None, theta: Array | None) -> CurveLaw:
        values, bottoms, objective = (
            dict.fromkeys(UNITS[form], math.nan),
            [math.nan] * max(len(floors), 1),
            math.nan,
        )
        if problem is not None and theta is not None:
            values, objective = fit.parameters(problem, theta), problem.objective(theta)
            bottoms = [float(value) for value in theta[: problem.floors]]
        return CurveLaw(
            form=form,
            parameters=values if floors else {"L0": bottoms[0], **values},
            floors=dict(zip(floors, bottoms, strict=True)) if floors else {},
            objective=objective,
            status=status,
            reasons=tuple(reasons),
            sample=sample,
            _runs=runs,
            _problem=problem,
            _theta=theta,
        )

    points = sum(run.curve.step.size for run in runs)
    if points < MIN_POINTS:
        return law("too_few_points", [f"{points} points after the warmup; needs {MIN_POINTS}"], None, None)
    losses = np.concatenate([run.curve.loss for run in runs])
    if np.ptp(losses) <= 1e-12 * losses.max():
        return law("flat", ["all losses are equal"], None, None)
    problem, theta = fit.search(runs, max(len(floors), 1), forms)
    if not any(np.any(run.schedule.falls) for run in runs):
        gone = "no learning rate falls after its warmup: what a fall gains is not determined"
        return law("flat", [gone], problem, theta)
    if found := fit.hits_bound(problem, theta):
        return law("at_bound", found, problem, theta)
    if robust.undetermined(problem.jacobian(theta)):
        return law("flat", ["the rows do not determine all parameters"], problem, theta)
    return law("ok", [], problem, theta)
