"""GaLore's AdamW as a class of torch, for one whole matrix."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from froude.optimizers import Held, low_rank
from froude.train.optimizers.own.one_by_one import OneByOne


class GaLoreAdamW(OneByOne):
    """The update is `froude.optimizers.low_rank`'s, in the weight's dtype.

    Keys of a group: `lr`, `betas`, `eps`, `weight_decay`, `rank`, `every`, `scale`.
    """

    def _held(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Held]:
        return low_rank.galore_state(group["rank"], shape)

    def _move(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]
    ) -> None:
        (beta1, beta2), lr = group["betas"], group["lr"]
        weight, gradient = wide(weight), wide(gradient)
        basis, mean, square = state["basis"], state["exp_avg"], state["exp_avg_sq"]
        weight.mul_(1 - lr * group["weight_decay"])
        if state["step"].item() % group["every"] == 0:
            largest = gradient.abs().max().item()
            if 0 < largest < math.inf:
                new = leading(gradient, basis.shape[1])
                turned = new.T @ basis
                mean.copy_(turned @ mean)
                square.copy_(turned.square() @ square)
                basis.copy_(new)
            elif largest == 0 and state["step"] == 0:
                return
        state["step"] += 1
        step = state["step"].item()
        seen = basis.T @ gradient
        mean.lerp_(seen, 1 - beta1)
        square.mul_(beta2).addcmul_(seen, seen, value=1 - beta2)
        size = square.div(1 - beta2**step).sqrt_().add_(group["eps"])
        weight.add_(basis @ (mean / size), alpha=-lr * group["scale"] / (1 - beta1**step))


def leading(gradient: Tensor, rank: int) -> Tensor:
    """The first left singular vectors, the largest entry of each positive; zeros where the singular value is none."""
    vectors, values, _ = torch.linalg.svd(gradient, full_matrices=False)
    first: Tensor = vectors[:, :rank]
    largest = first.gather(0, first.abs().argmax(0, keepdim=True))
    least = values[0] * max(gradient.shape) * torch.finfo(values.dtype).eps
    return first * torch.where(values[:rank] > least, largest.sign(), 0.0)


def wide(matrix: Tensor) -> Tensor:
    """The matrix or its transpose, whichever has no more rows than columns; a view."""
    return matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
