"""Models whose tensors are unlike our own model's: in their shapes, and in how they are used."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from froude.config import Run
from froude.train.api import Kind, Part


def drawn(what: str, *shape: int) -> Tensor:
    """Normal numbers, the same wherever this name asks for them."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(zlib.crc32(what.encode())))


class Tensors(nn.Module):
    """Hidden tensors of these shapes, by name; those in `parts` are fused."""

    def __init__(self, shapes: Mapping[str, Sequence[int]], parts: Mapping[str, Sequence[Part]]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(drawn(name, *shape)))
        self.parts = parts

    def blocks(self) -> list[nn.Module]:
        return []

    def kinds(self) -> dict[str, Kind]:
        return {name: "hidden" if p.ndim > 1 else "norm" for name, p in self.named_parameters()}

    def fused(self) -> Mapping[str, Sequence[Part]]:
        return self.parts


#: Four heads of queries share one of keys and one of values: three rows each.
QUERIES_SHARE = [Part("q", 12, 4), Part("k", 3), Part("v", 3)]
ODD_SHAPES = {
    "qkv": (18, 10),
    "one_row": (1, 9),
    "two_rows": (2, 5),
    "seven_rows": (7, 5),
    "filters": (6, 4, 3),
    "experts": (3, 5, 4),
    "gain": (5,),
    "one_number": (1,),
}


def odd() -> Tensors:
    """Rows that no number of workers divides, fewer rows than workers, and tensors of three dimensions."""
    experts = [Part(str(number), 1) for number in range(3)]
    return Tensors(ODD_SHAPES, {"qkv": QUERIES_SHARE, "experts": experts})


def lone() -> Tensors:
    """One matrix, which has fewer rows than there are workers."""
    return Tensors({"matrix": (3, 4)}, {})


def like_ours() -> Tensors:
    """Fused and plain matrices, as our own model has; the largest has 64 KiB."""
    shapes = {"qkv": (192, 64), "out": (64, 64), "gate_up": (512, 64), "down": (64, 256)}
    parts = {"qkv": [Part(name, 64) for name in "qkv"], "gate_up": [Part("gate", 256), Part("up", 256)]}
    layers = {f"{name}_{layer}": (name, shape) for layer in range(2) for name, shape in shapes.items()}
    return Tensors(
        {key: shape for key, (_, shape) in layers.items()},
        {key: parts[name] for key, (name, _) in layers.items() if name in parts},
    )


class Block(nn.Module):
    """A residual convolution over the tokens so far, and a linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(width, width, 3, bias=False)
        self.linear = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.convolution(F.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)
        return x + self.linear(torch.tanh(seen))


class Used(nn.Module):
    """Two blocks; `model.options.how` says what is odd.

    "tied": embedding and readout are one parameter of two modules; "shared": a matrix is one parameter of two blocks;
    "repeated": a block is used twice; "frozen": a block's matrix is not trained; "rare": a matrix is used only for
    sequences that start with one of a few tokens; "unused": a matrix is never used.
    """

    def __init__(self, run: Run) -> None:
        super().__init__()
        width, self.how = run.model.width, run.model.options["how"]
        self.table = nn.Embedding(run.model.vocab, width)
        blocks = [Block(width), Block(width)]
        self.layers = nn.ModuleList([blocks[0], blocks[0]] if self.how == "repeated" else blocks)
        self.out = nn.Linear(width, run.model.vocab, bias=False)
        self.spare = nn.Linear(width, width, bias=False) if self.how in ("rare", "unused") else None
        if self.how == "tied":
            self.out.weight = self.table.weight
        if self.how == "shared":
            self.layers[1].linear.weight = self.layers[0].linear.weight
        if self.how == "frozen":
            self.layers[0].linear.weight.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x)
        chosen = tokens[:, 0] % 16 == 0
        if self.how == "rare" and self.spare is not None and chosen.any():
            x = x + self.spare(x) * chosen[:, None, None]
        return self.out(x)

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)

    def kinds(self) -> dict[str, Kind]:
        named: dict[str, Kind] = {"table.weight": "embedding", "out.weight": "readout"}
        return {name: named.get(name, "hidden") for name, _ in self.named_parameters()}

    def flops_per_token(self) -> float:
        return 6.0 * sum(p.numel() for p in self.parameters())
