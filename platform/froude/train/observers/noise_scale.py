"""The gradient noise scale during a run, in moving averages that go into its checkpoints and step metrics.

A step's squared norms at two batch sizes, of the slots and of the whole batch, give unbiased estimates of the squared
norm of the true gradient and of the trace of its covariance (McCandlish et al. 1812.06162, appendix A.1); the noise
scale is the ratio of their averages, never an average of ratios. All numbers come from an exact reduction, so they are
the same at any number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from froude.config import Run
from froude.train.observers.observer import Made, Observer, Watched

#: Half-life of the averages: a share of the run's steps, but not less than a number of them.
SHARE, LEAST = 0.01, 100
PUBLISHED = 100  # measurements from which on there is a number
CLEAR = 2.0  # standard errors that |G|² must stand above zero


class NoiseScale:
    """Averages of a run's |G|² and S by steps, from their state in a checkpoint."""

    def __init__(self, run: Run, state: Mapping[str, Any] | None = None) -> None:
        self.half_life = max(SHARE * run.steps, LEAST)
        self.rewind(state or {})

    def rewind(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        self.count: int = state.get("count", 0)
        self.step: int = state.get("step", 0)
        self.weight: float = state.get("weight", 0.0)
        self.weight_squares: float = state.get("weight_squares", 0.0)
        self.grad_sq: float = state.get("grad_sq", 0.0)
        self.grad_sq_squares: float = state.get("grad_sq_squares", 0.0)
        self.trace: float = state.get("trace", 0.0)

    def state(self) -> dict[str, Any]:
        """The weighted sums and the step of the last one, as JSON."""
        names = ("count", "step", "weight", "weight_squares", "grad_sq", "grad_sq_squares", "trace")
        return {name: getattr(self, name) for name in names}

    def add(self, step: int, small: int, big: int, small_square: float, big_square: float) -> None:
        """Squared norms of gradients of batches of `small` and `big` tokens after `step` (from 1); S is per token."""
        keep = 0.5 ** ((step - self.step) / self.half_life)
        grad_sq = (big * big_square - small * small_square) / (big - small)
        trace = (small_square - big_square) / (1 / small - 1 / big)
        self.count, self.step = self.count + 1, step
        self.weight = keep * self.weight + 1
        self.weight_squares = keep**2 * self.weight_squares + 1
        self.grad_sq = keep * self.grad_sq + grad_sq
        self.grad_sq_squares = keep * self.grad_sq_squares + grad_sq**2
        self.trace = keep * self.trace + trace

    @property
    def value(self) -> float | None:
        """S / |G|² in tokens; None before 100 measurements, or while |G|² is not clearly above zero."""
        if self.count < PUBLISHED:
            return None
        mean = self.grad_sq / self.weight
        variance = max(self.grad_sq_squares / self.weight - mean**2, 0.0)
        error = math.sqrt(variance * self.weight_squares) / self.weight
        return self.trace / self.grad_sq if mean > CLEAR * error and self.trace > 0 else None


class GradientNoise(Observer):
    """Measures the noise scale every `noise_every` steps of a run with several slots: one alone is the batch."""

    name = "noise"

    def begin(self, loop: Watched) -> None:
        super().begin(loop)
        self.scale = NoiseScale(loop.run)

    def wants_slot_norms(self, step: int) -> bool:
        run = self.loop.run
        return run.slots > 1 and run.noise_every > 0 and step % run.noise_every == 0

    def stepped(self, made: Made) -> None:
        if (small_square := made.result.slot_square) is None:
            return
        run, square = self.loop.run, made.result.grad_norm**2
        big = run.phases.batch_at(made.step - 1)
        small = big // run.slots
        self.scale.add(made.step, small, big, small_square, square)
        made.columns |= {
            "batch_small": small,
            "batch_big": big,
            "small_sq_norm": small_square,
            "big_sq_norm": square,
            "noise_scale": self.scale.value,
        }

    def state(self) -> dict[str, Any]:
        return self.scale.state()

    def rewind(self, state: Mapping[str, Any]) -> None:
        self.scale.rewind(state)
