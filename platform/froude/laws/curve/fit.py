"""Numerical core of the curve laws: L(t) = L0 + A · S1(t)^-alpha - C · Q(t), Q what falls of the rate have gained.

For given exponents the laws are linear in (L0, A, C) >= 0, so the search is over the exponents alone (variable
projection), and its best points are polished.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar, nnls

from froude.laws.curve.data import Curve, Schedule, Trajectory
from froude.laws.stats import robust
from froude.laws.stats.frames import Array

ALPHA = (0.01, 3.0)
# Memory of the annealing law, 1/(1 - decay), in steps; its source uses a decay of 0.999.
DECAYS = tuple(1 - 1 / steps for steps in (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000))
# Bounds and starts of ln C, beta and gamma, for rates relative to the peak and areas in steps at the peak.
MULTI_POWER = ((-14.0, 7.0), (0.02, 5.0), (0.0, 2.0))
STARTS = tuple((c, b, g) for c in (-5.0, -2.5, 0.0) for b in (0.3, 0.6, 1.2) for g in (0.2, 0.6))
POLISHED = 3

Gain = Callable[[Array], tuple[Array, Array]]  # `extra` -> Q at some points, and dQ / d extra: points × extra


class Form(Protocol):
    """How a law turns a schedule into Q; `extra` are its exponents and constants besides alpha."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def bounds(self) -> tuple[tuple[float, float], ...]: ...
    @property
    def starts(self) -> tuple[tuple[float, ...], ...]: ...
    def gain(self, schedule: Schedule, step: Array) -> Gain:
        """Return Q at some steps, which may lie between whole ones."""


@dataclass(frozen=True)
class Annealing:
    """Q = S2 with a given decay; that is profiled, so nothing here is searched."""

    decay: float
    names: tuple[str, ...] = ()
    bounds: tuple[tuple[float, float], ...] = ()
    starts: tuple[tuple[float, ...], ...] = ((),)

    def gain(self, schedule: Schedule, step: Array) -> Gain:
        gained = np.interp(step, np.arange(1, schedule.rate.size + 1), schedule.annealed(self.decay))
        return lambda extra: (gained, np.empty((gained.size, 0)))


@dataclass(frozen=True)
class MultiPower:
    """Q = Σ_k fall_k · (1 - (C · rate_k^-gamma · S_k + 1)^-beta), S_k the area since fall k (2503.12811, eq. 4)."""

    peak: float
    names: tuple[str, ...] = ("C", "beta", "gamma")
    bounds: tuple[tuple[float, float], ...] = MULTI_POWER
    starts: tuple[tuple[float, ...], ...] = STARTS

    def gain(self, schedule: Schedule, step: Array) -> Gain:
        fall, rate, before = schedule.nodes
        since = np.maximum(schedule.area_at(step)[:, None] - before, 0.0) / self.peak
        log_rate = np.log(np.maximum(rate / self.peak, 1e-12))

        def gain(extra: Array) -> tuple[Array, Array]:
            log_c, beta, gamma = extra
            x = since * np.exp(log_c - gamma * log_rate)
            log = np.log1p(x)
            left = np.exp(-beta * log)
            slope = left * (beta * x / (1 + x)) * fall
            columns = [slope.sum(axis=1), (left * log) @ fall, slope @ -log_rate]
            return (1 - left) @ fall, np.stack(columns, axis=1)

        return gain


@dataclass(frozen=True, eq=False)
class Problem:
    """Curves with their schedules, the floor (L0) of each, and the form of Q.

    theta = (floors, A', C', alpha, extra) with A' in nats at the area `center` and C' in nats at a Q of `scale`,
    so that all are of the size of a loss.
    """

    curves: tuple[Curve, ...]
    schedules: tuple[Schedule, ...]
    floor: NDArray[np.intp]
    floors: int
    form: Form
    center: float
    scale: float

    def only(self, runs: Sequence[int]) -> "Problem":
        """Return the problem of some of the curves, in the same coordinates."""
        return replace(
            self,
            curves=tuple(self.curves[i] for i in runs),
            schedules=tuple(self.schedules[i] for i in runs),
            floor=self.floor[np.array(runs, dtype=np.intp)],
        )

    def along(self, schedule: Schedule, step: Array, floor: int) -> "Problem":
        """Return a problem whose only curve is at the given steps of a schedule, its losses unknown."""
        curve = Curve(step, np.maximum(schedule.area_at(step), 1e-12 * self.center), np.ones(step.size))
        return replace(self, curves=(curve,), schedules=(schedule,), floor=np.array([floor]))

    @cached_property
    def loss(self) -> Array:
        return np.concatenate([curve.loss for curve in self.curves])

    @cached_property
    def _log_area(self) -> Array:
        return np.log(np.concatenate([curve.area for curve in self.curves]) / self.center)

    @cached_property
    def _gains(self) -> list[Gain]:
        pairs = zip(self.schedules, self.curves, strict=True)
        return [self.form.gain(schedule, curve.step) for schedule, curve in pairs]

    @cached_property
    def _floors(self) -> Array:
        codes = np.repeat(self.floor, [curve.step.size for curve in self.curves])
        return np.asarray(codes[:, None] == np.arange(self.floors), dtype=np.float64)

    @property
    def bounds(self) -> tuple[Array, Array]:
        """Bounds of theta: L0, A' and C' cannot be negative."""
        high = float(self.loss.max())
        linear = [(0.0, high)] * self.floors + [(0.0, 20 * high)] * 2
        low, top = np.array([*linear, ALPHA, *self.form.bounds]).T
        return low, top

    def gained(self, extra: Array) -> tuple[Array, Array]:
        """Return Q and dQ / d extra (points × extra), both at `scale`."""
        values, slopes = zip(*(gain(extra) for gain in self._gains), strict=True)
        return np.concatenate(values) / self.scale, np.concatenate(slopes) / self.scale

    def columns(self, alpha: float, gained: Array) -> Array:
        """Return what (floors, A', C') multiply."""
        return np.column_stack([self._floors, np.exp(-alpha * self._log_area), -gained])

    def fitted(self, theta: Array) -> Array:
        """Return the law's loss at each point, nats per token."""
        k = self.floors
        loss = self.columns(theta[k + 2], self.gained(theta[k + 3 :])[0]) @ theta[: k + 2]
        # A trial point of the search may take more off than there is.
        return np.maximum(loss, 1e-3 * float(self.loss.min()))

    def residual(self, theta: Array) -> Array:
        """Return ln(fitted) - ln(loss)."""
        return np.asarray(np.log(self.fitted(theta)) - np.log(self.loss))

    def jacobian(self, theta: Array) -> Array:
        """Return d residual / d theta, points × parameters."""
        k = self.floors
        gained, slopes = self.gained(theta[k + 3 :])
        columns = self.columns(theta[k + 2], gained)
        bend = -theta[k] * self._log_area * columns[:, k]
        return np.column_stack([columns, bend, -theta[k + 1] * slopes]) / self.fitted(theta)[:, None]

    def objective(self, theta: Array) -> float:
        """Return the sum of Huber terms over the points."""
        return robust.objective(self.residual(theta), np.ones(self.loss.size), robust.DELTA)

    def starts(self) -> list[tuple[float, Array]]:
        """Return a grid over alpha and `extra` with the least-squares (L0, A', C') >= 0 of each, best first."""
        scored: list[tuple[float, Array]] = []
        for extra in self.form.starts:
            gained, _ = self.gained(np.array(extra))
            for alpha in np.geomspace(0.05, 1.6, 16):
                columns = self.columns(float(alpha), gained) / self.loss[:, None]
                q, r = np.linalg.qr(columns)
                linear, _ = nnls(r, q.T @ np.ones(self.loss.size))
                error = float(((columns @ linear - 1) ** 2).sum())
                scored.append((error, np.array([*linear, alpha, *extra])))
        return sorted(scored, key=lambda pair: pair[0])


def solve(problem: Problem, starts: Sequence[Array]) -> tuple[Array, float]:
    """Return the best theta from the starts, and its sum of Huber terms."""
    weights = np.ones(problem.loss.size)
    return robust.minimise(problem.residual, problem.jacobian, starts, problem.bounds, weights, robust.DELTA)


def search(runs: Sequence[Trajectory], floors: int, forms: Sequence[Form]) -> tuple[Problem, Array]:
    """Return the best problem of those with the given forms, and its theta."""
    center = float(np.exp(np.mean(np.log(np.concatenate([run.curve.area for run in runs])))))
    ranked: list[tuple[float, Problem, Array]] = []
    for form in forms:
        problem = Problem(
            curves=tuple(run.curve for run in runs),
            schedules=tuple(run.schedule for run in runs),
            floor=np.array([run.floor for run in runs]),
            floors=floors,
            form=form,
            center=center,
            scale=1.0,
        )
        reached = float(np.abs(problem.gained(np.array(form.starts[len(form.starts) // 2]))[0]).max())
        problem = replace(problem, scale=reached or 1.0)
        ranked += [(error, problem, theta) for error, theta in problem.starts()[:POLISHED]]
    ranked.sort(key=lambda item: item[0])
    polished = [(*solve(problem, [theta]), problem) for _, problem, theta in ranked[: 2 * POLISHED]]
    theta, least, problem = min(polished, key=lambda item: item[1])
    return _refined(problem, theta, least) if isinstance(problem.form, Annealing) else (problem, theta)


def _refined(problem: Problem, theta: Array, least: float) -> tuple[Problem, Array]:
    """Return the best annealing problem with a memory between the grid points next to the problem's, and its theta."""
    assert isinstance(problem.form, Annealing)
    at = DECAYS.index(problem.form.decay)
    ends = np.log1p(-np.array([DECAYS[max(at - 1, 0)], DECAYS[min(at + 1, len(DECAYS) - 1)]]))

    def fit(log_left: float) -> tuple[float, Problem, Array]:
        again = replace(problem, form=Annealing(-float(np.expm1(log_left))))
        best, value = solve(again, [theta])
        return value, again, best

    found = minimize_scalar(
        lambda x: fit(x)[0],
        bounds=(ends[1], ends[0]),
        method="bounded",
        options={"xatol": 1e-3, "maxiter": 20},
    )
    value, again, best = fit(float(found.x))
    return (again, best) if value < least else (problem, theta)


def hits_bound(problem: Problem, theta: Array) -> list[str]:
    """Name what the fit could not place inside its bounds."""
    k = problem.floors
    least = float(problem.loss.min())
    found = [
        f"{name} ran to zero"
        for name, value in zip(("A", "C"), theta[k : k + 2], strict=True)
        if value < 1e-5 * least
    ]
    if theta[:k].min() < 1e-3 * least:
        found.append("L0 ran to zero")
    low, high = problem.bounds
    for i, name in enumerate(("alpha", *problem.form.names), k + 2):
        if min(theta[i] - low[i], high[i] - theta[i]) < 1e-4 * (high[i] - low[i]):
            found.append(f"{name} ran to its bound")
    return found


def parameters(problem: Problem, theta: Array) -> dict[str, float]:
    """Return A, alpha and what multiplies Q (C of the annealing law, B of the multi-power law) in the frame's units."""
    k = problem.floors
    alpha = float(theta[k + 2])
    found = {"A": float(theta[k]) * problem.center**alpha, "alpha": alpha}
    gain = float(theta[k + 1]) / problem.scale
    form = problem.form
    if isinstance(form, MultiPower):
        log_c, beta, gamma = (float(value) for value in theta[k + 3 :])
        return {
            **found,
            "B": gain,
            "C": float(np.exp(log_c)) * form.peak ** (gamma - 1),
            "beta": beta,
            "gamma": gamma,
        }
    assert isinstance(form, Annealing)
    return {**found, "C": gain, "decay": form.decay}
