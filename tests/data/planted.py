"""Bugs of parametrization, planted in the code of model and optimizer: what the diagnosis is to name.

The runs' settings are right, but for the import path of a model.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

from froude.config import Run
from froude.train import parametrization
from froude.train.model import Transformer

WIDTHS = (16, 32, 64)
BASE = Run(
    batch=256,
    tokens=256 * 100,
    model={"depth": 2, "context": 32, "head_dim": 4, "base_width": 16},
    optimizer={"lr": 2**-7.5},
)
TIED = {"model.tied": True, "model.readout_sd": 0.5}


def output_multiplier(run):
    """Logits are not divided by the width."""
    model = Transformer(run)
    model.logit_multiplier = 1.0
    return model


def output_root(run):
    """Logits are divided by the root of the width."""
    model = Transformer(run)
    model.logit_multiplier = model.logit_multiplier**0.5
    return model


def attention_scale(run):
    """Attention logits are divided by the root of d_head."""
    model = Transformer(run)
    for block in model.layers:
        block.scale = run.model.head_dim**-0.5
    return model


@torch.no_grad()
def initialisation(run):
    """Hidden matrices start with the same standard deviation at every width."""
    model = Transformer(run)
    for name, kind in model.kinds().items():
        if kind == "hidden":
            model.get_parameter(name).mul_((run.model.width / run.model.base_width) ** 0.5)
    return model


@torch.no_grad()
def naive(run):
    """As a library's model comes: all matrices start with sd .02 at every width, logits are not divided."""
    model = output_multiplier(run)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.copy_(0.02 * torch.randn(parameter.shape))
    return model


def hidden_embedding(run):
    """The embedding is called a hidden matrix, so that its rate shrinks with the width."""
    model = Transformer(run)
    kinds = {**model.kinds(), "embedding": "hidden"}
    model.kinds = lambda: kinds
    return model


def tied_twice(run):
    """Logits of a tied model are divided by the width twice."""
    model = Transformer(run)
    model.logit_multiplier = model.logit_multiplier**2
    return model


class ManualAttention(nn.Module):
    """One block of attention without fused kernels, scaled by d_head to the power of an option; SP in all else."""

    def __init__(self, run):
        super().__init__()
        D, V = run.model.width, run.model.vocab
        self.K, self.power = run.model.head_dim, float(run.model.options.get("power", -0.5))
        self.embedding = nn.Parameter(torch.randn(V, D))
        self.qkv, self.out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.readout = nn.Linear(D, V, bias=False)

    def forward(self, tokens):
        x = F.embedding(tokens, self.embedding)
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, D // self.K, self.K).permute(2, 0, 3, 1, 4)
        mask = torch.full((T, T), float("-inf")).triu(1)
        weights = torch.softmax(q @ k.mT * self.K**self.power + mask, dim=-1)
        return self.readout(F.rms_norm(x + self.out((weights @ v).transpose(1, 2).reshape(B, T, D)), (D,)))

    def blocks(self):
        return [self.out]

    def kinds(self):
        kinds = {"embedding": "embedding", "readout.weight": "readout"}
        return {name: kinds.get(name, "hidden") for name, _ in self.named_parameters()}

    def flops_per_token(self):
        return 6.0 * sum(p.numel() for p in self.parameters())


def manual_attention(run):
    return ManualAttention(run)


def runs(**changes):
    """One run a width."""
    return [BASE.replace({"model.width": width, **changes}) for width in WIDTHS]


def growing(heads=4, **changes):
    """As many heads at each width, so that their dimension grows."""
    return [
        run.replace({"model.head_dim": run.model.width // heads, "model.base_head_dim": 4})
        for run in runs(**changes)
    ]


def factory(name):
    return {"model.factory": f"planted:{name}"}


RULES = parametrization.scales


def wrong(kinds, **factors):
    """The rules of the parametrization, but for these kinds."""

    def rules(run, kind, **where):
        found = RULES(run, kind, **where)
        return replace(found, **factors) if kind in kinds else found

    return rules


@dataclass(frozen=True)
class Bug:
    """What is to be named, the runs whose code has it, and rules that take the place of `parametrization.scales`."""

    name: str
    runs: list[Run]
    rules: Callable = RULES


BUGS = {
    "output multiplier": Bug("output_multiplier", runs(**factory("output_multiplier"))),
    "hidden rate": Bug("hidden_lr", runs(), wrong(("hidden",), lr=1.0)),
    "decay": Bug("weight_decay", runs(), wrong(("hidden",), weight_decay=1.0)),
    "attention scale": Bug("attention_scale", growing(**factory("attention_scale"))),
    "initialisation": Bug("initialisation", runs(**factory("initialisation"))),
    "epsilon": Bug("epsilon", runs(), wrong(("hidden", "embedding", "readout", "norm"), eps=1e5)),
    "tied, multiplier twice": Bug("tied_embeddings", runs(**TIED, **factory("tied_twice"))),
    "tied, rate and multiplier": Bug(
        "tied_embeddings",
        runs(**TIED),
        lambda run, kind, **where: RULES(run, "hidden" if kind == "embedding" else kind, **where),
    ),
}
