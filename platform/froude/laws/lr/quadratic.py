"""Least squares of U-curves of several sizes that share one curvature in ln lr."""

import math
from dataclasses import dataclass

import numpy as np

from froude.laws.stats.frames import Array

BLOCK = 20_000  # rows


@dataclass(frozen=True, eq=False)
class Quadratic:
    """Least squares of loss = floor[width] + column terms + c2 · x² with a curvature common to all widths."""

    beta: Array
    covariance: Array
    noise: float
    dof: int
    inverse: Array

    @property
    def squares(self) -> float:
        """The sum of squared residuals."""
        return self.noise**2 * self.dof if self.dof > 0 else 0.0

    def ratio(self, weights: Array) -> tuple[float, float]:
        """Return -(weights · beta) / (2 c2) and its standard error (delta method); c2 is the last coefficient."""
        top, c2 = float(weights @ self.beta), float(self.beta[-1])
        gradient = -weights / (2 * c2)
        gradient[-1] += top / (2 * c2 * c2)
        return -top / (2 * c2), math.sqrt(max(float(gradient @ self.covariance @ gradient), 0.0))

    def unit(self, index: int) -> Array:
        """Return weights that pick one coefficient."""
        weights = np.zeros(self.beta.size)
        weights[index] = 1.0
        return weights


def own_design(x: Array, sizes: Array, widths: tuple[float, ...]) -> Array:
    """Return the columns of a parabola per width: floors, slopes, and the common curvature."""
    floors = (sizes[:, None] == np.array(widths)).astype(np.float64)
    return np.column_stack([floors, floors * x[:, None], x**2])


def least_squares(design: Array, y: Array) -> Quadratic | None:
    """Return the fit; None where the rows do not determine it."""
    dof = y.size - design.shape[1]
    if dof < 0:
        return None
    r, projected = _triangle(design, y)
    singular = np.linalg.svd(r, compute_uv=False)
    if not singular[-1] > singular[0] * y.size * np.finfo(np.float64).eps:
        return None
    beta = np.asarray(np.linalg.solve(r, projected), dtype=np.float64)
    residual = y - design @ beta
    noise = math.sqrt(float(residual @ residual) / dof) if dof > 0 else math.nan
    inverse = np.asarray(np.linalg.inv(r.T @ r), dtype=np.float64)
    return Quadratic(beta, noise**2 * inverse, noise, dof, inverse)


def _triangle(design: Array, y: Array) -> tuple[Array, Array]:
    """Return R and Q'y of design = QR; of many rows, block by block without Q, which would take most of the time."""
    if y.size <= BLOCK:
        q, r = np.linalg.qr(design)
        return r, np.asarray(q.T @ y)
    both = np.column_stack([design, y])
    blocks = [np.linalg.qr(both[i : i + BLOCK], mode="r") for i in range(0, y.size, BLOCK)]
    whole = np.asarray(np.linalg.qr(np.concatenate(blocks), mode="r"))
    return whole[:-1, :-1], whole[:-1, -1]
