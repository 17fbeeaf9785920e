"""APOLLO as a class of torch, for one whole matrix."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from froude.optimizers import low_rank
from froude.train.optimizers.composed import started
from froude.train.optimizers.galore import wide

#: By how much the norm of an update may grow in a step (Zhu et al. 2412.05270).
GROWTH = 1.01


class Apollo(torch.optim.Optimizer):
    """The update is `froude.optimizers.low_rank`'s, in the weight's dtype.

    Keys of a group: `lr`, `betas`, `eps`, `weight_decay`, `rank`, `every`, `scale`.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-2,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        rank: int = 0,
        every: int = 200,
        scale: float = 1.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "rank": rank, "every": every, "scale": scale})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            (beta1, beta2), lr = group["betas"], group["lr"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state: dict[str, Tensor] = self.state[parameter]
                if not state:
                    for key, held in low_rank.apollo_state(group["rank"], tuple(parameter.shape)).items():
                        state[key] = started(held, parameter)
                weight, gradient = wide(parameter), wide(parameter.grad)
                mean, square = state["exp_avg"], state["exp_avg_sq"]
                changes = int(state["step"].item()) // group["every"]
                state["step"] += 1
                step = state["step"].item()
                seen = (
                    projection(len(mean), len(gradient), changes, gradient.dtype, gradient.device) @ gradient
                )
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
