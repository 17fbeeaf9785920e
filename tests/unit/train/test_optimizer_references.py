"""Each optimizer, as a run builds it, against its formula in NumPy: an MLP of three layers trained for 20 steps.

Weights, gradients and updates are computed twice, in fp64: by torch, and by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from optimizer_formulas import FORMULAS, AdamW, Array
from torch import nn

from froude.config import Run
from froude.optimizers import OPTIMIZERS
from froude.train.optimizers import build
from froude.train.parallel import World

STEPS, SIZES, BATCH = 20, (12, 20, 16, 5), 32
LR, BETA1, BETA2, DECAY, REST_LR = 1e-2, 0.9, 0.95, 0.1, 3e-3


@dataclass(frozen=True)
class Case:
    """An optimizer with options; `tolerance` is the error that a weight may have, as a share of its movement."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-12


#: Muon's Newton and Schulz are in bf16.
CASES = [
    Case("adamw"),
    Case("lion"),
    Case("muon", tolerance=2e-2),
    Case("muon", {"scale": "original", "nesterov": False}, 2e-2),
    Case("muon", {"scale": "match_rms"}, 2e-2),
    Case("sgd"),
    Case("sgd", {"nesterov": True}),
]


class MLP(nn.Module):
    """tanh between three matrices, the last of which is a readout; a bias after the first."""

    def __init__(self, weights: list[Array], bias: Array) -> None:
        super().__init__()
        self.first, self.second, self.readout = (nn.Parameter(torch.tensor(w)) for w in weights)
        self.bias = nn.Parameter(torch.tensor(bias))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.tanh(x @ self.first.T + self.bias) @ self.second.T) @ self.readout.T

    def kinds(self) -> dict[str, str]:
        return {"first": "hidden", "second": "hidden", "readout": "readout", "bias": "bias"}


def by_hand(weights: dict[str, Array], x: Array, y: Array) -> dict[str, Array]:
    """Gradients of the mean of half the squared errors."""
    a = np.tanh(x @ weights["first"].T + weights["bias"])
    b = np.tanh(a @ weights["second"].T)
    error = (b @ weights["readout"].T - y) / len(x)
    into_b = (error @ weights["readout"]) * (1 - b**2)
    into_a = (into_b @ weights["second"]) * (1 - a**2)
    return {
        "first": into_a.T @ x,
        "second": into_b.T @ a,
        "readout": error.T @ b,
        "bias": into_a.sum(0),
    }


def test_every_optimizer_has_a_case() -> None:
    assert {case.name for case in CASES} == set(FORMULAS) == set(OPTIMIZERS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name} {case.options or ''}".strip())
def test_twenty_steps_are_those_of_the_formula(case: Case) -> None:
    draw = np.random.default_rng(0).standard_normal
    matrices = [draw((rows, columns)) / columns**0.5 for columns, rows in pairwise(SIZES)]
    model = MLP(matrices, np.zeros(SIZES[1]))
    settings = {"name": case.name, "lr": LR, "beta1": BETA1, "beta2": BETA2, "weight_decay": DECAY}
    rest = {"rest": {"lr": REST_LR}} if OPTIMIZERS[case.name].unit == "matrix" else {}
    run = Run(tokens=768, parametrization="sp", optimizer={**settings, "options": case.options, **rest})
    optimizer = build(run, model, World())

    weights = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    start = {name: w.copy() for name, w in weights.items()}
    whole = {"first", "second"} if rest else set(weights)
    own = {"b1": BETA1, "b2": BETA2}
    formulas = {
        name: FORMULAS[case.name](case.options, **own) if name in whole else AdamW({}, **own)
        for name in weights
    }
    for step in range(STEPS):
        x, y = draw((BATCH, SIZES[0])), draw((BATCH, SIZES[-1]))
        share = 1 - step / (2 * STEPS)
        model.zero_grad()
        (((model(torch.tensor(x)) - torch.tensor(y)) ** 2).sum() / (2 * BATCH)).backward()
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * share
        optimizer.step()
        gradients = by_hand(weights, x, y)
        for name, formula in formulas.items():
            lr = LR if name in whole else REST_LR
            weights[name] = formula(
                weights[name], gradients[name], lr * share, 0.0 if name == "bias" else DECAY
            )
    for name, parameter in model.named_parameters():
        error = np.linalg.norm(parameter.detach().numpy() - weights[name])
        assert error < case.tolerance * np.linalg.norm(weights[name] - start[name]), name
