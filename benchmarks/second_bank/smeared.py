"""The package's model with keys that know the token before their own ("smeared keys", Olsson et al. 2209.11895).

One layer can then copy what followed an earlier occurrence of a token, where else it takes two that must find each
other: models of all sizes learn it early. Half of a key is the token before's at first.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from froude.config import Run
from froude.train.model import Block, Transformer


class SmearedBlock(Block):
    """A block with one gain a head: the share of a key that is the token before's, by a sigmoid."""

    def __init__(self, run: Run, prefix: str) -> None:
        super().__init__(run, prefix)
        self.smear_gain = nn.Parameter(torch.zeros(self.H))

    def _heads(self, x_BxTxD: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k_BxHxTxK, v = super()._heads(x_BxTxD, cos, sin)
        before = F.pad(k_BxHxTxK[:, :, :-1], (0, 0, 1, 0))
        share = torch.sigmoid(self.smear_gain).to(before.dtype)[:, None, None]
        return q, torch.lerp(k_BxHxTxK, before, share), v


class Smeared(Transformer):
    """The transformer made of such blocks."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.layers = nn.ModuleList(SmearedBlock(run, f"layers.{i}") for i in range(run.model.depth))
