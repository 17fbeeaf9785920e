"""A corpus with marks and a model that they upset: where a loss or a gradient spikes is then up to a test."""

import torch
import torch.nn.functional as F
from torch import nn

from froude.train import api
from froude.train.data.kjv import KingJames
from froude.train.data.order import Batches

#: Bytes that are not in the corpus, and what the model does where a window begins with one.
NAN, STEEP, HIGH = 255, 254, 253


class Spiky(nn.Module):
    """A bigram whose logits become no number, far too large, or all zero."""

    def __init__(self, run):
        super().__init__()
        self.table = nn.Embedding(run.model.vocab, run.model.width)
        self.inner = nn.Linear(run.model.width, run.model.width)
        self.out = nn.Linear(run.model.width, run.model.vocab, bias=False)

    def forward(self, tokens):
        logits = self.out(torch.tanh(self.inner(F.embedding(tokens, self.table.weight))))
        first = tokens[:, :1, None]
        factor = torch.ones(first.shape)
        for mark, value in ((NAN, torch.nan), (STEEP, 30.0), (HIGH, 0.0)):
            factor = factor.masked_fill(first == mark, value)
        return logits * factor

    def blocks(self):
        return [self.inner]

    def kinds(self):
        return {
            "table.weight": "embedding",
            "inner.weight": "hidden",
            "inner.bias": "bias",
            "out.weight": "readout",
        }

    def flops_per_token(self):
        return 6.0 * (self.inner.weight.numel() + self.out.weight.numel())


class Marked:
    """The King James Bible; `data.options.marks` = "window:mark window:mark …" puts marks before windows."""

    def __init__(self, run, split):
        self.text = KingJames(run.replace({"data": {}}), split)
        marks = str(run.data.options.get("marks", "")).split() if split == "train" else []
        self.marks = {int(window): int(mark) for window, mark in (each.split(":") for each in marks)}
        self.sha256, self.length = self.text.sha256, self.text.length

    def read(self, first, n):
        windows = self.text.read(first, n).copy()
        for row in range(n):
            if first + row in self.marks:
                windows[row, 0] = self.marks[first + row]
        return windows


def marked(marks, run):
    """The run with a mark in every batch that is named."""
    batches = Batches(api.build_source(run, "train"), run.seed, run.windows_per_slot, run.slots)
    words = [
        f"{window}:{mark}"
        for batch, mark in marks.items()
        for slot in range(run.slots)
        for window in batches.windows(batch, slot)
    ]
    return run.replace({"data.options": {"marks": " ".join(words)}})
