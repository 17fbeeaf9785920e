"""Each optimizer against its formula in NumPy, in fp64: 20 steps with decay, and a rate that changes on the way."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from froude.config import Optimizer
from froude.optimizers import OPTIMIZERS
from froude.train.optimizers import _make

Array = NDArray[np.float64]
Formula = Callable[[Array, list[Array], list[float]], Array]
STEPS, SHAPE = 20, (13, 7)
BETA1, BETA2, EPS, DECAY = 0.9, 0.95, 1e-8, 0.1
TOLERANCE = 1e-13  # of the largest movement


def adamw(w: Array, gradients: list[Array], rates: list[float]) -> Array:
    m = v = np.zeros_like(w)
    for t, (g, lr) in enumerate(zip(gradients, rates, strict=True), 1):
        m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g**2
        w = w * (1 - lr * DECAY)
        w = w - lr * (m / (1 - BETA1**t)) / (np.sqrt(v / (1 - BETA2**t)) + EPS)
    return w


def sgd(w: Array, gradients: list[Array], rates: list[float]) -> Array:
    m = np.zeros_like(w)
    for g, lr in zip(gradients, rates, strict=True):
        m = BETA1 * m + g + DECAY * w
        w = w - lr * m
    return w


def lion(w: Array, gradients: list[Array], rates: list[float]) -> Array:
    m = np.zeros_like(w)
    for g, lr in zip(gradients, rates, strict=True):
        w = w * (1 - lr * DECAY) - lr * np.sign(BETA1 * m + (1 - BETA1) * g)
        m = BETA2 * m + (1 - BETA2) * g
    return w


FORMULAE: dict[str, Formula] = {"adamw": adamw, "lion": lion, "sgd": sgd}


def test_every_optimizer_has_a_formula() -> None:
    assert set(FORMULAE) == set(OPTIMIZERS)


@pytest.mark.parametrize("name", FORMULAE)
def test_twenty_steps_are_those_of_the_formula(name: str) -> None:
    generator = np.random.default_rng(0)
    start, *gradients = generator.standard_normal((STEPS + 1, *SHAPE))
    rates = [1e-2 * (1 - step / (2 * STEPS)) for step in range(STEPS)]
    parameter = nn.Parameter(torch.tensor(start))
    settings = Optimizer(name=name, beta1=BETA1, beta2=BETA2, eps=EPS, weight_decay=DECAY)
    group = {"params": [parameter], "lr": rates[0], "weight_decay": DECAY, "eps": EPS}
    optimizer = _make(settings, settings.spec.plain, [group])
    for gradient, lr in zip(gradients, rates, strict=True):
        optimizer.param_groups[0]["lr"] = lr
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
    expected = FORMULAE[name](start, gradients, rates)
    moved = np.abs(expected - start).max()
    assert np.abs(parameter.detach().numpy() - expected).max() < TOLERANCE * moved
