"""APOLLO as a class of torch, for one whole matrix."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import torch
from torch import Tensor

from froude.optimizers import Held, low_rank
from froude.train.optimizers.own.galore import wide
from froude.train.optimizers.own.one_by_one import OneByOne

#: By how much the norm of an update may grow in a step (Zhu et al. 2412.05270).
GROWTH = 1.01


class Apollo(OneByOne):
    """The update is `froude.optimizers.low_rank`'s, in the weight's dtype.

    Keys of a group: `lr`, `betas`, `eps`, `weight_decay`, `rank`, `every`, `scale`.
    """

    def _held(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Held]:
        return low_rank.apollo_state(group["rank"], shape)

    def _move(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]
    ) -> None:
        (beta1, beta2), lr = group["betas"], group["lr"]
        weight, gradient = wide(weight), wide(gradient)
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        changes = int(state["step"].item()) // group["every"]
        state["step"] += 1
        step = state["step"].item()
        seen = projection(len(mean), len(gradient), changes, gradient.dtype, gradient.device) @ gradient
        mean.lerp_(seen, 1 - beta1)
        square.mul_(beta2).addcmul_(seen, seen, value=1 - beta2)
        size = square.div(1 - beta2**step).sqrt_().add_(group["eps"])
        norms = seen.norm(dim=0)
        # A column of zeros is left one, whatever its mean.
        scales = (mean / size).norm(dim=0).div_(norms.masked_fill(norms == 0, torch.inf))
        update = gradient * scales.mul_(group["scale"] / (1 - beta1**step))
        update.mul_(_limit(update.norm(), state["norm"]))
        weight.mul_(1 - lr * group["weight_decay"])
        weight.sub_(update, alpha=lr)


def _limit(norm: Tensor, last: Tensor) -> Tensor:
    """The factor by which an update of this norm is not much larger than the last, whose norm it becomes."""
    most = GROWTH * last
    factor = torch.where((last > 0) & (norm > most), most / norm, 1.0)
    last.copy_(norm * factor)
    return factor


@functools.lru_cache(maxsize=8)
def projection(rank: int, side: int, changes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Normal numbers [rank, side] of variance 1 / rank: those of the given number of changes."""
    digest = hashlib.sha256(f"apollo {rank} {side} {changes}".encode()).digest()
    # The CPU's generator takes no more than 32 bits of a seed.
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))
    drawn = torch.randn(rank, side, generator=generator, dtype=dtype)
    return drawn.div_(rank**0.5).to(device)
