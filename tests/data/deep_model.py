"""A residual network whose branches are scaled by depth to a power: what a coordinate check over depth is made for."""

import torch
import torch.nn.functional as F
from torch import nn

BASE_DEPTH = 2


class Branch(nn.Module):
    def __init__(self, width, share):
        super().__init__()
        self.share = share
        self.up = nn.Parameter(torch.randn(2 * width, width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(width, 2 * width) * (2 * width) ** -0.5)

    def forward(self, x):
        h = F.rms_norm(x, x.shape[-1:])
        return x + self.share * F.linear(F.silu(F.linear(h, self.up)), self.down)


class Deep(nn.Module):
    """x + (L / L_base)^(-a) f(norm(x)) with a = `model.options.a`: 1 is CompleteP's rule (2505.01618), 0 is none."""

    def __init__(self, run):
        super().__init__()
        shape = run.model
        share = (shape.depth / BASE_DEPTH) ** -float(shape.options["a"])
        self.embedding = nn.Parameter(torch.randn(shape.vocab, shape.width))
        self.layers = nn.ModuleList(Branch(shape.width, share) for _ in range(shape.depth))
        self.readout = nn.Parameter(torch.zeros(shape.vocab, shape.width))
        self.multiplier = shape.base_width / shape.width

    def forward(self, tokens):
        x = F.embedding(tokens, self.embedding)
        for layer in self.layers:
            x = layer(x)
        return F.linear(F.rms_norm(x, x.shape[-1:]), self.readout) * self.multiplier

    def blocks(self):
        return list(self.layers)

    def kinds(self):
        kinds = {"embedding": "embedding", "readout": "readout"}
        return {name: kinds.get(name, "hidden") for name, _ in self.named_parameters()}

    def flops_per_token(self):
        return 6.0 * sum(p.numel() for p in self.parameters())


def deep(run):
    return Deep(run)
