"""The loss law where data are repeated, L = E + A/N'^alpha + B/D'^beta (Muennighoff et al. 2305.16264)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import polars as pl

from froude.laws.drawing import rows as drawn
from froude.laws.drawing.panel import Axis, Line, Mark, Panel, Points, Series
from froude.laws.law import Law
from froude.laws.loss.draws import ExponentPrior
from froude.laws.loss.law import LossLaw, loss_law
from froude.laws.stats import robust, uncertainty
from froude.laws.stats.frames import Array, Mask, Sample, plausible, read
from froude.laws.stats.results import (
    NO_ESTIMATE,
    Allocation,
    Estimate,
    Prediction,
    Status,
    positive,
    table_of,
)
from froude.laws.stats.robust import Rows

MIN_REPEATED = 4
BOUNDS = (0.05, 1e4)  # of R*; the source finds 15.4 for data and 5.3 for parameters
BASES = 40  # base laws drawn for the intervals of R*
FROM_BASE = 20_000  # rows to which R* is fitted again with each of them
NAMES = ("R*_data", "R*_params")


@dataclass(frozen=True, eq=False)
class DataConstrainedLaw(Law):
    """A loss law of unique data, `base`, and how fast repetition stops to help: `r_data` and `r_params`, at 95%.

    With U tokens of unique data seen R times more, D' = U + U · R*_data · (1 - exp(-R / R*_data)); parameters beyond
    those that are compute-optimal for U decay likewise. In the source they have decayed before any token is repeated,
    where the base law, which runs of one epoch gave, counts them all. Here they count in one epoch, and then decay no
    faster than tokens seen again make up for: the loss stays at that of one epoch until the source's falls below
    it, and never rises with tokens. `r_params` is NaN where no repeated run has parameters beyond the optimum.
    `objective` is the sum of Huber terms over repeated rows. Standard errors hold the base law's own uncertainty.
    """

    base: LossLaw
    r_data: Estimate
    r_params: Estimate
    objective: float

    def effective(self, *, params: float, tokens: float, unique_tokens: float) -> Allocation:
        """Return N' and D': the parameters and unique tokens that would reach the same loss without repetition."""
        given = [("params", params), ("tokens", tokens), ("unique_tokens", unique_tokens)]
        n, d, unique = (np.array([positive(name, value)]) for name, value in given)
        if not math.isfinite(self.r_data.value):
            raise self.refusal()
        size, data = _Repetition.of(self.base, n, d, unique).effective(self._theta)
        return Allocation(float(size[0]), float(data[0]))

    def predict(
        self, *, params: float, tokens: float, unique_tokens: float, level: float = 0.9
    ) -> Prediction:
        """Forecast the loss of one new run: that of the base law at N' and D', whose interval it has.

        Never certified: the interval leaves out the uncertainty of R*. ValueError as for `LossLaw.predict`.
        """
        same = self.effective(params=params, tokens=tokens, unique_tokens=unique_tokens)
        found = self.base.predict(params=same.params, tokens=same.tokens, level=level)
        reason = "the interval leaves out the uncertainty of R*"
        return replace(found, certified=False, reasons=(*found.reasons, reason))

    def table(self) -> pl.DataFrame:
        """Return `parameter, value, se, low, high` at 95% for R*_data and R*_params; the rest is in `base.table()`."""
        return table_of(dict(zip(NAMES, (self.r_data, self.r_params), strict=True)))

    def residuals(self) -> tuple[Array, Array, Mask] | None:
        if not math.isfinite(self.r_data.value):
            return None
        loss = self.sample["loss"]
        fitted = np.exp(_Repetition.of_sample(self.base, self.sample).log_loss(self._theta))
        return fitted, loss - fitted, uncertainty.outliers(np.log(loss / fitted))

    def drawing(self) -> tuple[Panel, ...]:
        """Losses against epochs with what the law gives, and what tokens seen again are worth in new ones."""
        epochs = pl.max_horizontal(pl.col("tokens") / pl.col("unique_tokens"), pl.lit(1.0)).alias("epochs")
        rows = self.rows.filter(drawn.FINITE_LOSS).with_columns(epochs)
        left: list[Series] = [Points(rows["epochs"], rows["loss"], name="runs")]
        right: list[Series] = []
        e, title = self.r_data, ""
        if math.isfinite(e.value):
            left.append(Points(rows["epochs"], rows["fitted"], style="fitted", name="law"))
            left += drawn.outliers(rows, "epochs", "loss")
            seen = np.linspace(1, max(drawn.most(rows, "epochs"), 4.0), 80)
            right = [
                Line(seen, 1 - e.value * np.expm1(-(seen - 1) / e.value), name="worth"),
                Line(seen, seen, style="limit", name="as if all were new"),
                Mark(1 + e.value, axis="y", name=f"limit: {1 + e.value:.3g}"),
            ]
            title = f"R* = {e.value:.3g}  [{e.low:.3g}, {e.high:.3g}]"
        epochs_axis = Axis("epochs (tokens / unique tokens)", base=10)
        return (
            Panel(epochs_axis, Axis("loss (nats per token)"), tuple(left)),
            Panel(Axis("epochs"), Axis("effective tokens / unique tokens"), tuple(right), title),
        )

    @property
    def _theta(self) -> Array:
        return np.log([self.r_data.value, self.r_params.value])


def data_constrained(
    frame: pl.DataFrame | pl.LazyFrame,
    delta: float | None = 1e-3,
    *,
    form: Literal["free", "tied"] = "free",
    prior: Mapping[str, tuple[float, float]] | ExponentPrior | None = None,
    weights: str | None = None,
    groups: str | Sequence[str] | None = None,
) -> DataConstrainedLaw:
    """Fit what repeated data are worth: columns `params, tokens, unique_tokens, loss` (counts; nats per token).

    As in the source, runs of one epoch (tokens <= unique_tokens) give the base law, with the options of `loss_law`;
    R* is then fitted to the others, in ln L with Huber's loss (`delta`, or 1e-3). Status `too_few_points` below 4
    repeated runs, the base law's status where that is not ok or `prior_driven`, `flat` where the rows do not
    determine R*, `at_bound` where it ran to its limit. Of more than 50,000 repeated rows, 2,000 drawn at random say
    where to look for the least objective, that of all rows; of more than 20,000, that many say how far R* moves with
    the base law. Raises as `froude.laws.stats.frames.read` does.
    """
    columns = ["params", "tokens", "unique_tokens"]
    sample = read(frame, columns, loss=True, weights=weights, groups=groups)
    plausible(sample, [*columns, "loss"])
    repeated = sample["tokens"] > sample["unique_tokens"]
    once = sample.frame.filter(
        pl.Series(np.isin(np.arange(sample.used.size), np.flatnonzero(sample.used)[~repeated]))
    )
    base = loss_law(once, delta, form=form, prior=prior, weights=weights, groups=groups)

    def law(
        status: Status, reasons: Sequence[str], data: Estimate, size: Estimate, objective: float
    ) -> DataConstrainedLaw:
        return DataConstrainedLaw(
            base, data, size, objective, status=status, reasons=tuple(reasons), sample=sample
        )

    if base.status not in ("ok", "prior_driven"):
        text = f"the law of runs of one epoch: {base.status}: {'; '.join(base.reasons)}"
        return law(base.status, [text], NO_ESTIMATE, NO_ESTIMATE, math.nan)
    if repeated.sum() < MIN_REPEATED:
        few = f"{int(repeated.sum())} runs of repeated data; needs {MIN_REPEATED}"
        return law("too_few_points", [few], NO_ESTIMATE, NO_ESTIMATE, math.nan)
    threshold = 1e-3 if delta is None else delta
    rows = np.flatnonzero(repeated)
    runs = _Repetition.of(base, *(sample[name][rows] for name in columns))
    free = 2 if np.any(runs.extra_size > 0) else 1
    y, row_weights = np.log(sample["loss"][rows]), sample.weights[rows]

    def full(t: Array) -> Array:
        return np.append(t, np.zeros(2 - free))

    def residual(t: Array, some: Rows) -> Array:
        return runs.take(some).log_loss(full(t)) - y[some]

    def jacobian(t: Array, some: Rows) -> Array:
        return runs.take(some).jacobian(full(t))[:, :free]

    starts = [
        np.log(pair[:free]) for pair in ((15.0, 5.0), (3.0, 3.0), (50.0, 50.0), (1.0, 30.0), (100.0, 1.0))
    ]
    limits = (np.full(free, math.log(BOUNDS[0])), np.full(free, math.log(BOUNDS[1])))
    theta, objective = robust.minimise_rows(residual, jacobian, starts, limits, row_weights, threshold)
    slopes, left = jacobian(theta, slice(None)), residual(theta, slice(None))
    if robust.undetermined(slopes):
        return law("flat", ["the repeated runs do not determine R*"], NO_ESTIMATE, NO_ESTIMATE, objective)
    _, codes = np.unique(sample.groups[rows], return_inverse=True)
    covariance = robust.covariance(slopes, left, row_weights, codes, threshold)
    some = robust.drawn(rows.size, FROM_BASE)
    seen = [sample[name][rows[some]] for name in columns]
    covariance += _from_base(base, seen, y[some], row_weights[some], theta, limits, threshold)
    dof = max(int(codes.max()) + 1 - free, 1)
    found = [
        uncertainty.log_interval(float(theta[i]), math.sqrt(max(float(covariance[i, i]), 0.0)), dof)
        for i in range(free)
    ]
    ran = [
        f"{NAMES[i]} ran to its bound {e.value:.3g}"
        for i, e in enumerate(found)
        if not 0.051 < e.value < 9.8e3
    ]
    notes = (
        []
        if free == 2
        else ["no repeated run has parameters beyond the optimum of its data: R*_params is unknown"]
    )
    notes += ["a prior weighs the exponents"] if base.status == "prior_driven" else []
    status: Status = "at_bound" if ran else base.status
    return law(status, [*ran, *notes], found[0], found[1] if free == 2 else NO_ESTIMATE, objective)


def _from_base(
    base: LossLaw,
    rows: Sequence[Array],
    y: Array,
    weights: Array,
    theta: Array,
    limits: tuple[Array, Array],
    delta: float,
) -> Array:
    """Return the covariance of ln R* over the base laws that resampled runs of one epoch, or its posterior, give."""
    draws = base._parameter_draws()
    found = []
    for draw in draws.gather_every(max(draws.height // BASES, 1)).iter_rows(named=True):
        other = replace(base, **{name: draw[name] for name in ("E", "A", "B", "alpha", "beta")})
        runs, fixed = _Repetition.of(other, *rows), np.zeros(2 - theta.size)

        def residual(t: Array, runs: _Repetition = runs, fixed: Array = fixed) -> Array:
            return runs.log_loss(np.append(t, fixed)) - y

        def jacobian(t: Array, runs: _Repetition = runs, fixed: Array = fixed) -> Array:
            return runs.jacobian(np.append(t, fixed))[:, : t.size]

        found.append(robust.minimise(residual, jacobian, [theta], limits, weights, delta)[0])
    return np.atleast_2d(np.cov(np.array(found), rowvar=False))


@dataclass(frozen=True, eq=False)
class _Repetition:
    """Runs as the law sees them: unique tokens, the parameters optimal for those, and the multiples beyond each."""

    base: LossLaw
    size: Array
    extra_size: Array
    data: Array
    extra_data: Array

    @classmethod
    def of(cls, base: LossLaw, params: Array, tokens: Array, unique: Array) -> "_Repetition":
        data = np.minimum(unique, tokens)
        extra = np.expm1(np.log(tokens) - np.log(data))
        # Compute-optimal for U tokens: alpha A / N^alpha = beta B / U^beta (2203.15556, eq. 4).
        log_a, log_b = math.log(base.alpha * base.A), math.log(base.beta * base.B)
        best = (log_a - log_b + base.beta * np.log(data)) / base.alpha
        log_size = np.minimum(best, np.log(params))
        return cls(base, np.exp(log_size), np.expm1(np.log(params) - log_size), data, extra)

    @classmethod
    def of_sample(cls, base: LossLaw, sample: Sample) -> "_Repetition":
        return cls.of(base, sample["params"], sample["tokens"], sample["unique_tokens"])

    def take(self, rows: Rows) -> "_Repetition":
        parts = (self.size, self.extra_size, self.data, self.extra_data)
        return _Repetition(self.base, *(part[rows] for part in parts))

    def effective(self, theta: Array) -> tuple[Array, Array]:
        """Return N' and D' for theta = ln (R*_data, R*_params); without R*_params all parameters count."""
        data = self.data * (1 + _saturated(self.extra_data, theta[0])[0])
        whole = self.size * (1 + self.extra_size)
        if not math.isfinite(theta[1]):
            return whole, data
        return np.maximum(self.size * (1 + _saturated(self.extra_size, theta[1])[0]), self._kept(data)), data

    def _kept(self, data: Array) -> Array:
        """Return the parameters with which `data` give the loss of one epoch: the fewer, the larger `data` are."""
        # A/N'^alpha = A/N^alpha + B/U^beta - B/D'^beta, solved for N'.
        alpha, beta = self.base.alpha, self.base.beta
        whole = self.size * (1 + self.extra_size)
        log_size = math.log(self.base.A) - alpha * np.log(whole)
        log_once = math.log(self.base.B) - beta * np.log(self.data)
        gained = -np.expm1(-beta * (np.log(data) - np.log(self.data)))
        more = gained * np.exp(np.minimum(log_once - log_size, 700.0))
        return np.asarray(whole * np.exp(-np.log1p(more) / alpha))

    def log_loss(self, theta: Array) -> Array:
        return np.log(self._terms(theta)[0])

    def jacobian(self, theta: Array) -> Array:
        """Return d ln L / d theta."""
        loss, size, data = self._terms(theta)
        more_data, slope_data = _saturated(self.extra_data, theta[0])
        more_size, slope_size = _saturated(self.extra_size, theta[1])
        # Where the loss is still that of one epoch, R* does not matter.
        moves = self.size * (1 + more_size) >= self._kept(self.data * (1 + more_data))
        by_data = -self.base.beta * data * slope_data / (1 + more_data)
        by_size = -self.base.alpha * size * slope_size / (1 + more_size)
        return np.column_stack([by_data, by_size]) * (moves / loss)[:, None]

    def _terms(self, theta: Array) -> tuple[Array, Array, Array]:
        n, d = self.effective(theta)
        size = np.exp(math.log(self.base.A) - self.base.alpha * np.log(n))
        data = np.exp(math.log(self.base.B) - self.base.beta * np.log(d))
        return self.base.E + size + data, size, data


def _saturated(extra: Array, log_r: float) -> tuple[Array, Array]:
    """Return R* (1 - exp(-R/R*)), and its derivative in ln R*."""
    r = math.exp(log_r)
    x = extra / r
    left = np.exp(-x)
    return np.asarray(-r * np.expm1(-x)), np.asarray(r * (1 - left - x * left))
