"""The scaling law of the loss, L = E + A/params^alpha + B/tokens^beta (Hoffmann et al. 2203.15556)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import polars as pl

from froude.laws.drawing import rows as drawn
from froude.laws.drawing.panel import Mark, Note, Panel
from froude.laws.law import Law
from froude.laws.loss import fit, resampled
from froude.laws.loss.calibration import Calibration, HeldOut, calibrate, held_out
from froude.laws.loss.comparator import Comparator, comparator_of
from froude.laws.loss.draws import WEAK, ExponentPrior, Posterior
from froude.laws.loss.posterior import modes, posterior
from froude.laws.loss.reach import MOST_ALONE, RATIO, Reach
from froude.laws.stats import uncertainty
from froude.laws.stats.frames import Array, Mask, Sample, plausible, read
from froude.laws.stats.results import Allocation, Prediction, Status, open_unit, positive

MIN_ROWS, MIN_ROWS_TIED, MIN_ROWS_PRIOR = 8, 5, 4
REPLICATES = 300  # of the bootstrap behind the parameters' intervals
# ln of a factor of tokens per parameter within which either term may stand for the other: the exchange moves a loss by
# less than half of that times alpha times the term's share, .6% at .35 and .15: the noise of a run.
ONE_RATIO = math.log(1.25)
LEFT_OUT_GROUPS = 400  # with more groups than this, one of them cannot move the fit: no refits for `.rows`


@dataclass(frozen=True, eq=False)
class LossLaw(Law):
    """A fitted loss law: E, A, B, alpha, beta for params N and tokens D, losses in nats per token.

    `objective` is the sum of Huber terms of ln(fitted) - ln(loss); with `delta=None` half the sum of
    squares in nats. With a prior, the floats are the posterior means and `free` is the fit with free
    exponents. Where nothing could be fitted they are NaN. Residuals are loss - fitted.
    """

    E: float
    A: float
    B: float
    alpha: float
    beta: float
    objective: float
    delta: float | None
    form: Literal["free", "tied"]
    prior: ExponentPrior | None
    _problem: fit.Problem | None = field(repr=False)
    _theta: Array | None = field(repr=False)
    _drawn: Posterior | None = field(default=None, repr=False)
    _cache: dict[tuple[int, int], pl.DataFrame] = field(default_factory=dict, repr=False)

    @cached_property
    def free(self) -> "LossLaw | None":
        """The fit with free exponents to the same rows, to compare with a posterior; None for a law without a prior."""
        return _fit(self.sample, self.delta, "free", None) if self.prior is not None else None

    @property
    def outweighs_prior(self) -> bool:
        """Whether the rows leave each exponent no more than a third of its prior's standard deviation; True without."""
        if self.prior is None or self._drawn is None:
            return self.prior is None
        pairs = ((self._drawn.alpha, self.prior.alpha), (self._drawn.beta, self.prior.beta))
        return all(float(draws.std()) <= sd / 3 for draws, (_, sd) in pairs)

    @cached_property
    def comparator(self) -> Comparator:
        """What the same rows say under published exponents: to hold a forecast against."""
        return comparator_of(self.sample)

    def predict(
        self, *, params: float, tokens: float, level: float = 0.9, batch: float | None = None
    ) -> Prediction:
        """Forecast the loss of one new run.

        `params`, `tokens` and, if given, `batch` (tokens) are positive numbers, `level` lies in (0, 1), else
        ValueError; also ValueError where the status says that there is no law. The forecast is the median of the
        posterior predictive distribution (`froude.laws.loss.posterior`) under the law's prior, or a weak one; its
        interval holds what the rows leave open, the law's own drift and the noise of one run, widened by what the
        largest runs of the frame ask for (`froude.laws.loss.calibration`). `batch` changes only the extrapolation
        ratios; the frame then needs that column.
        """
        n, d = positive("params", params), positive("tokens", tokens)
        b = positive("batch", batch) if batch is not None else None
        level = open_unit("level", level)
        problem, _ = self._fit
        at = np.array([math.log(n) - problem.n_mean]), np.array([math.log(d) - problem.d_mean])
        draws = self._posterior.log_losses(*at, np.random.default_rng(0))[:, 0]
        middle, factor = float(np.median(draws)), self._calibration.factor
        ends = (middle + factor * (end - middle) for end in uncertainty.quantiles(draws, level))
        loss, low, high = (uncertainty.bounded_exp(end) for end in (middle, *ends))
        reach = Reach.of(self.sample, n, d)
        reasons = self._uncertified(reach)
        if not (0 < low and math.isfinite(high)):
            reasons += ("the interval is beyond all bounds",)
        if (1 - level) / 2 * draws.size < 1:
            reasons += (f"{draws.size} draws do not tell where an interval of {level:.6g} ends",)
        ratios = reach.ratios if b is None else {**reach.ratios, "batch": self._batches(b)}
        others = self.comparator.losses(params=n, tokens=d)
        noise = float(np.median(self._posterior.noises(*at)))
        return Prediction(loss, low, high, level, not reasons, reasons, ratios, *others, noise)

    def _batches(self, batch: float) -> float:
        return batch / float(read(self.sample.frame.filter(self.sample.used), ["batch"])["batch"].max())

    def bootstrap(self, n: int, seed: int = 0) -> pl.DataFrame:
        """Refit on `n` resamples of the groups (rows, without `groups=`) with replacement.

        Columns: `replicate, E, A, B, alpha, beta, objective`, one row per replicate, NaN-free; with a prior
        each has posterior means. Each replicate is fitted to the tolerances of the law itself (looser ones
        shrink the spread), or, of more than 10,000 groups, one step from the fit to all; of more than 40,000
        rows, to a model of them about that fit (`froude.laws.loss.resampled`), whose spread is within 15% of that
        of refits where the rows of a group scatter on their own, and within a third where whole groups do, or at
        a bound. With a prior the posterior, and so each replicate, sees 800 rows at most, drawn at random.
        """
        if isinstance(n, bool) or n != int(n) or n < 1:
            raise ValueError(f"n must be a positive whole number of replicates, but got {n!r}.")
        if not hasattr(seed, "__index__") or seed < 0:
            raise ValueError(f"seed must be a whole number, zero or more, but got {seed!r}.")
        problem, theta = self._fit
        key = (n, seed)
        if key not in self._cache:
            rng = np.random.default_rng(seed)
            if self.prior is None:
                thetas, values = resampled.bootstrap(problem, self.sample.groups, theta, n, rng)
            else:
                thetas, values = modes(problem, self.prior, self.sample.groups, n, rng)
            names = ("E", "A", "B", "alpha", "beta", "objective")
            rows = [(*problem.unpack(best), value) for best, value in zip(thetas, values, strict=True)]
            table = pl.DataFrame(dict(zip(names, np.array(rows).T, strict=True)))
            self._cache[key] = table.with_row_index("replicate")
        return self._cache[key]

    def held_out(self) -> HeldOut:
        """Return how many larger runs a certificate can be calibrated on, and what it lacks."""
        return held_out(self._fit[0], self.sample.groups, MOST_ALONE)

    def covariance(self, log_params: Array, log_tokens: Array) -> tuple[Array, Array, float]:
        """Return the points' covariance of ln loss, the variance of one run at each, and drift's part at the last."""
        problem, _ = self._fit
        n, d = log_params - problem.n_mean, log_tokens - problem.d_mean
        drawn = self._posterior
        means = drawn.log_means(n, d)
        drift = drawn.drifts(n[-1:], d[-1:])[:, 0]
        parts = float(drift.var()), float((means[:, -1] - drift).var())
        return np.cov(means, rowvar=False), (drawn.noises(n, d) ** 2).mean(axis=0), parts[0] / sum(parts)

    def compute_optimal(self, *, flops: float) -> Allocation:
        """Split a budget of `flops` = 6·params·tokens for the least predicted loss (2203.15556, eq. 4).

        ValueError for a budget that is not positive and finite, and where the status leaves no split.
        """
        if self.status not in ("ok", "prior_driven"):
            raise self.refusal("No split is known")
        budget = math.log(positive("flops", flops) / 6)
        problem, theta = self._fit
        a, b, _, alpha, beta = (float(v) for v in theta)
        log_a, log_b = a + alpha * problem.n_mean, b + beta * problem.d_mean
        log_n = (math.log(alpha / beta) + log_a - log_b + beta * budget) / (alpha + beta)
        return Allocation(uncertainty.bounded_exp(log_n), uncertainty.bounded_exp(budget - log_n))

    def table(self) -> pl.DataFrame:
        """Return `parameter, value, se, low, high, unit`, at 95%, from the posterior or from the bootstrap."""
        units = {
            "E": "nats/token",
            "A": "nats·params^alpha",
            "B": "nats·tokens^beta",
            "alpha": "1",
            "beta": "1",
        }
        values = {name: float(getattr(self, name)) for name in units}
        if self._theta is None:
            spread = dict.fromkeys(units, (math.nan, math.nan, math.nan))
        else:
            draws = self._parameter_draws()
            spread = {
                name: (
                    uncertainty.standard_deviation(draws[name].to_numpy()),
                    *uncertainty.quantiles(draws[name].to_numpy(), uncertainty.LEVEL),
                )
                for name in units
            }
        return pl.DataFrame(
            [(name, values[name], *spread[name], unit) for name, unit in units.items()],
            schema=["parameter", "value", "se", "low", "high", "unit"],
            orient="row",
        )

    def residuals(self) -> tuple[Array, Array, Mask] | None:
        if self._problem is None or self._theta is None:
            return None
        fitted = self._problem.fitted(self._theta)
        return fitted, self.sample["loss"] - fitted, self._outliers()

    def curve(self, params: float, tokens: Array) -> Array:
        """Return the law's loss at one size for many horizons, nats per token; NaN where nothing was fitted."""
        return np.asarray(self.E + self.A / params**self.alpha + self.B / tokens**self.beta)

    def drawing(self) -> tuple[Panel, ...]:
        """Losses against tokens with the law's curve for each size, and the residuals."""
        rows = drawn.thinned(self.rows.filter(drawn.SIZED))
        known = math.isfinite(self.E)
        series = drawn.losses(rows, self.curve if known else None, drawn.around(rows))
        if known and rows.height:
            series.append(Mark(self.E, axis="y", style="limit"))
            left = drawn.least(rows, "tokens") / 1.5
            series.append(Note(f"E = {self.E:.3f}", left, self.E, style="limit"))
        formula = f"L = {self.E:.3g} + {self.A:.3g}/N^{self.alpha:.3g} + {self.B:.3g}/D^{self.beta:.3g}"
        return drawn.loss_panel(rows, series, formula if known else ""), drawn.residual_panel(rows)

    @property
    def _fit(self) -> tuple[fit.Problem, Array]:
        if self._problem is None or self._theta is None:
            raise self.refusal()
        return self._problem, self._theta

    @cached_property
    def _posterior(self) -> Posterior:
        return self._drawn or posterior(self._fit[0], self.prior or WEAK, self.sample.groups)

    @cached_property
    def _calibration(self) -> Calibration:
        return calibrate(self._fit[0], self.prior or WEAK, self.sample.groups, MOST_ALONE)

    def _parameter_draws(self) -> pl.DataFrame:
        problem = self._fit[0]
        if self.prior is None:
            return self.bootstrap(REPLICATES)
        draws = self._posterior
        size = draws.size * np.exp(draws.alpha * problem.n_mean)
        data = draws.data * np.exp(draws.beta * problem.d_mean)
        return pl.DataFrame(
            {"E": draws.floor, "A": size, "B": data, "alpha": draws.alpha, "beta": draws.beta}
        )

    def _outliers(self) -> Mask:
        problem, theta = self._fit
        groups = self.sample.groups
        left_out = np.log(problem.loss) - np.log(problem.fitted(theta))
        n = self.sample.n_groups
        if self.prior is None and 3 < n <= LEFT_OUT_GROUPS:
            left_out = resampled.left_out(problem, groups, theta)
        return uncertainty.outliers(left_out)

    def _uncertified(self, reach: Reach) -> tuple[str, ...]:
        unsound = self.status not in ("ok", "prior_driven")
        status = [f"status {self.status}: {'; '.join(self.reasons)}"] if unsound else []
        if self._posterior.contradicted:
            status.append("the rows contradict a law whose terms E, A and B are all above zero")
        return (*status, *reach.refusals(), *self._calibration.refusals())


def loss_law(
    frame: pl.DataFrame | pl.LazyFrame,
    delta: float | None = 1e-3,
    *,
    form: Literal["free", "tied"] = "free",
    prior: Mapping[str, tuple[float, float]] | ExponentPrior | None = None,
    weights: str | None = None,
    groups: str | Sequence[str] | None = None,
) -> LossLaw:
    """Fit L = E + A/params^alpha + B/tokens^beta to the columns `params, tokens, loss` (counts; nats per token).

    `delta` is the Huber threshold on ln L (None: least squares of L). `form="tied"` sets alpha = beta.
    `weights` names a column that multiplies each row's term, `groups` columns whose rows are resampled
    together. `prior`, as {"alpha": (mean, sd), "beta": (mean, sd)}, gives a posterior on relative residuals
    instead, status `prior_driven`. Fits need 8 rows, 3 sizes and 3 horizons (tied: 5 rows, 2 and 2; prior:
    4 rows, 2 and 2), else `too_few_points`. Raises TypeError and ValueError as `froude.laws.stats.frames.read`
    does.
    """
    if delta is not None:
        delta = positive("delta", delta)
    if form not in ("free", "tied"):
        raise ValueError(f'form must be "free" or "tied", but got {form!r}.')
    belief = ExponentPrior.of(prior) if prior is not None else None
    if belief is not None and form == "tied":
        raise ValueError('prior needs form="free": it holds a belief for each exponent.')
    sample = read(frame, ["params", "tokens"], loss=True, weights=weights, groups=groups)
    plausible(sample, ["params", "tokens", "loss"])
    return _fit(sample, delta, form, belief)


def _fit(
    sample: Sample, delta: float | None, form: Literal["free", "tied"], prior: ExponentPrior | None
) -> LossLaw:
    params, tokens, loss = sample["params"], sample["tokens"], sample["loss"]

    def law(
        status: Status,
        reasons: Sequence[str],
        problem: fit.Problem | None,
        theta: Array | None,
        drawn: Posterior | None = None,
    ) -> LossLaw:
        values, objective = (math.nan,) * 5, math.nan
        if problem is not None and theta is not None:
            values, objective = problem.unpack(theta), problem.objective(theta)
        big_e, big_a, big_b, alpha, beta = values
        return LossLaw(
            E=big_e,
            A=big_a,
            B=big_b,
            alpha=alpha,
            beta=beta,
            objective=objective,
            status=status,
            reasons=tuple(reasons),
            delta=delta,
            form=form,
            prior=prior,
            sample=sample,
            _problem=problem,
            _theta=theta,
            _drawn=drawn,
        )

    tied = form == "tied"
    need, distinct = (MIN_ROWS_PRIOR, 2) if prior else (MIN_ROWS_TIED, 2) if tied else (MIN_ROWS, 3)
    sizes, horizons = np.unique(params).size, np.unique(tokens).size
    if sample.size < need or sizes < distinct or horizons < distinct:
        have = f"{sample.size} rows, {sizes} sizes, {horizons} horizons"
        return law("too_few_points", [f"{have}; needs {need}, {distinct}, {distinct}"], None, None)
    if np.ptp(loss) <= 1e-12 * loss.max():
        return law("flat", ["all losses are equal"], None, None)
    problem = fit.Problem.of(params, tokens, loss, sample.weights, delta, tied)
    notes = []
    ratio = np.exp(np.log(tokens) - np.log(params))
    if ratio.min() < RATIO[0] or ratio.max() > RATIO[1]:
        notes.append(
            f"tokens per parameter span {ratio.min():.3g} to {ratio.max():.3g}, outside {RATIO[0]:g} to {RATIO[1]:g}"
        )
    if prior is not None:
        drawn = posterior(problem, prior, sample.groups)
        return law("prior_driven", ["a prior weighs the exponents", *notes], problem, drawn.theta, drawn)
    theta, _ = fit.solve(problem)
    found = fit.hits_bound(problem, theta)
    if found:
        return law("at_bound", [*found, *notes], problem, theta)
    if np.ptp(np.log(ratio)) < ONE_RATIO:
        swap = f"tokens per parameter span {ratio.min():.3g} to {ratio.max():.3g}: either term may stand for the other"
        return law("flat", [f"{swap}; add runs of other ratios", *notes], problem, theta)
    if lone := fit.lone_arm(problem, sample.groups):
        why = f"an exponent rests on the only run of {lone}; add a run there, or another size and horizon"
        return law("flat", [why, *notes], problem, theta)
    if fit.undetermined(problem, theta):
        return law("flat", ["the rows do not determine all five parameters", *notes], problem, theta)
    return law("ok", notes, problem, theta)
