"""Sophia as a class of torch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from froude.optimizers import Held
from froude.train.optimizers.own.one_by_one import OneByOne
from froude.train.parallel import local


class Sophia(OneByOne):
    """The update is `froude.optimizers.sophia`'s; a row needs nothing but itself.

    Keys of a group: `lr`, `beta1`, `gamma`, `eps`, `weight_decay`. `hessian` in the state is brought up to date by
    `froude.train.optimizers.curvature`.
    """

    def _held(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Held]:
        return {"exp_avg": Held(shape), "hessian": Held(shape)}

    def _move(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]
    ) -> None:
        weight, lr = local(weight), group["lr"]
        mean = local(state["exp_avg"]).lerp_(local(gradient), 1 - group["beta1"])
        size = local(state["hessian"]).mul(group["gamma"]).clamp_(min=group["eps"])
        weight.mul_(1 - lr * group["weight_decay"])
        weight.sub_(size.reciprocal_().mul_(mean).clamp_(-1, 1), alpha=lr)
