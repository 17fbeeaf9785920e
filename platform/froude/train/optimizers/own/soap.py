"""SOAP as a class of torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from froude.optimizers import Held
from froude.optimizers.eigenbasis import soap_state
from froude.train.optimizers.own.one_by_one import OneByOne


class SOAP(OneByOne):
    """The update is `froude.optimizers.eigenbasis`', of whole matrices.

    Keys of a group: `lr`, `betas`, `eps`, `weight_decay`, `shampoo_beta`, `every`, `max_side`.
    """

    def _held(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Held]:
        return soap_state(shape, group["max_side"])

    def _move(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]
    ) -> None:
        beta1, beta2 = group["betas"]
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        if not state["step"] and not gradient.any():
            return
        step = int(state["step"].add_(1))
        average, squares = state["exp_avg"], state["exp_avg_sq"]
        average.lerp_(gradient, 1 - beta1)
        seen = _turned(gradient, state, step)
        squares.mul_(beta2).addcmul_(seen, seen, value=1 - beta2)
        size = (squares / (1 - beta2**step)).sqrt() + group["eps"]
        update = _turned(average, state, step) / (1 - beta1**step) / size
        weight.sub_(_turned(update, state, step, back=True), alpha=group["lr"])

        for side, dimension in (("left", 0), ("right", 1)):
            if side in state:
                across = gradient.movedim(dimension, 0)
                state[side].lerp_(across @ across.T, 1 - group["shampoo_beta"])
                if step == 1:
                    state[f"{side}_basis"].copy_(eigenvectors(state[side]))
                elif step % group["every"] == 0:
                    order = _turn(state[side], state[f"{side}_basis"])
                    squares.copy_(squares.index_select(dimension, order))


def _turned(matrix: Tensor, state: dict[str, Tensor], step: int, *, back: bool = False) -> Tensor:
    """The matrix as it is seen in the bases, of which there are none in the first step; or one seen so, put back."""
    left, right = (state.get(f"{side}_basis") if step > 1 else None for side in ("left", "right"))
    if left is not None:
        matrix = (left if back else left.T) @ matrix
    if right is not None:
        matrix = matrix @ (right.T if back else right)
    return matrix


def eigenvectors(average: Tensor) -> Tensor:
    """Of a symmetric matrix, the largest eigenvalue first; computed in fp64.

    Vectors of the eigenvalue zero could be any of their span, and LAPACK's choice would be seen in the training: they
    are made those of diag(1, 2, 3, ...) within it, which are axes where the span is of axes.
    """
    values, vectors = torch.linalg.eigh(average.double())
    values, vectors = values.flip(0), vectors.flip(1)
    length = len(values)
    empty = vectors[:, values <= length * torch.finfo(average.dtype).eps * values[0]]
    if empty.shape[1]:
        numbers = torch.arange(1, length + 1, device=average.device)
        within = empty.T @ (numbers[:, None] * empty)
        vectors[:, length - empty.shape[1] :] = empty @ torch.linalg.eigh(within).eigenvectors
    found: Tensor = vectors.to(average.dtype)
    return found


def _turn(average: Tensor, basis: Tensor) -> Tensor:
    """Bring the basis nearer to the eigenvectors, in place; the order in which its vectors were taken."""
    product = average @ basis
    order: Tensor = (basis * product).sum(0).argsort(descending=True, stable=True)
    basis.copy_(torch.linalg.qr(product[:, order]).Q)
    return order
