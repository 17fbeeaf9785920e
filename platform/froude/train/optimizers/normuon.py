"""NorMuon as a class of torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from froude.optimizers.spectral import normuon_state
from froude.train.optimizers.composed import started
from froude.train.optimizers.newton_schulz import orthogonal

#: The RMS of an update under a rate of 1, as AdamW's was measured to be (Liu et al. 2502.16982).
RMS = 0.2


class NorMuon(torch.optim.Optimizer):
    """The update is `froude.optimizers.spectral`'s, of whole matrices.

    Keys of a group: `lr`, `betas`, `eps`, `weight_decay`, `nesterov`.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        nesterov: bool = True,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "nesterov": nesterov}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, weight.grad, group)

    def _move(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[weight], group["betas"]
        if not state:
            held = normuon_state(tuple(weight.shape))
            state.update({key: started(each, weight) for key, each in held.items()})
        momentum, of_rows = state["momentum_buffer"], state["second_moment"]
        momentum.lerp_(gradient, 1 - beta1)
        update = orthogonal(gradient.lerp(momentum, beta1) if group["nesterov"] else momentum)
        of_rows.lerp_(update.square().mean(1, keepdim=True), 1 - beta2)
        update /= of_rows.sqrt() + group["eps"]
        length = torch.linalg.vector_norm(update).clamp(min=torch.finfo(update.dtype).tiny)
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.sub_(update / length, alpha=group["lr"] * RMS * weight.numel() ** 0.5)
