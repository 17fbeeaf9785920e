"""NorMuon as a class of torch; and five steps of Newton and Schulz, which torch has within its Muon alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from froude.optimizers import Held
from froude.optimizers.spectral import normuon_state
from froude.train.optimizers.own.one_by_one import OneByOne

#: The RMS of an update under a rate of 1, as AdamW's was measured to be (Liu et al. 2502.16982).
RMS = 0.2
#: Of the quintic a x + b x^3 + c x^5, which is steep at zero; Jordan et al. 2024 (kellerjordan.github.io/posts/muon).
A, B, C = 3.4445, -4.7750, 2.0315
STEPS, SMALLEST = 5, 1e-7


class NorMuon(OneByOne):
    """The update is `froude.optimizers.spectral`'s, of whole matrices.

    Keys of a group: `lr`, `betas`, `eps`, `weight_decay`, `nesterov`.
    """

    def _held(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Held]:
        return normuon_state(shape)

    def _move(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]
    ) -> None:
        beta1, beta2 = group["betas"]
        momentum, of_rows = state["momentum_buffer"], state["second_moment"]
        momentum.lerp_(gradient, 1 - beta1)
        update = orthogonal(gradient.lerp(momentum, beta1) if group["nesterov"] else momentum)
        of_rows.lerp_(update.square().mean(1, keepdim=True), 1 - beta2)
        update /= of_rows.sqrt() + group["eps"]
        length = torch.linalg.vector_norm(update).clamp(min=torch.finfo(update.dtype).tiny)
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.sub_(update / length, alpha=group["lr"] * RMS * weight.numel() ** 0.5)


def orthogonal(matrix: Tensor) -> Tensor:
    """A matrix of the same singular vectors, with singular values of about 1: .68 to 1.13 where they were not tiny.

    Computed in bf16, each sum of products rounded once; one of zeros stays as it is.
    """
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = (wide / torch.linalg.vector_norm(wide).clamp(min=SMALLEST)).bfloat16()
    for _ in range(STEPS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    found: Tensor = x if wide is matrix else x.T
    return found.to(matrix.dtype)
