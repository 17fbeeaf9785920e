"""The gradient noise scale of a run, from squared gradient norms at two batch sizes (McCandlish et al. 1812.06162).

A batch of b has E|g_b|² = |G|² + S/b with S the trace of the gradient's covariance per token, so each step gives an
unbiased estimate of both; B_simple = S / |G|² is the ratio of their averages. An average of single steps' ratios is
biased: |G|² of one step is mostly noise, and negative at times.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl
from scipy.signal import lfilter

from froude.laws.drawing import rows as drawn
from froude.laws.drawing.numbers import short
from froude.laws.drawing.panel import Axis, Line, Mark, Panel, Series
from froude.laws.law import Law
from froude.laws.stats import uncertainty
from froude.laws.stats.frames import Array, Mask, Sample, collect, plausible, read
from froude.laws.stats.results import NO_ESTIMATE, Estimate, Status, positive

MIN_STEPS = 100
CLEAR = 2.0  # standard errors that |G|² must stand above zero
BLOCK, MIN_BLOCKS = 50, 10  # steps drawn together: what drifts during training is alike within a block
TREND = 0.01  # half-life of the trend, as a share of the steps, where none is asked for

COLUMNS = ("step", "batch_small", "batch_big", "small_sq_norm", "big_sq_norm")


@dataclass(frozen=True)
class BatchRamp:
    """What a trend signal says of a batch in tokens: by what to multiply it, and the rate; both 1 while it may stay."""

    batch: float
    noise_scale: float
    factor: int
    lr_factor: float

    def line(self) -> str:
        """The advice, and what it is worth."""
        seen = f"{self.noise_scale:,.0f} tokens, {self.noise_scale / self.batch:.2g} x the batch"
        what = (
            f"try a batch of {self.factor * self.batch:,.0f} at {self.lr_factor:.2f} x the rate, on a branch first"
            if self.factor > 1
            else "no reason to raise the batch"
        )
        return f"{seen}: {what} (a trend signal, not a measured critical batch)"


@dataclass(frozen=True, eq=False)
class NoiseScale(Law):
    """A gradient noise scale in the batch's unit (tokens): `noise_scale` = `trace` / `grad_sq`, all at 95%.

    `grad_sq` is the squared norm of the true gradient, `trace` the trace of the covariance of one token's
    gradient. `noise_scale` is published with status ok only; `half_life` is in steps, None where all steps
    count alike. It is a trend signal: measured critical batches can be orders of magnitude larger (Merrill et
    al. 2505.23971). Fitted to a row is grad_sq + trace / batch_big, its residual big_sq_norm less that.
    """

    noise_scale: Estimate
    grad_sq: Estimate
    trace: Estimate
    half_life: float | None

    def residuals(self) -> tuple[Array, Array, Mask] | None:
        if not math.isfinite(self.grad_sq.value):
            return None
        fitted = self.grad_sq.value + self.trace.value / self.sample["batch_big"]
        residual = self.sample["big_sq_norm"] - fitted
        # Without its own step the averages move by its weight: a step that made up the average would hide in it.
        rest = np.maximum(1 - _weights(self.sample["step"], self.half_life), 1e-9)
        return fitted, residual, uncertainty.outliers(residual / rest / np.abs(fitted))

    @cached_property
    def trend(self) -> pl.DataFrame:
        """The noise scale as training goes: `step, noise_scale, grad_sq, trace`, moving averages over earlier steps.

        Their half-life is `half_life`, or 1% of the steps. `noise_scale` is null before 100 steps and where
        the average |G|² is not above two standard errors.
        """
        order = np.argsort(self.sample["step"], kind="stable")
        grad_sq, trace = (values[order] for values in _unbiased(self.sample))
        keep = 0.5 ** (1 / (self.half_life or max(TREND * order.size, 1.0)))
        weight = _moving(np.ones(order.size), keep)
        means = [_moving(values, keep) / weight for values in (grad_sq, grad_sq**2, trace)]
        variance = np.maximum(means[1] - means[0] ** 2, 0.0)
        se = np.sqrt(variance * _moving(np.ones(order.size), keep**2)) / weight
        clear = (np.arange(order.size) >= MIN_STEPS - 1) & (means[0] > CLEAR * se) & (means[2] > 0)
        scale = np.where(clear, means[2] / np.where(clear, means[0], 1.0), np.nan)
        columns = {"step": self.sample["step"][order], "noise_scale": scale}
        frame = pl.DataFrame({**columns, "grad_sq": means[0], "trace": means[2]})
        return frame.with_columns(pl.col("noise_scale").fill_nan(None))

    def ramp(self, batch: float) -> BatchRamp:
        """Advise on a batch of `batch` tokens: to double it, at the root of two times the rate, or to keep it.

        Twice only where all of the 95% interval lies above that: as a rule a measured critical batch is larger still,
        so what this asks for is safe to try, and what it doesn't ask for may be, too. The step of two and the root are
        those of Merrill et al. 2505.23971. ValueError without a noise scale.
        """
        batch = positive("batch", batch)
        if self.status != "ok":
            raise ValueError(
                f"Advice needs a noise scale, but its status is {self.status}: {self.reasons[0]}."
            )
        factor = 2 if self.noise_scale.low > 2 * batch else 1
        return BatchRamp(batch, self.noise_scale.value, factor, math.sqrt(factor))

    def drawing(self) -> tuple[Panel, ...]:
        """The noise scale as training goes, and the estimate; the same of the squared norm of the true gradient."""
        scale, trend = self.noise_scale, self.trend
        if trend.height > drawn.DRAWN_ROWS:
            trend = trend.gather_every(trend.height // drawn.DRAWN_ROWS + 1)
        title = f"noise scale {short(scale.value)}  [{short(scale.low)}, {short(scale.high)}]"
        steps = trend["step"].to_numpy()
        room = 0.05 * float(np.ptp(steps)) if steps.size > 1 else 0.0
        x_axis = Axis("step", limits=(steps[0] - room, steps[-1] + room) if room else None)
        found = []
        for name, words, estimate in (
            ("noise_scale", "noise scale (tokens)", scale),
            ("grad_sq", "|G|² (squared norm of the true gradient)", self.grad_sq),
        ):
            series: list[Series] = []
            if trend[name].drop_nulls().len() > 1:  # there is none over few steps
                series.append(Line(steps, trend[name], style="along", name="moving average"))
            if math.isfinite(estimate.value):
                mark = Mark(estimate.value, "y", name="estimate", span="95% interval")
                if math.isfinite(estimate.low) and math.isfinite(estimate.high):
                    mark = replace(mark, interval=(estimate.low, estimate.high))
                series.append(mark)
            found.append(Panel(x_axis, Axis(words, reach=math.inf), tuple(series)))
        return replace(found[0], title=title if math.isfinite(scale.value) else ""), found[1]


def noise_scale(frame: pl.DataFrame | pl.LazyFrame, *, half_life: float | None = None) -> NoiseScale:
    """Estimate the noise scale: columns `step, batch_small, batch_big, small_sq_norm, big_sq_norm`, a row per step.

    `small_sq_norm` is the mean of the squared norms of the gradients of batches of `batch_small` tokens,
    `big_sq_norm` that of their mean over `batch_big` tokens, both before clipping. By default all steps count
    alike; with `half_life` (at least 1 step) the averages are exponential ones at the last step. Intervals are
    those of a bootstrap over blocks of up to 50 steps. Status `too_few_points` below 100 steps (counted by their
    weights), `flat` where |G|² is not above two standard errors, `at_bound` where S is not: the norms show no
    noise. Steps at which nothing was measured (all but `step` null, as in `Study.steps()`) are left out. Raises as
    `froude.laws.stats.frames.read` does, and ValueError unless batch_big > batch_small.
    """
    life = None if half_life is None else positive("half_life", half_life)
    if life is not None and life < 1:
        raise ValueError(f"half_life must be at least 1 step, but got {half_life!r}.")
    table = collect(frame)
    if set(COLUMNS) <= set(table.columns):
        table = table.filter(pl.any_horizontal(pl.col(COLUMNS[1:]).is_not_null()))
    sample = read(table, COLUMNS)
    plausible(sample, COLUMNS[1:])
    wrong = np.flatnonzero(~(sample["batch_big"] > sample["batch_small"]))
    if wrong.size:
        small, big = (float(sample[name][wrong[0]]) for name in ("batch_small", "batch_big"))
        raise ValueError(
            f"Column 'batch_big' must be above batch_small, but a row has {big:g} and {small:g}. big_sq_norm is of the"
            " mean gradient over all of a step's batches, small_sq_norm of one of them."
        )

    def result(
        status: Status, reason: str, scale: Estimate, grad_sq: Estimate, trace: Estimate
    ) -> NoiseScale:
        reasons = (reason,) if reason else ()
        return NoiseScale(scale, grad_sq, trace, life, status=status, reasons=reasons, sample=sample)

    weights = _weights(sample["step"], life) if sample.size else np.empty(0)
    steps = int(1 / float((weights**2).sum()) + 1e-6) if sample.size else 0
    if steps < MIN_STEPS:
        few = f"{steps} steps{'' if life is None else ' within reach of the half-life'}; needs {MIN_STEPS}"
        return result("too_few_points", few, NO_ESTIMATE, NO_ESTIMATE, NO_ESTIMATE)
    means, covariance, dof = _between_blocks(sample, weights, min(BLOCK, steps // MIN_BLOCKS))
    se = np.sqrt(np.diag(covariance))
    grad_sq, trace = (uncertainty.interval(float(means[i]), float(se[i]), dof) for i in (0, 1))
    checks: tuple[tuple[Status, str, Estimate], ...] = (("at_bound", "S", trace), ("flat", "|G|²", grad_sq))
    for status, name, estimate in checks:
        if not (estimate.value > 0 and estimate.value > CLEAR * estimate.se):
            lost = f"{name} is {estimate.value:.3g} ± {estimate.se:.3g}, not above {CLEAR:g} standard errors"
            return result(status, lost, NO_ESTIMATE, grad_sq, trace)
    # |G|² / S is nearly normal, its inverse is not: the interval is that of the ratio, turned over.
    value = grad_sq.value / trace.value
    turn = np.array([1.0, -value])
    ratio = uncertainty.interval(value, math.sqrt(max(turn @ covariance @ turn, 0.0)) / trace.value, dof)
    scale = Estimate(
        1 / ratio.value,
        ratio.se / ratio.value**2,
        1 / ratio.high,
        1 / ratio.low if ratio.low > 0 else math.inf,
    )
    return result("ok", "", scale, grad_sq, trace)


def _unbiased(sample: Sample) -> tuple[Array, Array]:
    """Return each step's estimates of |G|² and of S (Appendix A.1 of 1812.06162)."""
    small, big = sample["batch_small"], sample["batch_big"]
    norm_small, norm_big = sample["small_sq_norm"], sample["big_sq_norm"]
    return (big * norm_big - small * norm_small) / (big - small), (norm_small - norm_big) / (
        1 / small - 1 / big
    )


def _weights(step: Array, half_life: float | None) -> Array:
    weights = np.ones(step.size) if half_life is None else np.exp2((step - step.max()) / half_life)
    return np.asarray(weights / weights.sum())


def _moving(values: Array, keep: float) -> Array:
    return np.asarray(lfilter([1.0], [1.0, -keep], values))


def _between_blocks(sample: Sample, weights: Array, length: int) -> tuple[Array, Array, int]:
    """Return the weighted means of |G|² and S, their covariance, and its degrees of freedom.

    The covariance is the one that a bootstrap over blocks of `length` steps converges to (Künsch 1989).
    """
    order = np.argsort(sample["step"], kind="stable")
    values = np.column_stack(_unbiased(sample))[order]
    share = weights[order, None]
    means = (share * values).sum(axis=0)
    starts = np.arange(0, order.size - order.size % length, length)
    sums = np.add.reduceat(share * (values - means), starts, axis=0)
    blocks = 1 / float((np.add.reduceat(share, starts, axis=0) ** 2).sum())
    return means, sums.T @ sums * blocks / (blocks - 1), round(blocks) - 1
