"""Clipping that goes by what the run's own gradients were like, before `optimizer.clip` bounds what it leaves.

- `zclip`: the global norm is an outlier if it is z > 2.5 standard deviations above its mean, both moving averages; it
  is then clipped to mean + 2.5^2 / z of them, the less the further out it was (Kumar et al. 2504.02507, algorithm 1).
- `adagc`: the norm of each tensor's gradient is clipped to 1.05 times its own moving average (Wang et al. 2502.11034).

Averages are of clipped norms, so that an outlier hardly moves them, and in fp64. They are in checkpoints, as tensors of
the optimizer's state, and only an update that is made moves them. Norms come from the reduction: in an exact run they,
and what is made of them here, are the same bits at any number of workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from froude.config import Run

SMALL = 1e-6  # keeps a division by a norm or deviation from being one by zero, as in torch.nn.utils.clip_grad_norm_


class Clipping(Protocol):
    """How far gradients are scaled down, by their norms."""

    def shrink(
        self, norm: float, norms: Mapping[str, float], bound: float
    ) -> tuple[float, Mapping[str, float]]:
        """The global norm that is left, and the factors on tensors by name where they are not 1.

        `bound` is that on the global norm, which the caller sees to. Called once for each update.
        """

    def state(self) -> dict[str, Tensor]:
        """The tensors themselves, on the CPU and alike on every rank."""


class Global:
    """The bound alone."""

    def shrink(
        self, norm: float, norms: Mapping[str, float], bound: float
    ) -> tuple[float, Mapping[str, float]]:
        return norm, {}

    def state(self) -> dict[str, Tensor]:
        return {}


class ZClip:
    """Clips outliers of the global norm; `names` are the tensors whose gradient is scaled."""

    KEEP, DEVIATIONS, WARMUP = 0.97, 2.5, 25  # 2504.02507, section 4

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.count, self.mean, self.variance = (_number() for _ in range(3))

    def shrink(
        self, norm: float, norms: Mapping[str, float], bound: float
    ) -> tuple[float, Mapping[str, float]]:
        count, mean, variance = int(self.count), float(self.mean), float(self.variance)
        left = norm
        if count < self.WARMUP:  # the mean and variance of these norms, one by one
            fresh = mean + (norm - mean) / (count + 1)
            variance = (count * variance + (norm - mean) * (norm - fresh)) / (count + 1)
            mean = fresh
        else:
            deviation = variance**0.5
            z = (norm - mean) / (deviation + SMALL)
            if z > self.DEVIATIONS:
                left = mean + self.DEVIATIONS**2 / z * deviation
            mean = self.KEEP * mean + (1 - self.KEEP) * left
            variance = self.KEEP * variance + (1 - self.KEEP) * (left - mean) ** 2
        self.count.fill_(count + 1)
        self.mean.fill_(mean)
        self.variance.fill_(variance)
        return left, dict.fromkeys(self.names, left / norm) if left < norm else {}

    def state(self) -> dict[str, Tensor]:
        return {"count": self.count, "mean": self.mean, "variance": self.variance}


class AdaGC:
    """Clips outliers of each tensor's norm, after 100 updates under the global bound alone.

    The paper begins with the least norm of these updates, which is 0 where a readout starts at zero; here it is an
    average, corrected for its start, and one that is still 0 clips nothing.
    """

    KEEP, ABOVE, WARMUP = 0.98, 1.05, 100  # 2502.11034, section 4

    def __init__(self, names: Sequence[str]) -> None:
        self.count, self.averages = _number(), {name: _number() for name in names}

    def shrink(
        self, norm: float, norms: Mapping[str, float], bound: float
    ) -> tuple[float, Mapping[str, float]]:
        count = int(self.count) + 1
        self.count.fill_(count)
        warming = count <= self.WARMUP
        bounded = min(bound / (norm + SMALL), 1.0)
        weight = (1 - self.KEEP) / (1 - self.KEEP**count if warming else 1.0)
        factors, square = {}, 0.0
        for name, own in norms.items():
            average = float(self.averages[name])
            left = own * bounded if warming else min(own, self.ABOVE * average or own)
            self.averages[name].fill_(average + weight * (left - average) if average else left)
            square += left**2
            if not warming and left < own:
                factors[name] = left / own
        return (square**0.5 if factors else norm), factors

    def state(self) -> dict[str, Tensor]:
        return {"count": self.count} | {f"average.{name}": found for name, found in self.averages.items()}


def clipping(run: Run, names: Sequence[str]) -> Clipping:
    """The run's choice for trained tensors of these names."""
    match run.optimizer.clipping:
        case "zclip":
            return ZClip(names)
        case "adagc":
            return AdaGC(names)
        case _:
            return Global()


def _number() -> Tensor:
    return torch.zeros((), dtype=torch.float64, device="cpu")
