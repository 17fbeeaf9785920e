"""A trainer of its own, in plain torch: it reads the file FROUDE_RUN, and appends to the file FROUDE_METRICS."""

import json
import os
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

run = json.loads(Path(os.environ["FROUDE_RUN"]).read_text())
shape, settings = run["model"], run["optimizer"]
width, context, vocab = shape["width"], shape["context"], shape["vocab"]
steps, windows = run["tokens"] // run["batch"], run["batch"] // context
torch.set_num_threads(1)
torch.manual_seed(run["seed"])
# A text that a Markov chain writes, the same for every run, in place of a data set.
TABLE = torch.softmax(2 * torch.randn(vocab, vocab, generator=torch.Generator().manual_seed(1)), -1)


def read(number: int, count: int) -> torch.Tensor:
    """Windows [count, context + 1] of tokens: the same for the same number."""
    chance = torch.Generator().manual_seed(number)
    tokens = [torch.randint(vocab, (count,), generator=chance)]
    for _ in range(context):
        tokens.append(torch.multinomial(TABLE[tokens[-1]], 1, generator=chance)[:, 0])
    return torch.stack(tokens, 1)


class Block(nn.Module):
    """Attention and an MLP, pre-norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (-1, shape["head_dim"])).transpose(1, 2)
            for part in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


trunk = nn.Sequential(*(Block() for _ in range(shape["depth"])), nn.LayerNorm(width))
model = nn.Sequential(nn.Embedding(vocab, width), trunk, nn.Linear(width, vocab, bias=False))
params = sum(p.numel() for p in trunk.parameters())  # without embedding and readout


def loss_of(tokens: torch.Tensor) -> torch.Tensor:
    """Nats per token."""
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


# Adam under muP: the rate of hidden matrices falls with their width.
hidden = [p for p in trunk.parameters() if p.ndim == 2]
others = [p for p in model.parameters() if all(p is not each for each in hidden)]
scale = shape["base_width"] / width if run["parametrization"] == "mup" else 1.0
groups = [{"params": hidden, "scale": scale}, {"params": others, "scale": 1.0}]
optimizer = torch.optim.AdamW(groups, betas=(settings["beta1"], settings["beta2"]), weight_decay=0.0)
warmup, tail = run["schedule"]["warmup_tokens"] / run["batch"], run["schedule"]["decay_fraction"] * steps
with open(os.environ["FROUDE_METRICS"], "a", buffering=1) as metrics:
    print(json.dumps({"params": params, "flops_per_token": 6 * params}), file=metrics)
    for step in range(1, steps + 1):
        # The run's schedule: a linear warmup, a plateau, and a tail that falls as 1 - sqrt.
        seen = step - 0.5
        left = 1 - (max(0.0, seen - (steps - tail)) / tail) ** 0.5
        rate = settings["lr"] * min(1.0, seen / warmup if warmup else 1.0) * left
        for group in optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        loss = loss_of(read(10**6 * (run["seed"] + 1) + step, windows))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(json.dumps({"step": step, "loss": loss.item(), "lr": rate}), file=metrics)
    with torch.no_grad():
        print(json.dumps({"step": steps, "validation_loss": loss_of(read(1, 256)).item()}), file=metrics)
