"""Shampoo as a class of torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from froude.optimizers.eigenbasis import shampoo_state
from froude.train.optimizers.composed import started


class Shampoo(torch.optim.Optimizer):
    """The update is `froude.optimizers.eigenbasis`', of whole matrices.

    Keys of a group: `lr`, `betas`, `eps`, `weight_decay`, `graft`, `ridge`, `every`.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        graft: str = "adam",
        ridge: float = 1e-6,
        every: int = 10,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults | {"graft": graft, "ridge": ridge, "every": every})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, weight.grad, group)

    def _move(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[weight], group["betas"]
        if not state:
            held = shampoo_state(tuple(weight.shape), group["graft"])
            state.update({key: started(each, weight) for key, each in held.items()})
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        if not state["step"] and not gradient.any():
            return
        step = int(state["step"].add_(1))
        momentum = state["exp_avg"].lerp_(gradient, 1 - beta1) / (1 - beta1**step)
        for side, across in (("left", gradient), ("right", gradient.T)):
            average = state[side].lerp_(across @ across.T, 1 - beta2)
            if step <= group["every"] or step % group["every"] == 0:
                state[f"{side}_root"].copy_(inverse_root(average / (1 - beta2**step), group["ridge"]))
        update = state["left_root"] @ momentum @ state["right_root"]
        if group["graft"] == "adam":
            squares = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            adam = momentum / ((squares / (1 - beta2**step)).sqrt() + group["eps"])
            length = torch.linalg.vector_norm(update).clamp(min=torch.finfo(update.dtype).tiny)
            update *= torch.linalg.vector_norm(adam) / length
        weight.sub_(update, alpha=group["lr"])


def inverse_root(average: Tensor, ridge: float) -> Tensor:
    """(average + ridge * its mean eigenvalue)^(-1/4).

    In fp64: in fp32 updates of matrices of a small model were off by up to 2% after 20 steps, so by 0.03%.
    """
    values, vectors = torch.linalg.eigh(average.double())
    damped = values.clamp(min=0) + ridge * values.mean()
    root: Tensor = (vectors * damped.pow(-0.25)) @ vectors.T
    return root.to(average.dtype)
