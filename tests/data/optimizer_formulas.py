"""The formula of each optimizer in NumPy and fp64, written from its paper and not from any code of ours.

A formula is made for one parameter, and called with the weight, its gradient, the rate and the decay of a step (times
what the parametrization says); it returns the new weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Options = Mapping[str, Any]


class Formula(Protocol):
    def __call__(self, w: Array, g: Array, lr: float, decay: float) -> Array: ...


class AdamW:
    def __init__(self, options: Options, b1: float = 0.9, b2: float = 0.95, eps: float = 1e-8) -> None:
        self.b1, self.b2, self.eps, self.t, self.m, self.v = b1, b2, eps, 0, 0.0, 0.0

    def __call__(self, w: Array, g: Array, lr: float, decay: float) -> Array:
        self.t += 1
        self.m = self.b1 * self.m + (1 - self.b1) * g
        self.v = self.b2 * self.v + (1 - self.b2) * g**2
        m, v = self.m / (1 - self.b1**self.t), self.v / (1 - self.b2**self.t)
        return w * (1 - lr * decay) - lr * m / (np.sqrt(v) + self.eps)


class SGD:
    def __init__(self, options: Options, b1: float = 0.9, b2: float = 0.0) -> None:
        self.b1, self.nesterov, self.m = b1, options.get("nesterov", False), 0.0

    def __call__(self, w: Array, g: Array, lr: float, decay: float) -> Array:
        g = g + decay * w
        self.m = self.b1 * self.m + g
        return w - lr * (g + self.b1 * self.m if self.nesterov else self.m)


class Lion:
    def __init__(self, options: Options, b1: float = 0.9, b2: float = 0.95) -> None:
        self.b1, self.b2, self.m = b1, b2, 0.0

    def __call__(self, w: Array, g: Array, lr: float, decay: float) -> Array:
        w = w * (1 - lr * decay) - lr * np.sign(self.b1 * self.m + (1 - self.b1) * g)
        self.m = self.b2 * self.m + (1 - self.b2) * g
        return w


def newton_schulz(g: Array, steps: int = 5) -> Array:
    """Five steps of the quintic with Jordan's coefficients."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / np.linalg.norm(g)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


class Muon:
    def __init__(self, options: Options, b1: float = 0.9, b2: float = 0.0) -> None:
        self.b1, self.options, self.m = b1, options, 0.0

    def __call__(self, w: Array, g: Array, lr: float, decay: float) -> Array:
        self.m = self.b1 * self.m + (1 - self.b1) * g
        seen = self.b1 * self.m + (1 - self.b1) * g if self.options.get("nesterov", True) else self.m
        rows, columns = w.shape
        scale = {
            "spectral": np.sqrt(rows / columns),
            "original": np.sqrt(max(1, rows / columns)),
            "match_rms": 0.2 * np.sqrt(max(rows, columns)),
        }[self.options.get("scale", "spectral")]
        return w * (1 - lr * decay) - lr * scale * newton_schulz(seen)


#: By name; what takes whole matrices is called with nothing else.
FORMULAS: dict[str, Callable[..., Formula]] = {"adamw": AdamW, "lion": Lion, "muon": Muon, "sgd": SGD}
