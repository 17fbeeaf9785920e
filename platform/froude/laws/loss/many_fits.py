"""Many fits of the loss law to the same rows at once: all starts of a search, all replicates of a bootstrap.

scipy's optimizers take one problem a call, and a call costs more in Python than the arithmetic of a few hundred
rows. Here every step is one array operation over all fits: Newton's method with exact second derivatives, damped
as by Levenberg and Marquardt, within the bounds of `Problem`. It moves E, A' and B' themselves, as
`fit.descend` does. What has not settled when the steps run out is left to scipy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from froude.laws.loss.fit import EXACT, EXPONENTS, TERM_REACH, VANISHED, Problem, descend, exponentials, logs
from froude.laws.stats.frames import Array

STEPS = 400  # most fits settle within 20; fewer than ten rows leave curved valleys that take hundreds
QUICK_STEPS = 50  # where only the spread of many fits is asked for
SETTLED = 1e-12  # a step that promises a smaller share of the objective ends a fit
DAMPING = 0.01  # the least: below it, a step too long for a valley's bend costs more than it ever gains
SMOOTH = 1e3  # a Huber threshold that no residual of ln L passes
ELEMENTS = 150_000  # fits × rows worked on at a time: a few arrays of this size stay in a core's cache
TIE = np.array([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1]])


@dataclass(frozen=True, eq=False)
class _Local:
    """The objective of each fit around a point: value, gradient, Hessian and Gauss-Newton matrix."""

    value: Array
    gradient: Array
    hessian: Array
    gauss: Array


@dataclass(frozen=True, eq=False)
class Shift:
    """Quadratics about `at`, by A', B', E and the exponents: `slopes` (fits × 5) and `bends` (fits × 5 × 5)."""

    at: Array
    slopes: Array
    bends: Array

    def of(self, fits: NDArray[np.intp] | slice) -> Shift:
        return Shift(self.at, self.slopes[fits], self.bends[fits])

    def added(self, local: _Local, x: Array) -> _Local:
        """Return `local` with the quadratics in value, gradient and Hessian."""
        away = x - self.at
        bent = (self.bends @ away[:, :, None])[:, :, 0]
        value = local.value + ((self.slopes + 0.5 * bent) * away).sum(axis=1)
        return _Local(value, local.gradient + self.slopes + bent, local.hessian + self.bends, local.gauss)


def descend_many(
    problem: Problem, weights: Array, starts: Array, *, quick: bool = False, shift: Shift | None = None
) -> tuple[Array, Array]:
    """Fit once for each row of `weights` (fits × rows; zero leaves a row out) from that row of `starts` (thetas).

    Returns thetas (fits × 5) and objectives (fits), to the tolerances of `fit.descend`; a quick fit stays where
    it is after QUICK_STEPS. `shift` is added to the objectives, and such fits stay where they are after STEPS.
    """
    size = max(1, ELEMENTS // problem.loss.size)
    parts = [
        _descend(
            problem,
            weights[i : i + size],
            starts[i : i + size],
            quick,
            shift.of(slice(i, i + size)) if shift is not None else None,
        )
        for i in range(0, len(weights), size)
    ]
    return np.concatenate([theta for theta, _ in parts]), np.concatenate([value for _, value in parts])


def refit_many(
    problem: Problem, weights: Array, starts: Array, *, quick: bool = False
) -> tuple[Array, Array]:
    """As `descend_many`, from each start and from the least squares fit of ln L; the better of the two counts.

    Where a resample has left its start's valley, least squares, with its wide bowl, finds the other: on 300
    resamples of the Chinchilla rows five jittered starts each find nothing better.
    """
    near, value = descend_many(problem, weights, starts, quick=quick)
    if problem.delta is None:
        return near, value
    smooth, _ = descend_many(replace(problem, delta=SMOOTH), weights, starts, quick=quick)
    far, other = descend_many(problem, weights, smooth, quick=quick)
    better = other < value
    return np.where(better[:, None], far, near), np.where(better, other, value)


def _descend(
    problem: Problem, weights: Array, starts: Array, quick: bool, shift: Shift | None
) -> tuple[Array, Array]:
    low, high = bounds(problem, weights)

    def local(rows: NDArray[np.intp], x: Array) -> _Local:
        found = local_of(problem, weights[rows], x)
        return shift.of(rows).added(found, x) if shift is not None else found

    if problem.tied:
        starts = np.concatenate([starts[:, :4], starts[:, 3:4]], axis=1)
    x = np.clip(exponentials(starts), low, high)
    value, damping = np.empty(len(x)), np.full(len(x), 0.1)
    settled = np.zeros(len(x), dtype=bool)
    active = np.arange(len(x))
    here = local(active, x)
    value[:] = here.value
    for _ in range(QUICK_STEPS if quick else STEPS):
        step, promise = _step(problem, here, x[active], damping[active], low[active], high[active])
        done = (promise <= SETTLED * value[active]) | (value[active] < EXACT)
        settled[active[done]] = True
        keep = ~done
        if not keep.any():
            break
        active, step, promise = active[keep], step[keep], promise[keep]
        here = _Local(here.value[keep], here.gradient[keep], here.hessian[keep], here.gauss[keep])
        moved = np.clip(x[active] + step, low[active], high[active])
        there = local(active, moved)
        better = there.value < value[active]
        share = np.where(better, (value[active] - there.value) / promise, 0.0)
        change = np.where(share > 0.75, 0.1, np.where(share > 0.25, 0.5, np.where(better, 2.0, 8.0)))
        damping[active] = np.maximum(damping[active] * change, DAMPING)
        x[active[better]], value[active[better]] = moved[better], there.value[better]
        for name in ("value", "gradient", "hessian", "gauss"):
            getattr(here, name)[better] = getattr(there, name)[better]
    thetas = logs(x)
    for i in np.flatnonzero(~settled) if not quick and shift is None else ():
        thetas[i], value[i] = descend(problem.weighted(weights[i]), thetas[i])
    return thetas, value


def bounds(problem: Problem, weights: Array) -> tuple[Array, Array]:
    """Return the bounds of `Problem` for the rows of each fit, as E, A', B' and exponents: fits × 5 each."""
    least = np.where(weights > 0, problem.loss, np.inf).min(axis=1)
    most = np.where(weights > 0, problem.loss, 0.0).max(axis=1)
    vanished, term = least * VANISHED, most * np.exp(TERM_REACH)
    ends = [np.full_like(least, value) for value in EXPONENTS]
    low = np.stack([vanished, vanished, vanished, ends[0], ends[0]], axis=1)
    return low, np.stack([term, term, least, ends[1], ends[1]], axis=1)


def local_of(problem: Problem, weights: Array, x: Array) -> _Local:
    """Return what the objective of each fit (a row of `weights`) is around its `x` (A', B', E, exponents)."""
    a, b, e, alpha, beta = (x[:, i, None] for i in range(5))
    n, d = problem.n, problem.d
    size, data = np.exp(-alpha * n), np.exp(-beta * d)  # fits × rows, as all that follows
    fitted = a * size + b * data + e
    inverse = 1 / fitted if problem.delta is not None else np.ones_like(fitted)
    if problem.delta is None:
        r = fitted - problem.loss
        pull, stiff, bend = weights * r, weights, weights
        value = 0.5 * (pull * r).sum(1)
        curved = pull
    else:
        r = np.log(fitted) - problem.log_loss
        psi = np.minimum(np.maximum(r, -problem.delta), problem.delta)
        inner = np.abs(r) <= problem.delta
        pull = weights * psi
        value = (pull * (r - 0.5 * psi)).sum(1)
        # Iteratively reweighted least squares: min(1, delta / |r|) bounds the Huber term from above.
        stiff = weights * np.where(inner, 1.0, problem.delta / np.maximum(np.abs(r), problem.delta))
        bend = (
            weights * inner - pull
        )  # second derivatives of ln(fitted) itself are those of fitted less its slopes
        curved = pull * inverse
    j = np.empty((len(x), 5, n.size))
    j[:, 0], j[:, 1], j[:, 2] = size * inverse, data * inverse, inverse
    j[:, 3], j[:, 4] = -a * n * j[:, 0], -b * d * j[:, 1]
    gradient = (j @ pull[:, :, None])[:, :, 0]
    across = j.transpose(0, 2, 1)
    hessian = (j * bend[:, None]) @ across
    gauss = (j * stiff[:, None]) @ across
    # fitted is linear in A', B' and E, so only these second derivatives of it are not zero.
    size_n, data_d = -n * size * curved, -d * data * curved
    for i, k, mixed, own in ((0, 3, size_n, a * (-n * size_n)), (1, 4, data_d, b * (-d * data_d))):
        hessian[:, i, k] += mixed.sum(1)
        hessian[:, k, i] += mixed.sum(1)
        hessian[:, k, k] += own.sum(1)
    return _Local(value, gradient, hessian, gauss)


def _step(
    problem: Problem, here: _Local, x: Array, damping: Array, low: Array, high: Array
) -> tuple[Array, Array]:
    """Return each fit's damped Newton step within its free variables, and what the model promises it gains."""
    g, h, m = here.gradient, here.hessian, here.gauss
    if problem.tied:
        g, h, m, x, low, high = g @ TIE, TIE.T @ h @ TIE, TIE.T @ m @ TIE, x[:, :4], low[:, :4], high[:, :4]
    held = ((x <= low) & (g > 0)) | ((x >= high) & (g < 0))
    g = np.where(held, 0.0, g)
    scale = np.sqrt(np.maximum(np.einsum("kii->ki", m), 1e-300))
    pair = scale[:, :, None] * scale[:, None, :]
    free = ~(held[:, :, None] | held[:, None, :])
    unit = np.eye(x.shape[1])
    h, m = np.where(free, h / pair, 0.0), np.where(free, m / pair, 0.0) + 1e-9 * unit
    # In the metric of the Gauss-Newton matrix a damped Hessian has eigenvalues; negative ones are turned round.
    root = np.linalg.cholesky(m)
    inner = np.linalg.solve(root, np.linalg.solve(root, h).transpose(0, 2, 1))
    values, vectors = np.linalg.eigh(0.5 * (inner + inner.transpose(0, 2, 1)))
    along = np.einsum("kji,kj->ki", vectors, np.linalg.solve(root, (g / scale)[:, :, None])[:, :, 0])
    stiffness = np.abs(values) + damping[:, None]
    step = np.einsum("kij,kj->ki", vectors, -along / stiffness)
    step = np.linalg.solve(root.transpose(0, 2, 1), step[:, :, None])[:, :, 0] / scale
    promise = (along**2 / stiffness * (1 - 0.5 * values / stiffness)).sum(1)
    return (step @ TIE.T if problem.tied else step), promise
