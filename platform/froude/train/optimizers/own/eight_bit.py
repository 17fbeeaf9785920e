"""AdamW with moments of 8 bits as a class of torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from froude.optimizers import Held, eight_bit
from froude.train.optimizers.own.one_by_one import OneByOne
from froude.train.parallel import local

#: The largest code; those of a moment without signs have none.
MOST = {torch.int8: 127, torch.uint8: 255}


class AdamW8bit(OneByOne):
    """Update, codes and blocks are `froude.optimizers.eight_bit`'s; a row needs nothing but itself.

    Keys of a group: `lr`, `betas`, `eps`, `weight_decay`.
    """

    def _held(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Held]:
        return eight_bit.state(None, shape)

    def _move(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]
    ) -> None:
        (beta1, beta2), lr = group["betas"], group["lr"]
        state["step"] += 1
        step = state["step"].item()
        weight, gradient = local(weight), local(gradient)
        mean = _read(state, "exp_avg", weight.dtype).lerp_(gradient, 1 - beta1)
        square = _read(state, "exp_avg_sq", weight.dtype).mul_(beta2)
        square.addcmul_(gradient, gradient, value=1 - beta2)
        size = square.div(1 - beta2**step).sqrt_().add_(group["eps"])
        weight.mul_(1 - lr * group["weight_decay"])
        weight.addcdiv_(mean, size, value=-lr / (1 - beta1**step))
        _write(state, "exp_avg", mean)
        _write(state, "exp_avg_sq", square)


def _read(state: dict[str, Tensor], name: str, dtype: torch.dtype) -> Tensor:
    """A moment as numbers; one that is kept as such is changed in place."""
    codes = local(state[name])
    if f"{name}_scale" not in state:
        return codes
    shares = codes.to(dtype).div_(MOST[codes.dtype])
    shares = shares.mul_(shares.abs()) if codes.dtype == torch.int8 else shares.square_().square_()
    rows = shares.flatten(1)
    rows.mul_(_by_element(local(state[f"{name}_scale"]), rows))
    return shares


def _write(state: dict[str, Tensor], name: str, moment: Tensor) -> None:
    """Keep a moment as its nearest codes; only a zero has that of zero in a moment without signs."""
    if f"{name}_scale" not in state:
        return
    codes, rows = local(state[name]), moment.flatten(1)
    sizes = rows.abs()
    block = min(eight_bit.BLOCK, rows.shape[1])
    scales = pad(sizes, (0, -rows.shape[1] % block)).unflatten(1, (-1, block)).amax(2)
    local(state[f"{name}_scale"]).copy_(scales)
    shares = sizes.div_(_by_element(scales.masked_fill(scales == 0, 1.0), rows)).sqrt_()
    if codes.dtype == torch.int8:
        found = shares.mul_(MOST[codes.dtype]).round_().copysign_(rows)
    else:
        found = shares.sqrt_().mul_(MOST[codes.dtype]).round_().maximum(rows.sign())
    codes.copy_(found.view_as(moment))


def _by_element(scales: Tensor, rows: Tensor) -> Tensor:
    """Each block's scale for all of its elements."""
    columns = rows.shape[1]
    block = min(eight_bit.BLOCK, columns)
    return scales.unsqueeze(2).expand(-1, -1, block).flatten(1)[:, :columns]
