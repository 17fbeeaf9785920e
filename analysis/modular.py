"""Addition modulo p, for grokking.ipynb: a source of all pairs, and a network that reads both numbers at once.

A window is (a, b, a + b mod p). What b is cannot be told from a, so the network says nothing there: its logits are
zero, and a loss per token is half of ln p + that of the sum.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from froude.config import Run
from froude.train.api import initial_sd, multiplier


class Pairs:
    """Of all a and b below `data.options.p`, the `share` that is trained on, drawn once for all runs, or the others.

    (a, b) and (b, a) are in one split: to know one is to know the other.
    """

    def __init__(self, run: Run, split: str) -> None:
        p, share = int(run.data.options["p"]), float(run.data.options["share"])
        a, b = np.indices((p, p)).reshape(2, -1)
        draw = np.random.default_rng(0).random((p, p))
        here = draw[np.minimum(a, b), np.maximum(a, b)] < share
        windows = np.stack([a, b, (a + b) % p], axis=1)
        self.windows = windows[here if split == "train" else ~here]
        self.length = len(self.windows)
        self.sha256 = hashlib.sha256(windows.tobytes() + here.tobytes()).hexdigest()

    def read(self, first: int, n: int) -> np.ndarray:
        return self.windows[first : first + n]


class Network(nn.Module):
    """logits = R relu(H (E[a] + E[b])), with one table E for both numbers."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        shape, hidden = run.model, 4 * run.model.width
        self.run, self.scale = run, multiplier(run, "logits")
        self.table = nn.Parameter(torch.randn(shape.vocab, shape.width) * initial_sd(run, "embedding", 1))
        self.hidden = nn.Parameter(torch.randn(hidden, shape.width) * initial_sd(run, "hidden", shape.width))
        self.readout = nn.Parameter(torch.randn(shape.vocab, hidden) * initial_sd(run, "readout", hidden))

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.embedding(tokens, self.table).sum(1)
        sums = F.linear(F.relu(F.linear(x, self.hidden)), self.readout) * self.scale
        return torch.stack([torch.zeros_like(sums), sums], dim=1)

    def blocks(self) -> list[nn.Module]:
        return []

    def kinds(self) -> dict[str, str]:
        return {"table": "embedding", "hidden": "hidden", "readout": "readout"}

    def flops_per_token(self) -> float:
        return 6.0 * (self.hidden.numel() + self.readout.numel()) / 2
