"""Refits of the loss law to resamples of its groups: all rows of few, and large-sample ones of many."""

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from froude.laws.loss import noise
from froude.laws.loss.fit import Problem, descend, exponentials, logs
from froude.laws.loss.many_fits import (
    ELEMENTS,
    SMOOTH,
    TIE,
    Shift,
    bounds,
    descend_many,
    local_of,
    refit_many,
)
from froude.laws.stats import uncertainty
from froude.laws.stats.frames import Array

REFITTED = 10_000  # groups; of more, a replicate is one step from the fit to all of them
MANY = 40_000  # rows; of more, they are squashed
SQUASHED = 20_000  # to about so many
MOST = 64  # parts of params, and of tokens, in which rows are squashed
ALIKE = 4  # parts of params, and of tokens, in each of which residuals scatter alike
LEAST_INSIDE = 1e-3  # of the rows alike, whose residuals the Huber threshold leaves as they are
LEAST_CURVED = 1e-9  # eigenvalue of a Hessian of unit diagonal: below it rounding decides the step


def bootstrap(
    problem: Problem,
    groups: NDArray[np.intp],
    theta: Array,
    n: int,
    rng: np.random.Generator,
    *,
    quick: bool = False,
) -> tuple[Array, Array]:
    """Return thetas (n × 5) and objectives (n) of fits to `n` resamples of the groups with replacement.

    Of more than REFITTED groups each is one Newton step from `theta`, with the Hessian of all rows: that many leave too
    little spread for a second (the score bootstrap, Kline & Santos 2012). Not so where `theta` is at a bound or no
    minimum, or where a step leads out of the bounds. There, and of more than MANY rows, it is one of `surrogates`.
    """
    if int(groups.max()) >= REFITTED and (steps := _one_step(problem, groups, theta, n, rng)) is not None:
        return steps
    if problem.loss.size > MANY:
        return surrogates(problem, groups, theta, (_counts(groups, rng) for _ in range(n)))
    size = max(1, ELEMENTS // problem.loss.size)
    parts = []
    for first in range(0, n, size):
        drawn = [uncertainty.resample(groups, rng) for _ in range(min(size, n - first))]
        weights = np.stack(drawn) * problem.weights
        parts.append(refit_many(problem, weights, np.tile(theta, (len(drawn), 1)), quick=quick))
    return np.concatenate([thetas for thetas, _ in parts]), np.concatenate([value for _, value in parts])


def surrogates(
    problem: Problem, groups: NDArray[np.intp], theta: Array, counts: Iterable[Array]
) -> tuple[Array, Array]:
    """Return thetas and objectives of a refit for each of `counts`, of how often each group is drawn.

    Huber's terms are squares about `theta` (`_squares`), the rows of a group are squashed to means of neighbours
    (DuMouchel et al. 1999), and a quadratic is added, so that gradient and Hessian at `theta` are those of all rows of
    the groups drawn. Of more than REFITTED groups the Hessian is that without resampling.
    """
    number = int(groups.max()) + 1
    x = exponentials(theta)
    values = by_group(problem, groups, x)[1]
    problem = _squares(problem, theta)
    apart = groups if number <= REFITTED else np.zeros_like(groups)
    few, own = _squashed(
        problem, apart, theta, min(MOST, max(4, math.isqrt(SQUASHED // (int(apart.max()) + 1))))
    )
    scores = by_group(problem, groups, x)[0]
    shown, held = by_group(few, own, x)
    missing = _hessians(problem, apart, x) - _hessians(few, own, x)
    weights, slopes, bends, added = [], [], [], []
    for count in counts:
        known = count if number <= REFITTED else np.ones(1)
        weights.append(known[own] * few.weights)
        slopes.append(count @ scores - known @ shown)
        bends.append(np.tensordot(known, missing, 1))
        added.append(count @ values - known @ held)
    starts = np.tile(theta, (len(added), 1))
    found, value = descend_many(
        few, np.array(weights), starts, shift=Shift(x, np.array(slopes), np.array(bends))
    )
    return found, value + np.array(added)


def left_out(problem: Problem, groups: NDArray[np.intp], theta: Array) -> Array:
    """Return each row's ln loss less that of a fit without its group: of more than MANY rows, one of `surrogates`."""
    number, found = int(groups.max()) + 1, np.empty(groups.size)
    many = problem.loss.size > MANY
    thetas = surrogates(problem, groups, theta, 1 - np.eye(number))[0] if many else [theta] * number
    for g, start in enumerate(thetas):
        inside = groups == g
        again = start if many else descend(problem.take(np.flatnonzero(~inside)), start)[0]
        here = problem.take(np.flatnonzero(inside))
        found[inside] = np.log(here.loss) - np.log(here.fitted(again))
    return found


def _squares(problem: Problem, theta: Array) -> Problem:
    """Return least squares with the gradient of Huber's terms at `theta`, and the Hessian that rows alike have.

    A row's weight is multiplied by the share of rows of like params and tokens whose residuals are within `delta`: of
    all groups, for one far off has none, and yet is a resample's middle if drawn often.
    """
    if problem.delta is None:
        return problem
    left = problem.residual(theta)
    cell = np.zeros(left.size, dtype=np.intp)
    for values in (problem.n, problem.d):
        cell = _parts(values, cell, ALIKE)
    inside = np.bincount(cell, problem.weights * (np.abs(left) <= problem.delta))
    share = np.maximum(inside / np.bincount(cell, problem.weights), LEAST_INSIDE)[cell]
    loss = problem.fitted(theta) * np.exp(-np.clip(left, -problem.delta, problem.delta) / share)
    return replace(problem, loss=loss, weights=problem.weights * share, delta=SMOOTH)


def _hessians(problem: Problem, groups: NDArray[np.intp], x: Array) -> Array:
    """Return the Hessian of each group's part of the objective, groups × 5 × 5."""
    parts = [problem.take(rows) for rows in noise.blocks(groups)]
    return np.stack([local_of(part, part.weights[None], x[None]).hessian[0] for part in parts])


def _squashed(
    problem: Problem, groups: NDArray[np.intp], theta: Array, parts: int
) -> tuple[Problem, NDArray[np.intp]]:
    """Return means over up to `parts`² sets of rows of each group, near in params and tokens; and their groups."""
    cell = _parts(problem.d, _parts(problem.n, groups, parts), parts)
    weights = np.asarray(np.bincount(cell, problem.weights), dtype=np.float64)

    def mean(values: Array) -> Array:
        return np.asarray(np.bincount(cell, problem.weights * values) / weights)

    own = np.empty(weights.size, dtype=np.intp)
    own[cell] = groups
    few = replace(problem, n=mean(problem.n), d=mean(problem.d), loss=weights, weights=weights)
    left = mean(problem.residual(theta))
    fitted = few.fitted(theta)
    return replace(few, loss=fitted - left if problem.delta is None else fitted * np.exp(-left)), own


def _parts(values: Array, cell: NDArray[np.intp], parts: int) -> NDArray[np.intp]:
    """Return the cells cut into `parts` of as many rows each, by their values."""
    order, sizes = np.lexsort((values, cell)), np.bincount(cell)
    place = np.arange(cell.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    finer = np.empty_like(cell)
    finer[order] = cell[order] * parts + place * parts // sizes[cell[order]]
    return np.asarray(np.unique(finer, return_inverse=True)[1])


def _counts(groups: NDArray[np.intp], rng: np.random.Generator) -> Array:
    number = int(groups.max()) + 1
    return np.bincount(rng.integers(0, number, number), minlength=number).astype(np.float64)


def _one_step(
    problem: Problem, groups: NDArray[np.intp], theta: Array, n: int, rng: np.random.Generator
) -> tuple[Array, Array] | None:
    low, high = bounds(problem, problem.weights[None])
    x = exponentials(theta[None])
    turn = TIE if problem.tied else np.eye(5)
    hessian = turn.T @ local_of(problem, problem.weights[None], x).hessian[0] @ turn
    scale = np.sqrt(np.abs(np.diag(hessian)))
    if not (np.all(x > low) and np.all(x < high) and np.all(scale > 0)):
        return None
    if np.linalg.eigvalsh(hessian / np.outer(scale, scale))[0] < LEAST_CURVED:
        return None
    scores, values = by_group(problem, groups, x[0])
    gradients, objectives = np.empty((n, 5)), np.empty(n)
    for i in range(n):
        counts = np.bincount(rng.integers(0, len(values), len(values)), minlength=len(values))
        gradients[i], objectives[i] = counts @ scores, counts @ values
    slopes = gradients @ turn
    steps = -np.linalg.solve(hessian, slopes.T).T
    moved = x + steps @ turn.T
    if not (np.all(moved > low) and np.all(moved < high)):
        return None
    return logs(moved), objectives + 0.5 * (steps * slopes).sum(1)


def by_group(problem: Problem, groups: NDArray[np.intp], x: Array) -> tuple[Array, Array]:
    """Return each group's gradient of the objective (groups × 5) and its share of the objective, at `x`."""
    a, b, e, alpha, beta = x
    size, data = np.exp(-alpha * problem.n), np.exp(-beta * problem.d)
    fitted = a * size + b * data + e
    if problem.delta is None:
        inverse, r = np.ones_like(fitted), fitted - problem.loss
        psi = r
    else:
        inverse, r = 1 / fitted, np.log(fitted) - problem.log_loss
        psi = np.clip(r, -problem.delta, problem.delta)
    pull = problem.weights * psi
    slopes = [size, data, np.ones_like(size), -a * problem.n * size, -b * problem.d * data]
    scores = [np.bincount(groups, slope * inverse * pull) for slope in slopes]
    return np.stack(scores, axis=1), np.asarray(np.bincount(groups, pull * (r - 0.5 * psi)), dtype=np.float64)
