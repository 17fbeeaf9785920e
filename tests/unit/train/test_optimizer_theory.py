"""Where theory says a number: how weights decay, where they come to rest, and what singular values an update has."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from matrix_formulas import newton_schulz
from torch import nn

from froude.config import Optimizer, Run
from froude.train.optimizers.composed import make
from froude.train.optimizers.own.normuon import orthogonal


def adamw(**settings: float) -> Optimizer:
    return Run(tokens=768, optimizer={"name": "adamw", **settings}).optimizer


@pytest.mark.slow
def test_without_gradients_weights_decay_by_rate_times_decay_a_step() -> None:
    settings = adamw(lr=1e-3, weight_decay=0.1)
    weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
    weight.grad = torch.zeros_like(weight)
    optimizer = make(settings, "foreach", [{"params": [weight], "lr": 1e-3, "weight_decay": 0.1}])
    for _ in range(10_000):
        optimizer.step()
    assert weight.tolist() == pytest.approx([0.367861] * 3, abs=1e-6)


def test_weights_come_to_rest_where_decay_and_noise_balance() -> None:
    """RMS of about sqrt(lr / (2 decay)) under gradients that are nothing but noise (Kosson et al. 2305.17212)."""
    lr, decay = 0.01, 0.5
    settings = adamw(lr=lr, weight_decay=decay, beta1=0.9, beta2=0.999)
    draws = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.zeros(4000))
    optimizer = make(settings, "foreach", [{"params": [weight], "lr": lr, "weight_decay": decay}])
    squares = []
    for step in range(3000):
        weight.grad = torch.randn(weight.shape, generator=draws)
        optimizer.step()
        if step >= 1000:
            squares.append(float(weight.detach().square().mean()))
    assert math.sqrt(sum(squares) / len(squares)) == pytest.approx(0.098, abs=0.003)


def test_newton_and_schulz_bring_singular_values_near_1() -> None:
    gaussian = np.random.default_rng(0).standard_normal((256, 512))
    found = newton_schulz(gaussian)
    values = np.linalg.svd(found, compute_uv=False)
    assert 0.681 <= values.min() < values.max() <= 1.135
    assert np.sqrt(np.square(found).mean()) * 512**0.5 == pytest.approx(0.94, abs=0.02)
    ours = orthogonal(torch.tensor(gaussian)).numpy()
    assert np.linalg.norm(ours - found) < 0.02 * np.linalg.norm(found)
