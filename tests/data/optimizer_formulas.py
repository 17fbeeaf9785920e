"""The formula of each optimizer in NumPy and fp64, written from its paper and not from any code of ours.

A formula is made for one parameter, and called with the weight, its gradient, the rate and the decay of a step (times
what the parametrization says); it returns the new weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import numpy as np
from curvature_formulas import Sophia
from low_rank_formulas import Apollo, GaLore
from matrix_formulas import SOAP, AdamH, Muon, MuonH, NorMuon, Shampoo
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


class Adam(AdamW):
    """Decay is a part of the gradient."""

    def __call__(self, w: Array, g: Array, lr: float, decay: float) -> Array:
        return super().__call__(w, g + decay * w, lr, 0.0)


class RMSProp:
    def __init__(self, options: Options, b1: float = 0.0, b2: float = 0.99, eps: float = 1e-8) -> None:
        self.b2, self.eps, self.v = b2, eps, 0.0

    def __call__(self, w: Array, g: Array, lr: float, decay: float) -> Array:
        g = g + decay * w
        self.v = self.b2 * self.v + (1 - self.b2) * g**2
        return w - lr * g / (np.sqrt(self.v) + self.eps)


class AdEMAMix:
    """Algorithm 1 of 2409.03137 with both schedulers, which end at the same step."""

    def __init__(self, options: Options, b1: float = 0.9, b2: float = 0.95, eps: float = 1e-8) -> None:
        self.b1, self.b2, self.b3, self.eps = b1, b2, options.get("beta3", 0.9999), eps
        self.alpha, self.until = options.get("alpha", 5.0), options.get("warmup", 0)
        self.t, self.fast, self.slow, self.v = 0, 0.0, 0.0, 0.0

    def __call__(self, w: Array, g: Array, lr: float, decay: float) -> Array:
        self.t += 1
        alpha, b3 = self.alpha, self.b3
        if self.until:
            x, first, last = self.t / self.until, np.log(self.b1), np.log(self.b3)
            alpha = min(x * self.alpha, self.alpha)
            b3 = min(np.exp(first * last / ((1 - x) * last + x * first)), self.b3)
        self.fast = self.b1 * self.fast + (1 - self.b1) * g
        self.slow = b3 * self.slow + (1 - b3) * g
        self.v = self.b2 * self.v + (1 - self.b2) * g**2
        mean, v = self.fast / (1 - self.b1**self.t), self.v / (1 - self.b2**self.t)
        return w - lr * ((mean + alpha * self.slow) / (np.sqrt(v) + self.eps) + decay * w)


class ScheduleFreeAdamW:
    """Algorithm 1 of 2405.15682 with y, z and x apart; the weight is y.

    v is corrected as in 2507.09846, and x is weighted by the largest rate so far.
    """

    def __init__(self, options: Options, b1: float = 0.9, b2: float = 0.95, eps: float = 1e-8) -> None:
        self.b1, self.b2, self.eps, self.t, self.v = b1, b2, eps, 0, 0.0
        self.z: Array | None = None
        self.x: Array | None = None
        self.largest, self.sum = 0.0, 0.0

    def __call__(self, w: Array, g: Array, lr: float, decay: float) -> Array:
        z, x = (w, w) if self.z is None or self.x is None else (self.z, self.x)
        self.t += 1
        self.v = self.b2 * self.v + (1 - self.b2) * g**2
        self.z = z - lr * (g / (np.sqrt(self.v / (1 - self.b2**self.t)) + self.eps) + decay * w)
        self.largest = max(lr, self.largest)
        self.sum += self.largest**2
        c = self.largest**2 / self.sum
        self.x = (1 - c) * x + c * self.z
        return (1 - self.b1) * self.z + self.b1 * self.x


class AdamW8bit:
    """AdamW that forgets all of its moments but their nearest codes; vectors' are kept."""

    def __init__(self, options: Options, b1: float = 0.9, b2: float = 0.95, eps: float = 1e-8) -> None:
        self.inner = AdamW({}, b1, b2, eps)

    def __call__(self, w: Array, g: Array, lr: float, decay: float) -> Array:
        w = self.inner(w, g, lr, decay)
        for row in range(len(w) if w.ndim > 1 else 0):
            for block in range(0, w.shape[1], 256):
                m, v = self.inner.m[row, block : block + 256], self.inner.v[row, block : block + 256]
                m[:] = np.sign(m) * self.rounded(np.abs(m), 127, 2, 0)
                v[:] = self.rounded(v, 255, 4, 1)
        return w

    @staticmethod
    def rounded(x: Array, codes: int, power: int, least: int) -> Array:
        """Each x as scale * (c / codes)^power with the c that is nearest; what is not zero has at least `least`."""
        if not x.any():
            return x
        wanted = codes * (x / x.max()) ** (1 / power)
        c = np.abs(wanted[:, None] - np.arange(codes + 1)).argmin(1)
        return x.max() * (np.where(x > 0, np.maximum(c, least), c) / codes) ** power


class Adafactor:
    """Algorithms 4 and 5 of 1804.04235, with their relative steps; a vector's second moment is whole."""

    def __init__(self, options: Options, b1: float = 0.0, b2: float = 0.0) -> None:
        self.power, self.eps2 = options.get("beta2_decay", -0.8), options.get("eps2", 1e-3)
        self.d, self.t, self.r, self.c = options.get("d", 1.0), 0, 0.0, 0.0

    def __call__(self, w: Array, g: Array, lr: float, decay: float) -> Array:
        self.t += 1
        keep, squares = 1 - self.t**self.power, g**2 + 1e-30
        self.r = keep * self.r + (1 - keep) * (squares.sum(1) if g.ndim > 1 else squares)
        self.c = keep * self.c + (1 - keep) * squares.sum(0)
        v = np.outer(self.r, self.c) / self.r.sum() if g.ndim > 1 else self.r
        u = g / np.sqrt(v)
        u = u / max(1, np.sqrt((u**2).mean()) / self.d)
        size = min(lr, self.t**-0.5) * max(self.eps2, np.sqrt((w**2).mean()))
        return w - size * u - lr * decay * w


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


#: By name; what takes whole matrices is called with nothing else.
FORMULAS: dict[str, Callable[..., Formula]] = {
    "adafactor": Adafactor,
    "adam": Adam,
    "adamh": AdamH,
    "adamw": AdamW,
    "adamw8bit": AdamW8bit,
    "ademamix": AdEMAMix,
    "apollo": Apollo,
    "galore_adamw": GaLore,
    "lion": Lion,
    "muon": Muon,
    "muonh": MuonH,
    "normuon": NorMuon,
    "rmsprop": RMSProp,
    "schedule_free_adamw": ScheduleFreeAdamW,
    "sgd": SGD,
    "shampoo": Shampoo,
    "soap": SOAP,
    "sophia_g": partial(Sophia, 0.05),
    "sophia_h": partial(Sophia, 0.01),
}
