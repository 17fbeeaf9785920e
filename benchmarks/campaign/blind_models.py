"""Faults of a model or its parametrization over widths, invented from modules' names; the diagnosis was unread.

Each says what the diagnosis should name first ("nothing": no cause), and why; `blind_faults` says what was known of it.
At the base width all but those that are alike at each width are no fault at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from froude.config import Run
from froude.train.model import NORM_EPS, ROPE_BASE, Block, Transformer, _rotate
from froude.train.parametrization import parameter_groups


@dataclass(frozen=True)
class ModelFault:
    """A fault over widths: what it does to a built model, to the kinds it names, to the optimizer's groups.

    `change(model, m)` with m = width / base width; `groups(name, kind, m)` yields a factor on lr, or a group's other
    settings as they are; `settings` are those of the run.
    """

    key: str
    name: str
    module: str
    expected: str
    because: str
    change: Callable[[Transformer, float], None] | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    groups: Callable[[str, str, float], dict[str, Any]] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def of(self, run: Run) -> Run:
        """The run with the fault: as this module's factory, which reads its key from the options."""
        return run.replace(
            {"model.factory": "blind_models:Planted", "model.options": {"fault": self.key}, **self.settings}
        )


class ScaledBlock(Block):
    """A block whose normalised inputs and gated features are multiplied by a number each."""

    after_norm, after_gate = 1.0, 1.0

    def forward(self, x_BxTxD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        B, T, D = x_BxTxD.shape
        h = F.rms_norm(x_BxTxD, (D,), self.attention_norm, NORM_EPS) * self.after_norm
        qkv = F.linear(h, self.qkv).view(B, T, 3, self.H, self.K)
        qk, v = qkv.split((2, 1), dim=2)
        q, k = _rotate(qk, cos, sin).permute(2, 0, 3, 1, 4).unbind(0)
        v = v.squeeze(2).transpose(1, 2)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        x_BxTxD = x_BxTxD + F.linear(a.transpose(1, 2).reshape(B, T, D), self.attention_out)
        h = F.rms_norm(x_BxTxD, (D,), self.mlp_norm, NORM_EPS) * self.after_norm
        gate, up = F.linear(h, self.gate_up).chunk(2, dim=-1)
        return x_BxTxD + F.linear(F.silu(gate) * up * self.after_gate, self.down)


def scaled(model: Transformer, **factors: float) -> None:
    for block in model.layers:
        block.__class__ = ScaledBlock
        vars(block).update(factors)


@torch.no_grad()
def unscaled_branches(model: Transformer, _: float) -> None:
    for block in model.layers:
        block.attention_out *= math.sqrt(2 * model.shape.depth)
        block.down *= math.sqrt(2 * model.shape.depth)


@torch.no_grad()
def constant_down(model: Transformer, m: float) -> None:
    for block in model.layers:
        block.down *= math.sqrt(m)


def hotter(model: Transformer, m: float) -> None:
    for block in model.layers:
        block.scale *= math.sqrt(m)


def rotary(model: Transformer, m: float) -> None:
    """Frequencies by the place in the width, not in the head: they fall as 1/m."""
    shape = model.shape
    inverse = ROPE_BASE ** (-torch.arange(0, shape.head_dim, 2, device="cpu").double() / shape.head_dim) / m
    angle = torch.arange(shape.context, device="cpu").double()[:, None] * inverse.repeat(2)[None]
    model.cos.copy_(angle.cos().float())
    model.sin.copy_(angle.sin().float())


def loud_embedding(model: Transformer, m: float) -> None:
    """Embeddings times the root of the width, as in Vaswani et al. 2017."""

    def louder(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return (arguments[0] * math.sqrt(m), *arguments[1:])

    model.layers[0].register_forward_pre_hook(louder)


class Planted(Transformer):
    """The package's model with the fault that `run.model.options` names."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.fault = BY_KEY[str(run.model.options["fault"])]
        if self.fault.change:
            self.fault.change(self, run.model.width / run.model.base_width)

    def kinds(self) -> Any:
        return dict(super().kinds()) | dict(self.fault.kinds)


def planted_groups(run: Run, model: nn.Module) -> list[dict[str, Any]]:
    """In place of the package's `parameter_groups`: its groups, each parameter with the fault's factors."""
    fault = BY_KEY.get(str(run.model.options.get("fault")))
    groups = parameter_groups(run, model)
    if fault is None or fault.groups is None:
        return groups
    names, kinds = {id(p): n for n, p in model.named_parameters()}, model.kinds()
    found: dict[str, dict[str, Any]] = {}
    for group in groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            change = dict(fault.groups(name, kinds[name], run.model.width / run.model.base_width))
            new = {**group, "params": []}
            rate = change.pop("lr", 1.0)
            new |= {"lr": new["lr"] * rate, "peak": new["peak"] * rate, **change}
            found.setdefault(repr(new), new)["params"].append(parameter)
    return list(found.values())


# fmt: off
MODEL_FAULTS = [
    ModelFault("residual", "branches start without 1/√(2·depth), alike at each width", "model", "nothing",
               "it is a fault over depth, and only widths are compared", change=unscaled_branches),
    ModelFault("down", "`down` starts with one variance at each width", "parametrization", "initialisation",
               "its variance should be 1/fan_in", change=constant_down),
    ModelFault("readout", "kinds() calls the readout a hidden matrix", "api", "other_lr",
               "its rate falls with the width, but it is read-out, not hidden", kinds={"readout": "hidden"}),
    ModelFault("one", "kinds() calls one of eight hidden matrices a readout", "api", "hidden_lr",
               "its rate stays as the width grows", kinds={"layers.1.down": "readout"}),
    ModelFault("temperature", "attention logits grow as √width, heads do not", "model", "attention_scale",
               "the scale should depend on the head's size alone", change=hotter),
    ModelFault("epsilon", "epsilon 1e-3, alike at each width", "optimizers/spec", "epsilon",
               "it is as large as the gradients", settings={"optimizer.eps": 1e-3}),
    ModelFault("gains", "the rate of the norms' gains grows with the width", "parametrizations/mup", "other_lr",
               "gains should keep their rate", groups=lambda n, kind, m: {"lr": m if kind == "norm" else 1.0}),
    ModelFault("rotary", "rotary frequencies fall with the width", "model", "nothing",
               "it moves neither sizes nor rates", change=rotary),
    ModelFault("norm", "norms divide by the length, not the root mean square: 1/√width", "observers/layer_norms",
               "coordinates", "blocks' inputs shrink with the width, which no rule names",
               change=lambda model, m: scaled(model, after_norm=m**-0.5)),
    ModelFault("embedding", "embeddings are multiplied by √width", "parametrizations/parametrization", "coordinates",
               "the residual stream grows with the width", change=loud_embedding),
    ModelFault("gate", "gated features are divided by the width", "model", "coordinates",
               "the MLP's output shrinks with the width", change=lambda model, m: scaled(model, after_gate=1.0 / m)),
    ModelFault("beta2", "beta2 rises with the width: 1 - .05/width", "optimizers/adamw", "nothing",
               "the size of an update hardly depends on it",
               groups=lambda n, kind, m: {"betas": (0.9, 1.0 - 0.05 / m if m > 1 else 0.95)}),
    ModelFault("nonorm", "the norms' gains are never updated, alike at each width", "optimizers", "nothing",
               "they matter little, and not more at a larger width",
               groups=lambda n, kind, m: {"lr": 1e-9 if kind == "norm" else 1.0}),
    ModelFault("decay", "the decay of hidden matrices falls with the width, times their rate", "parametrizations/mup",
               "weight_decay", "rate times decay should not change",
               groups=lambda n, kind, m: {"weight_decay": 0.1 if kind in ("hidden", "readout") else 0.0}),
]
# fmt: on
BY_KEY = {fault.key: fault for fault in MODEL_FAULTS}
