"""Angles by which RoPE turns queries and keys (Su et al. 2104.09864), and how they are slowed for a longer context."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from froude.sections import Model

#: Llama 3.1 (2407.21783 has the base; these are in its published code): wavelengths of less than a quarter of the
#: original context stay, those longer than it are stretched by all of the factor, those between by some of it.
SHORT, LONG = 4.0, 1.0
#: YaRN (Peng et al. 2309.00071, section 3.2): pairs that turn more than 32 times in the original context stay, those
#: that turn less than once are stretched by all of the factor.
FAST, SLOW = 32.0, 1.0


def tables(shape: Model) -> tuple[Tensor, Tensor]:
    """Cosines and sines [context, head_dim], fp32, each angle twice; YaRN's times its factor on queries and keys."""
    turned = frequencies(shape).repeat(2)
    angle = torch.arange(shape.context, device="cpu").double()[:, None] * turned[None]
    cos, sin = angle.cos(), angle.sin()
    if shape.rope_scaling == "yarn":  # equation 22; in both of q·k, so squared there
        size = 0.1 * math.log(shape.rope_factor) + 1
        cos, sin = cos * size, sin * size
    return cos.float(), sin.float()


def frequencies(shape: Model) -> Tensor:
    """Radians a token of each pair of features, fp64 [head_dim / 2]."""
    own = shape.rope_base ** (-torch.arange(0, shape.head_dim, 2, device="cpu").double() / shape.head_dim)
    if shape.rope_scaling == "none":
        return own
    kept = _llama3(own, shape) if shape.rope_scaling == "llama3" else _yarn(shape)
    return own * kept + own / shape.rope_factor * (1 - kept)


def _llama3(own: Tensor, shape: Model) -> Tensor:
    """The share of each frequency that stays: a ramp over turns in the original context."""
    turns = shape.rope_original * own / (2 * math.pi)
    return ((turns - LONG) / (SHORT - LONG)).clamp(0, 1)


def _yarn(shape: Model) -> Tensor:
    """The share of each frequency that stays: a ramp over pairs, from those with FAST turns to those with SLOW."""

    def pair(turns: float) -> float:
        reached = shape.rope_original / (turns * 2 * math.pi)
        return shape.head_dim * math.log(reached) / (2 * math.log(shape.rope_base))

    first, last = max(math.floor(pair(FAST)), 0), min(math.ceil(pair(SLOW)), shape.head_dim - 1)
    numbers = torch.arange(shape.head_dim // 2, device="cpu").double()
    return 1 - ((numbers - first) / max(last - first, 0.001)).clamp(0, 1)
