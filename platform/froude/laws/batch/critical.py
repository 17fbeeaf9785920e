"""The critical batch: steps to one target loss, S = S_min (1 + B_c / B) (McCandlish et al. 1812.06162)."""

import math
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from scipy.optimize import least_squares, nnls
from scipy.special import expit

from froude.laws.drawing.numbers import short
from froude.laws.drawing.panel import Axis, Line, Mark, Panel, Points, Series
from froude.laws.law import Law
from froude.laws.stats import uncertainty
from froude.laws.stats.frames import Array, Mask, collect, plausible, read
from froude.laws.stats.results import NO_ESTIMATE, Estimate, Status, positive, table_of

MIN_BATCHES = 3
NEGLIGIBLE = 1e-3  # share of steps below which one of the two terms has vanished
BEYOND = 2.0  # b_crit this many times outside the batches tried is extrapolated
VAGUE = math.log(10)  # an interval of b_crit wider than this factor either way places nothing


@dataclass(frozen=True, eq=False)
class CriticalBatch(Law):
    """A fitted hyperbola, batch in tokens (or whatever unit the frame used).

    `s_min` is the least number of steps, `e_min` the least amount of data in batch units · steps, and
    `b_crit` = e_min / s_min the batch that costs twice the least data; `low` and `high` its 95% interval.
    NaN without a fit. Residuals are steps - fitted.
    """

    s_min: float
    e_min: float
    b_crit: float
    low: float
    high: float
    noise: float
    _estimates: dict[str, Estimate] = field(repr=False)

    def b_star(self, *, linear_from: float, overhead: float = 0.2) -> float:
        """Return the batch that needs (1 + overhead) times the steps of perfect scaling from `linear_from`.

        That is (1 + overhead) · linear_from + overhead · b_crit (Zhang et al. 2410.21676 use 256 sequences
        and 0.2), on the same data about three times smaller than `b_crit`. Both in the frame's unit of
        batch.
        """
        start, share = positive("linear_from", linear_from), positive("overhead", overhead)
        if not math.isfinite(self.b_crit):
            raise self.refusal("No critical batch was fitted")
        return (1 + share) * start + share * self.b_crit

    def steps(self, batch: float) -> float:
        """Return the fitted number of steps to the target loss at `batch`; ValueError where nothing was fitted."""
        if not math.isfinite(self.s_min):
            raise self.refusal()
        return self.s_min + self.e_min / positive("batch", batch)

    def table(self) -> pl.DataFrame:
        """Return `parameter, value, se, low, high` at 95% for s_min, e_min and b_crit."""
        return table_of(self._estimates)

    def residuals(self) -> tuple[Array, Array, Mask] | None:
        if not math.isfinite(self.s_min):
            return None
        batch, steps = self.sample["batch"], self.sample["steps"]
        fitted = self.s_min + self.e_min / batch
        design = np.column_stack([self.s_min / fitted, self.e_min / batch / fitted])
        leverage = np.einsum("ij,ji->i", design, np.linalg.pinv(design))
        marks = uncertainty.studentized_outliers(np.log(steps / fitted), leverage, 2)
        return fitted, steps - fitted, marks

    def drawing(self) -> tuple[Panel, ...]:
        """Steps to the target loss against batch with both asymptotes, and the data that they take."""
        known = math.isfinite(self.s_min)
        done = self.rows.filter(pl.col("fitted").is_not_null()) if known else self.rows
        batch, steps = (done[name].cast(pl.Float64).to_numpy() for name in ("batch", "steps"))
        left: list[Series] = [Points(batch, steps, name="runs")]
        right: list[Series] = [Points(batch, steps * batch, name="runs")]
        title = ""
        if known and batch.size:
            x = np.geomspace(batch.min() / 1.5, batch.max() * 1.5, 150)
            left.append(Line(x, self.s_min + self.e_min / x, name="S = S_min (1 + B_c/B)"))
            right.append(Line(x, self.s_min * x + self.e_min, name="E = E_min (1 + B/B_c)"))
            for series, name, least in ((left, "S_min", self.s_min), (right, "E_min", self.e_min)):
                series.append(Mark(least, axis="y", style="limit", name=f"{name} = {short(least)}"))
                words = f"B_c = {short(self.b_crit)}"
                series.append(Mark(self.b_crit, name=words, interval=(self.low, self.high)))
            title = f"critical batch {short(self.b_crit)}  [{short(self.low)}, {short(self.high)}]"
        x_axis = Axis("batch (tokens)", base=10)
        return (
            Panel(x_axis, Axis("steps to the target loss", base=10), tuple(left), title),
            Panel(x_axis, Axis("data to the target loss (batch × steps, tokens)", base=10), tuple(right)),
        )


def critical_batch(frame: pl.DataFrame | pl.LazyFrame) -> CriticalBatch:
    """Fit steps = s_min (1 + b_crit / batch) in ln steps: columns `batch` and `steps` (to one target loss).

    Status `too_few_points` below three batches, `at_bound` if one of the two terms vanishes (steps do not
    fall, or fall without end), `edge` if b_crit lies more than a factor of 2 outside the batches tried,
    `flat` if its interval spans more than a factor of 10 either way. Raises as `froude.laws.stats.frames.read`
    does.
    """
    sample = read(frame, ["batch", "steps"])
    plausible(sample, ["batch", "steps"])
    log_b, log_s = np.log(sample["batch"]), np.log(sample["steps"])
    turns = {"s_min": np.array([1.0, 0.0]), "e_min": np.array([0.0, 1.0]), "b_crit": np.array([-1.0, 1.0])}
    estimates, noise = dict.fromkeys(turns, NO_ESTIMATE), math.nan
    distinct = np.unique(log_b).size
    status: Status = "too_few_points"
    reasons: tuple[str, ...] = (f"{distinct} batch sizes; needs {MIN_BATCHES}",)
    if distinct >= MIN_BATCHES:
        center = float(log_b.mean())
        theta, covariance, noise = _fit(log_b - center, log_s)
        for name, turn in turns.items():
            value = float(turn @ theta) + (0.0 if name == "s_min" else center)
            se = math.sqrt(max(float(turn @ covariance @ turn), 0.0))
            estimates[name] = uncertainty.log_interval(value, se, log_s.size - 2)
        status, reasons = _verdict(theta, log_b - center, estimates["b_crit"])
    return CriticalBatch(
        s_min=estimates["s_min"].value,
        e_min=estimates["e_min"].value,
        b_crit=estimates["b_crit"].value,
        low=estimates["b_crit"].low,
        high=estimates["b_crit"].high,
        noise=noise,
        status=status,
        reasons=reasons,
        _estimates=estimates,
        sample=sample,
    )


def _fit(log_b: Array, log_s: Array) -> tuple[Array, Array, float]:
    """Return (ln a, ln b) of ln S = ln(a + b/B), their covariance, and the residual sd in ln S."""
    lean = log_s.min() - 12.0  # keeps a vanishing term finite

    def residual(t: Array) -> Array:
        return np.asarray(np.logaddexp(t[0], t[1] - log_b) - log_s)

    def jacobian(t: Array) -> Array:
        share = expit(t[0] + log_b - t[1])
        return np.column_stack([share, 1 - share])

    high = float(np.max(log_s))
    limits = ([lean, lean + float(log_b.min())], [high + 1, high + float(log_b.max()) + 1])
    design = np.stack([np.ones_like(log_b), np.exp(-log_b)], axis=1) / np.exp(log_s - high)[:, None]
    terms, _ = nnls(design, np.ones_like(log_b))
    start = np.log(np.maximum(terms, 1e-5)) + high
    inside = np.clip(start, np.array(limits[0]) + 1e-6, np.array(limits[1]) - 1e-6)
    best = least_squares(
        residual, inside, jacobian, bounds=limits, ftol=1e-14, xtol=1e-13, gtol=1e-15, max_nfev=200
    )
    theta = np.asarray(best.x, dtype=np.float64)
    j = jacobian(theta)
    noise = math.sqrt(2 * float(best.cost) / (log_s.size - 2))
    return theta, np.asarray(noise**2 * np.linalg.pinv(j.T @ j)), noise


def _verdict(theta: Array, log_b: Array, b_crit: Estimate) -> tuple[Status, tuple[str, ...]]:
    ratio = np.exp(theta[1] - log_b - theta[0])  # data term over step term at each batch
    if float(ratio.min()) > 1 / NEGLIGIBLE:
        return "at_bound", ("steps fall as 1/batch throughout: s_min ran to zero; add larger batches",)
    if float(ratio.max()) < NEGLIGIBLE:
        return "at_bound", ("steps do not fall with batch: e_min ran to zero; add smaller batches",)
    if not float(ratio.max()) >= 1 / BEYOND or not float(ratio.min()) <= BEYOND:
        side = "smallest" if float(ratio.max()) < 1 / BEYOND else "largest"
        return "edge", (f"the critical batch {b_crit.value:.4g} lies beyond the {side} batch tried",)
    if not math.log(b_crit.high) - math.log(b_crit.value) <= VAGUE:
        return "flat", ("the 95% interval of the critical batch spans more than a factor of 10 either way",)
    return "ok", ()


def steps_to_target(frame: pl.DataFrame | pl.LazyFrame, target: float) -> pl.DataFrame:
    """Return `batch, steps, lr`: the fewest steps to the loss `target` (nats per token) over learning rates.

    Columns `batch`, `lr`, `steps`, `loss`: one row per decayed branch of a trunk. For each (batch, lr) ln
    steps is interpolated linearly in the loss where it first falls to the target. Seeds, where a column `seed`
    tells them apart, count alike by their mean in ln steps: a trunk that is there ends, and has no later branch to
    average losses over. A rate at which a seed diverges before it is there brings the batch nowhere. A batch that no
    rate brings there, or whose first branch is below it already, has no row: both are censored. Raises as
    `froude.laws.stats.frames.read` does.
    """
    goal = positive("target", target)
    sample = read(collect(frame), ["batch", "lr", "steps"], loss=True, setting="lr", within=["batch"])
    known = np.isfinite([sample.columns[name] for name in ("batch", "lr", "steps")]).all(axis=0)
    counted = sample.used | (sample.diverged & known)
    batch, lr, steps, loss = (sample.columns[name][counted] for name in ("batch", "lr", "steps", "loss"))
    loss = np.where(sample.used[counted], loss, math.inf)
    used = sample.frame.filter(pl.Series(counted))
    seed = np.zeros(lr.size)
    if "seed" in used.columns:
        seed = used["seed"].rank("dense").fill_null(0).to_numpy()
    best: list[tuple[float, float, float]] = []
    for b in np.unique(batch):
        reached: list[tuple[float, float]] = []
        for rate in np.unique(lr[batch == b]):
            here = (batch == b) & (lr == rate)
            each = (here & (seed == one) for one in np.unique(seed[here]))
            found = [_first(*mean_of_equal(steps[rows], loss[rows]), goal) for rows in each]
            if 0.0 in found:  # there before its first branch
                reached = []
                break
            if max(found) < math.inf:
                fewest = math.exp(float(np.mean(np.log(found)))) if len(found) > 1 else found[0]
                reached.append((fewest, float(rate)))
        if reached:
            best.append((float(b), *min(reached)))
    return pl.DataFrame(best, schema=dict.fromkeys(("batch", "steps", "lr"), pl.Float64), orient="row")


def _first(at: Array, mean: Array, goal: float) -> float:
    """Steps at which a trunk falls to the loss: 0 if it is below it from its first branch on, infinite if never."""
    below = np.flatnonzero(mean <= goal)
    if not below.size or math.isinf(mean[: below[0] + 1].max()):
        return math.inf
    i = int(below[0])
    if i == 0:
        return float(at[0]) if mean[0] == goal else 0.0
    share = float((mean[i - 1] - goal) / (mean[i - 1] - mean[i]))
    last, here = float(at[i - 1]), float(at[i])
    return float(min(max(last * (here / last) ** share, last), here))


def mean_of_equal(steps: Array, loss: Array) -> tuple[Array, Array]:
    """Return the distinct steps, ascending, and the mean loss at each (several seeds are several rows)."""
    at, index = np.unique(steps, return_inverse=True)
    return at, np.bincount(index, loss, at.size) / np.bincount(index, minlength=at.size)
