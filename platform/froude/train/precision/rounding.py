"""Stochastic rounding of weights to bf16: up or down by chance, so that on average nothing is lost.

An update that is smaller than half the distance of two neighbours would be rounded away each time (Zamirai et al.
2010.06192); here it is made with a probability of its share of that distance. Chance is a function of seed, step, the
parameter's name and the element's place in the whole parameter, so neither sharding nor the number of workers matters.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn

#: SplitMix64 (Steele, Lea & Flood 2014): the step of its counter and the factors of its mixing, as signed numbers.
GOLDEN, MIX_1, MIX_2 = (
    factor - 2**64 for factor in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
CHUNK = 2**20  # elements whose chances are in memory at once
SHORT = 16  # bits of an fp32 number that bf16 does not have
LANES = 64 // SHORT  # elements that share a number of SplitMix64's, each with bits of its own


@torch.no_grad()
def to_bf16(model: nn.Module) -> None:
    """Keep the model's weights in bf16 from now on, each the nearest to what it was."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.bfloat16()


@dataclass
class Rounding:
    """The rounding of a run's updates; `step` is that of the update to be made, counted from 0."""

    seed: int
    step: int = 0

    @torch.no_grad()
    def __call__(self, values: Tensor, into: Tensor, name: str, first: int = 0) -> None:
        """Round fp32 `values` into a bf16 tensor of their shape, whose first element is number `first` of `name`.

        What bf16 has stays as it is, and so does what is no number.
        """
        source, target = values.reshape(-1), into.view(-1)
        for start in range(0, source.numel(), CHUNK):
            part = source[start : start + CHUNK]
            chance = self.chances(name, first + start, part.numel(), part.device)
            rounded = ((part.view(torch.int32) + chance) >> SHORT).to(torch.int16).view(torch.bfloat16)
            target[start : start + CHUNK] = torch.where(part.isfinite(), rounded, part.bfloat16())

    def chances(self, name: str, first: int, count: int, device: torch.device) -> Tensor:
        """Of `count` elements from `first` on: int32 numbers from 0 to 2^16 - 1, each as likely as any other."""
        digest = hashlib.blake2b(f"{self.seed}:{self.step}:{name}".encode(), digest_size=8).digest()
        key = int.from_bytes(digest, "little", signed=True)
        start = first // LANES
        numbers = torch.arange(start + 1, (first + count - 1) // LANES + 2, dtype=torch.int64, device=device)
        x = numbers.mul_(GOLDEN).add_(key)
        x = _shifted_in(x, 30).mul_(MIX_1)
        x = _shifted_in(x, 27).mul_(MIX_2)
        lanes = _shifted_in(x, 31).view(torch.int16)[first - LANES * start :][:count]
        return lanes.int().bitwise_and_(2**SHORT - 1)


def _shifted_in(x: Tensor, bits: int) -> Tensor:
    """The number x ^ (x >> bits), where x has no sign."""
    return (x >> bits).bitwise_and_(2 ** (64 - bits) - 1).bitwise_xor_(x)
