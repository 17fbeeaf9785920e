"""Lion as a class of torch (docs/decisions/0024)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from froude.train.parallel import local


class Lion(torch.optim.Optimizer):
    """The update is `froude.optimizers.lion`'s: every element moves by the rate, so a row needs nothing but itself.

    Keys of a group: `lr`, `betas`, `weight_decay`. A parameter without a gradient stays as it is, decay included.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            if not moved:
                continue
            for parameter in moved:
                if not self.state[parameter]:
                    self.state[parameter]["exp_avg"] = torch.zeros_like(parameter)
            weights = [local(p) for p in moved]
            gradients = [local(p.grad) for p in moved]
            averages = [local(self.state[p]["exp_avg"]) for p in moved]
            (beta1, beta2), lr = group["betas"], group["lr"]
            torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
            direction = torch._foreach_lerp(averages, gradients, 1 - beta1)
            torch._foreach_sign_(direction)
            torch._foreach_add_(weights, direction, alpha=-lr)
            torch._foreach_lerp_(averages, gradients, 1 - beta2)
