"""GaLore and APOLLO in NumPy and fp64, from their papers; `optimizer_formulas` says what a formula is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.float64]
Options = Mapping[str, Any]


class GaLore:
    """Algorithm 2 of 2403.03507; what P was is kept whole, so that moments can be carried from one space to another."""

    def __init__(self, options: Options, b1: float = 0.9, b2: float = 0.95, eps: float = 1e-8) -> None:
        self.b1, self.b2, self.eps, self.t = b1, b2, eps, 0
        self.rank, self.every = options.get("rank", 0), options.get("every", 200)
        self.scale = options.get("scale", 0.25)

    def __call__(self, w: Array, g: Array, lr: float, decay: float) -> Array:
        if w.shape[0] > w.shape[1]:
            return self(w.T, g.T, lr, decay).T
        rank = self.rank or w.shape[0] // 4
        if self.t == 0:
            self.p = np.zeros((w.shape[0], rank))
            self.m, self.v = np.zeros((2, rank, w.shape[1]))
        if self.t % self.every == 0:
            # Eigenvectors of g g' are g's left singular vectors; the largest eigenvalues come last.
            p = np.linalg.eigh(g @ g.T)[1][:, ::-1][:, :rank]
            old, self.p = self.p, p
            self.m = p.T @ (old @ self.m)
            # The variances of p' (old x), where the elements of x are uncorrelated.
            self.v = np.einsum("ik,kj->ij", np.einsum("ai,ak->ik", p, old) ** 2, self.v)
        self.t += 1
        r = self.p.T @ g
        self.m = self.b1 * self.m + (1 - self.b1) * r
        self.v = self.b2 * self.v + (1 - self.b2) * r**2
        m, v = self.m / (1 - self.b1**self.t), self.v / (1 - self.b2**self.t)
        return w - lr * decay * w - lr * self.scale * self.p @ (m / (np.sqrt(v) + self.eps))


class Apollo:
    """Algorithm 1 of 2412.05270, with scales for channels; random numbers are torch's, of the seed that we document."""

    def __init__(self, options: Options, b1: float = 0.9, b2: float = 0.95, eps: float = 1e-8) -> None:
        self.b1, self.b2, self.eps, self.t, self.m, self.v = b1, b2, eps, 0, 0.0, 0.0
        self.rank, self.every = options.get("rank", 0), options.get("every", 200)
        self.scale, self.last = options.get("scale", 1.0), np.inf

    def __call__(self, w: Array, g: Array, lr: float, decay: float) -> Array:
        if w.shape[0] > w.shape[1]:
            return self(w.T, g.T, lr, decay).T
        rank = self.rank or w.shape[0] // 4
        name = f"apollo {rank} {w.shape[0]} {self.t // self.every}"
        seed = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)
        drawn = torch.randn(
            rank, w.shape[0], dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
        )
        self.t += 1
        r = drawn.numpy() @ g / np.sqrt(rank)
        self.m = self.b1 * self.m + (1 - self.b1) * r
        self.v = self.b2 * self.v + (1 - self.b2) * r**2
        u = (self.m / (1 - self.b1**self.t)) / (np.sqrt(self.v / (1 - self.b2**self.t)) + self.eps)
        step = g @ np.diag(self.scale * np.sqrt((u**2).sum(0) / (r**2).sum(0)))
        norm = np.sqrt((step**2).sum())
        if norm > 1.01 * self.last:
            step, norm = step / norm * 1.01 * self.last, 1.01 * self.last
        self.last = norm
        return w - lr * (step + decay * w)
