"""AdEMAMix as a class of torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from froude.train.parallel import local


class AdEMAMix(torch.optim.Optimizer):
    """The update is `froude.optimizers.adam`'s; a row needs nothing but itself.

    Keys of a group: `lr`, `betas` (the third is the slow mean's), `eps`, `weight_decay`, `alpha`, `warmup` in steps. A
    parameter without a gradient stays as it is, decay included.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float, float] = (0.9, 0.999, 0.9999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        alpha: float = 5.0,
        warmup: int = 0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "alpha": alpha, "warmup": warmup})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            if not moved:
                continue
            states = [self._state(p) for p in moved]
            for state in states:
                state["step"] += 1
            steps = [state["step"].item() for state in states]
            weights = [local(p) for p in moved]
            gradients = [local(p.grad) for p in moved]
            fast, slow, squares = (
                [local(state[key]) for state in states] for key in ("exp_avg", "exp_avg_slow", "exp_avg_sq")
            )
            (beta1, beta2, beta3), lr, warmup = group["betas"], group["lr"], group["warmup"]
            torch._foreach_lerp_(fast, gradients, 1 - beta1)
            torch._foreach_lerp_(slow, gradients, [1 - slowness(t, beta1, beta3, warmup) for t in steps])
            torch._foreach_mul_(squares, beta2)
            torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
            direction = torch._foreach_mul(slow, [group["alpha"] * share(t, warmup) for t in steps])
            torch._foreach_add_(direction, torch._foreach_div(fast, [1 - beta1**t for t in steps]))
            size = torch._foreach_div(squares, [1 - beta2**t for t in steps])
            torch._foreach_sqrt_(size)
            torch._foreach_add_(size, group["eps"])
            torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
            torch._foreach_addcdiv_(weights, direction, size, -lr)

    def _state(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            for key in ("exp_avg", "exp_avg_slow", "exp_avg_sq"):
                state[key] = torch.zeros_like(parameter)
        return state


def share(step: float, warmup: int) -> float:
    """How far the warm-up is at a step, which is counted from one."""
    return min(1.0, step / warmup) if warmup else 1.0


def slowness(step: float, beta1: float, beta3: float, warmup: int) -> float:
    """The slow mean's beta: its half-life, -1 / log2(beta), goes linearly from that of `beta1` to that of `beta3`."""
    done = share(step, warmup)
    first = 1 / math.log(beta1) if beta1 else 0.0
    return beta3 if done == 1 else math.exp(1 / ((1 - done) * first + done / math.log(beta3)))
