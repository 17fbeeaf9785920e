"""Models and sources with one fault each, as users bring them: what the probe is to see."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from foreign_model import Bigram, Counting
from torch import nn

from froude.train.model import Transformer


class Attention(Bigram):
    """Bigram with one layer of attention; `fault` in its options says what is wrong with it."""

    def __init__(self, run):
        super().__init__(run)
        width, self.fault = run.model.width, run.model.options.get("fault", "")
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.dropout = nn.Dropout(0.1 if self.fault == "dropout" else 0.0)
        nn.init.zeros_(self.out.weight)  # behind which a leak can't be seen
        if self.fault == "constant":
            self.register_buffer("mask", torch.ones(run.model.context, run.model.context).tril())
        if self.fault == "batch_norm":
            self.norm = nn.BatchNorm1d(width)
        if self.fault == "batch_statistics":
            self.norm = nn.BatchNorm1d(width, track_running_stats=False)
        if self.fault == "counter":
            self.register_buffer("seen", torch.zeros(()), persistent=False)
        if self.fault == "unused":
            self.spare = nn.Linear(width, width)
        if self.fault == "frozen":
            self.spare = nn.Parameter(torch.ones(width), requires_grad=False)
        if self.fault == "scalar":
            self.temperature = nn.Parameter(torch.ones(()))
        if self.fault == "experts":
            self.experts = nn.Linear(width, width)
        if self.fault == "active":
            self.active_parameters = lambda: 1000
        if self.fault == "unseeded":
            drawn = np.random.default_rng().normal(size=(width, width)).astype(np.float32)
            with torch.no_grad():
                self.inner.weight.copy_(torch.from_numpy(drawn))

    def forward(self, tokens):
        x = self.table(tokens)
        q, k, v = (part.unsqueeze(1) for part in self.qkv(x).chunk(3, dim=-1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=self.fault != "unmasked").squeeze(1)
        x = self.dropout(x + a)
        if self.fault in ("batch_norm", "batch_statistics"):
            x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        if self.fault == "batch_mean":
            x = x + x.mean(0)
        if self.fault == "counter":
            self.seen += 1
        if self.fault == "next_token":
            x = x + torch.roll(x, -1, dims=1)
        if self.fault == "context_only" and tokens.shape[1] != self.context:
            raise ValueError("this model takes whole contexts only")
        logits = self.out(torch.tanh(self.inner(x)))
        if self.fault == "infinite":
            logits = logits / torch.zeros(())
        if self.fault == "blind":
            logits = logits * 0 + self.out.weight.sum()
        return {"tuple": (logits,), "dict": {"logits": logits, "loss": None}}.get(
            self.fault, logits[..., :-1] if self.fault == "narrow" else logits
        )

    def kinds(self):
        known = super().kinds()
        names = [name for name, _ in self.named_parameters()]
        kinds = {name: known.get(name, "bias" if name.endswith("bias") else "hidden") for name in names}
        return {**kinds, "inner.weight": "hiden"} if self.fault == "kind" else kinds


class WholeContext(Attention):
    """Takes sequences of the run's context only."""

    def __init__(self, run):
        super().__init__(run)
        self.context, self.fault = run.model.context, "context_only"


class Drops(Transformer):
    """The package's own model with dropout on its logits."""

    def forward(self, tokens):
        return F.dropout(super().forward(tokens), 0.1, self.training)


def nothing(run):
    return None


def raises(run):
    raise KeyError("n_embd")


class Beyond(Counting):
    """Token ids of a larger vocabulary than the model's, in its last window."""

    def read(self, first, n):
        windows = super().read(first, n).copy()
        windows[np.arange(first, first + n) == self.length - 1] = self.vocab + 3
        return windows


class Floats(Counting):
    def read(self, first, n):
        return super().read(first, n) / 2


class Short(Counting):
    def read(self, first, n):
        return super().read(first, n)[:, :-1]


class Shifting(Counting):
    """Another window each time."""

    calls = 0

    def read(self, first, n):
        Shifting.calls += 1
        return super().read(first + Shifting.calls, n)


class Missing(Counting):
    def __init__(self, run, split):
        super().__init__(run, split)
        np.memmap("no/such/tokens.bin", dtype=np.uint16, mode="r")
