"""The formulas of optimizers of whole matrices; the others are in optimizer_formulas.py, with what is asked of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Options = Mapping[str, Any]


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


class Momentum:
    """Muon's direction, before it is given a size."""

    def __init__(self, options: Options, b1: float) -> None:
        self.b1, self.nesterov, self.m = b1, options.get("nesterov", True), 0.0

    def __call__(self, g: Array) -> Array:
        self.m = self.b1 * self.m + (1 - self.b1) * g
        return newton_schulz(self.b1 * self.m + (1 - self.b1) * g if self.nesterov else self.m)


class Muon:
    def __init__(self, options: Options, b1: float = 0.9, b2: float = 0.0) -> None:
        self.scale, self.direction = options.get("scale", "spectral"), Momentum(options, b1)

    def __call__(self, w: Array, g: Array, lr: float, decay: float) -> Array:
        rows, columns = w.shape
        scale = {
            "spectral": np.sqrt(rows / columns),
            "original": np.sqrt(max(1, rows / columns)),
            "match_rms": 0.2 * np.sqrt(max(rows, columns)),
        }[self.scale]
        return w * (1 - lr * decay) - lr * scale * self.direction(g)


class NorMuon:
    """2510.05491, algorithm 1; the look-ahead is its authors' code's."""

    def __init__(self, options: Options, b1: float = 0.9, b2: float = 0.95, eps: float = 1e-8) -> None:
        self.b2, self.eps, self.v, self.direction = b2, eps, 0.0, Momentum(options, b1)

    def __call__(self, w: Array, g: Array, lr: float, decay: float) -> Array:
        o = self.direction(g)
        self.v = self.b2 * self.v + (1 - self.b2) * np.array([[np.mean(row**2)] for row in o])
        o = o / (np.sqrt(self.v) + self.eps)
        rate = 0.2 * lr * np.sqrt(w.size) / np.linalg.norm(o)
        return w * (1 - lr * decay) - rate * o


class Hyperball:
    """2606.16899; R is kept in single precision."""

    R: float | None = None

    def sphere(self, w: Array, u: Array, lr: float) -> Array:
        if self.R is None:
            self.R = float(np.float32(np.linalg.norm(w)))
        moved = w / self.R - lr * u / np.linalg.norm(u)
        return moved / np.linalg.norm(moved) * self.R


class AdamH(Hyperball):
    def __init__(self, options: Options, b1: float = 0.9, b2: float = 0.95, eps: float = 1e-8) -> None:
        self.b1, self.b2, self.eps, self.t, self.m, self.v = b1, b2, eps, 0, 0.0, 0.0

    def __call__(self, w: Array, g: Array, lr: float, decay: float) -> Array:
        self.t += 1
        self.m = self.b1 * self.m + (1 - self.b1) * g
        self.v = self.b2 * self.v + (1 - self.b2) * g**2
        m, v = self.m / (1 - self.b1**self.t), self.v / (1 - self.b2**self.t)
        return self.sphere(w, m / (np.sqrt(v) + self.eps), lr)


class MuonH(Hyperball):
    def __init__(self, options: Options, b1: float = 0.9, b2: float = 0.0) -> None:
        self.direction = Momentum(options, b1)

    def __call__(self, w: Array, g: Array, lr: float, decay: float) -> Array:
        return self.sphere(w, self.direction(g), lr)


class SOAP:
    """2409.11321, algorithms 3 and 4, from the axes; the first basis by a singular value decomposition of the gradient.

    What of a basis no gradient has is that of diag(1, 2, ...) confined to it.
    """

    def __init__(self, options: Options, b1: float = 0.9, b2: float = 0.95, eps: float = 1e-8) -> None:
        self.b1, self.b2, self.eps, self.t, self.m, self.v = b1, b2, eps, 0, 0.0, 0.0
        self.b, self.every = options.get("shampoo_beta", 0.95), options.get("every", 10)
        self.longest = options.get("max_side", 10_000)

    def __call__(self, w: Array, g: Array, lr: float, decay: float) -> Array:
        self.t += 1
        if self.t == 1:
            self.L, self.R = (np.zeros((side, side)) for side in w.shape)
            self.A, self.B = (np.eye(side) for side in w.shape)
        self.m = self.b1 * self.m + (1 - self.b1) * g
        self.v = self.b2 * self.v + (1 - self.b2) * (self.A.T @ g @ self.B) ** 2
        m, v = self.A.T @ self.m @ self.B / (1 - self.b1**self.t), self.v / (1 - self.b2**self.t)
        n = self.A @ (m / (np.sqrt(v) + self.eps)) @ self.B.T
        self.L = self.b * self.L + (1 - self.b) * g @ g.T
        self.R = self.b * self.R + (1 - self.b) * g.T @ g
        left, right = (side <= self.longest for side in w.shape)
        if self.t == 1:
            self.A, self.B = vectors(g) if left else self.A, vectors(g.T) if right else self.B
        elif self.t % self.every == 0:
            if left:
                self.A, order = turned(self.L, self.A)
                self.v = self.v[order]
            if right:
                self.B, order = turned(self.R, self.B)
                self.v = self.v[:, order]
        return w * (1 - lr * decay) - lr * n


def vectors(g: Array) -> Array:
    """The left singular vectors of a matrix whose rank is its shorter side."""
    found = np.linalg.svd(g, full_matrices=True)[0]
    rank, rows = min(g.shape), len(g)
    rest = found[:, rank:]
    projected = rest @ rest.T @ np.diag(np.arange(rows) + 1.0) @ rest @ rest.T
    # Zero on what a gradient has, at least 1 on the rest.
    confined = np.linalg.eigh(projected)[1][:, rank:]
    return np.hstack([found[:, :rank], confined])


def turned(average: Array, basis: Array) -> tuple[Array, list[int]]:
    """The QR of a product, its vectors in the order of their Rayleigh quotients."""
    quotients = [vector @ average @ vector for vector in basis.T]
    order = sorted(range(len(average)), key=lambda i: -quotients[i])
    return np.linalg.qr(average @ basis[:, order])[0], order


class Shampoo:
    """1802.09018, with the averages, corrections and graft of 2309.06497."""

    def __init__(self, options: Options, b1: float = 0.9, b2: float = 0.95, eps: float = 1e-8) -> None:
        self.b1, self.b2, self.eps, self.t, self.m, self.v = b1, b2, eps, 0, 0.0, 0.0
        self.L, self.R = 0.0, 0.0
        self.every, self.ridge = options.get("every", 10), options.get("ridge", 1e-6)
        self.grafted = options.get("graft", "adam") == "adam"

    def __call__(self, w: Array, g: Array, lr: float, decay: float) -> Array:
        self.t += 1
        self.m, self.v, self.L, self.R = (
            b * average + (1 - b) * new
            for b, average, new in (
                (self.b1, self.m, g),
                (self.b2, self.v, g**2),
                (self.b2, self.L, g @ g.T),
                (self.b2, self.R, g.T @ g),
            )
        )
        c1, c2 = 1 - self.b1**self.t, 1 - self.b2**self.t
        if self.t % self.every == 0 or self.t < self.every:
            self.roots = [self.root(average / c2) for average in (self.L, self.R)]
        left, right = self.roots
        u = left @ (self.m / c1) @ right
        if self.grafted:
            adam = self.m / c1 / (np.sqrt(self.v / c2) + self.eps)
            u = u / np.linalg.norm(u) * np.linalg.norm(adam)
        return w * (1 - lr * decay) - lr * u

    def root(self, average: Array) -> Array:
        """The inverse fourth root as the inverse of the square root of a square root."""
        length = len(average)
        whole = average + self.ridge * np.trace(average) / length * np.eye(length)
        return np.linalg.inv(square_root(square_root(whole)))


def square_root(matrix: Array) -> Array:
    """Of a symmetric positive matrix, by its singular values."""
    u, s, _ = np.linalg.svd(matrix, hermitian=True)
    return (u * np.sqrt(s)) @ u.T
