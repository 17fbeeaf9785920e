"""A model and a source that froude has never seen: what a user would bring."""

import numpy as np
import torch
from torch import nn


class Bigram(nn.Module):
    """An embedding, one hidden layer, a readout; it may be told to fail or to explode."""

    def __init__(self, run):
        super().__init__()
        self.fail = bool(run.model.options.get("fail", False))
        self.table = nn.Embedding(run.model.vocab, run.model.width)
        self.inner = nn.Linear(run.model.width, run.model.width)
        self.out = nn.Linear(run.model.width, run.model.vocab, bias=False)

    def forward(self, tokens):
        if self.fail:
            raise RuntimeError("this model was told to fail")
        return self.out(torch.tanh(self.inner(self.table(tokens))))

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


class Counting:
    """Windows that count upwards: after n comes n + 1, so a bigram learns them to the bottom."""

    sha256 = "0" * 64

    def __init__(self, run, split):
        self.context, self.vocab, self.length = run.model.context, run.model.vocab, 500

    def read(self, first, n):
        starts = np.arange(first, first + n)[:, None]
        return (starts * 7 + np.arange(self.context + 1)) % self.vocab


class Backwards(Counting):
    """Windows that count downwards: a validation set of another kind."""

    def read(self, first, n):
        return super().read(first, n)[:, ::-1].copy()


class TwoSets(Counting):
    """Counting, whose validation split has a set of its own, by a name that a run may give."""

    def __init__(self, run, split):
        super().__init__(run, split)
        self.run = run

    def sets(self):
        return {self.run.data.options.get("set", "backwards"): Backwards(self.run, "validation")}


def factory(run):
    return Bigram(run)


def not_a_model(run):
    return nn.Linear(2, 2)
