"""Sophia and its two estimates in NumPy and fp64, from 2305.14342; the MLP is that of `test_optimizer_references`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Weights = Mapping[str, Array]


class Sophia:
    """Lines 6 to 13 of algorithm 3 for one parameter, which is told an `estimate` before every k-th step."""

    def __init__(self, gamma: float, options: Mapping[str, Any], b1: float, b2: float) -> None:
        self.b1, self.b2, self.gamma, self.m, self.h = b1, b2, options.get("gamma", gamma), 0.0, 0.0
        self.estimate: Array | None = None

    def __call__(self, w: Array, g: Array, lr: float, decay: float) -> Array:
        self.m = self.b1 * self.m + (1 - self.b1) * g
        if self.estimate is not None:
            self.h = self.b2 * self.h + (1 - self.b2) * self.estimate
            self.estimate = None
        self.ratio = self.m / np.maximum(self.gamma * self.h, 1e-12)
        return w - lr * decay * w - lr * np.sign(self.ratio) * np.minimum(np.abs(self.ratio), 1)


def gradients(weights: Weights, x: Array, slope: Callable[[Array], Array]) -> dict[str, Array]:
    """Of a loss of the MLP's outputs, whose own gradient with respect to them is `slope`; weights may be complex."""
    a = np.tanh(x @ weights["first"].T + weights["bias"])
    b = np.tanh(a @ weights["second"].T)
    error = slope(b @ weights["readout"].T)
    into_b = (error @ weights["readout"]) * (1 - b**2)
    into_a = (into_b @ weights["second"]) * (1 - a**2)
    return {"first": into_a.T @ x, "second": into_b.T @ a, "readout": error.T @ b, "bias": into_a.sum(0)}


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.real.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def entropy_slope(labels: NDArray[np.int64]) -> Callable[[Array], Array]:
    """Of the mean cross-entropy of these labels."""
    return lambda logits: (softmax(logits) - np.eye(logits.shape[1])[labels]) / len(labels)


def sampled(weights: Weights, x: Array, uniform: Array) -> NDArray[np.int64]:
    """Labels of the MLP's own distributions, where these numbers of [0, 1) fall."""
    seen: list[Array] = []
    gradients(weights, x, lambda logits: seen.append(softmax(logits)) or logits)
    return (uniform[:, None] >= seen[0].cumsum(1)).sum(1)


def gauss_newton_bartlett(weights: Weights, x: Array, uniform: Array) -> dict[str, Array]:
    """Algorithm 2."""
    found = gradients(weights, x, entropy_slope(sampled(weights, x, uniform)))
    return {name: len(x) * g**2 for name, g in found.items()}


def hutchinson(
    weights: Weights, x: Array, labels: NDArray[np.int64], u: Mapping[str, Array]
) -> dict[str, Array]:
    """Algorithm 1; H u is the derivative of the gradient along u, by a complex step, which has hardly any rounding."""
    step = 1e-30
    moved = {name: w + 1j * step * u[name] for name, w in weights.items()}
    found = gradients(moved, x, entropy_slope(labels))
    return {name: u[name] * g.imag / step for name, g in found.items()}
