"""Each optimizer, as a run builds it, against its formula in NumPy: an MLP of three layers trained for 20 steps.

Weights, gradients and updates are computed twice, in fp64: by torch, and by hand.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from curvature_formulas import gauss_newton_bartlett, gradients, hutchinson
from matrix_formulas import newton_schulz
from optimizer_formulas import FORMULAS, AdamW, Array
from torch import nn

from froude.config import ConfigError, Run
from froude.optimizers import OPTIMIZERS
from froude.train.exact.draws import generator
from froude.train.exact.reduce import Fast
from froude.train.optimizers import build, curvature
from froude.train.optimizers.composed import Composed, make
from froude.train.optimizers.own.soap import eigenvectors
from froude.train.parallel import World

STEPS, SIZES, BATCH = 20, (12, 20, 16, 5), 32
LR, BETA1, BETA2, DECAY, REST_LR = 1e-2, 0.9, 0.95, 0.1, 3e-3


@dataclass(frozen=True)
class Case:
    """An optimizer with options; `tolerance` is the error that a weight may have, as a share of its movement."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-12


#: Muon's Newton and Schulz are in bf16, the logits of Sophia's estimates in fp32. Eigenvectors are known as well as
#: their eigenvalues lie apart.
CASES = [
    Case("adafactor"),
    Case("adafactor", {"beta2_decay": -0.5, "eps2": 0.5, "d": 1.2}),
    Case("adam"),
    Case("adamh"),
    Case("adamw"),
    Case("adamw8bit"),
    Case("ademamix"),
    Case("ademamix", {"alpha": 8.0, "beta3": 0.99, "warmup": 15}),
    Case("apollo"),
    Case("apollo", {"rank": 3, "every": 6, "scale": 2.0}),
    Case("galore_adamw"),
    Case("galore_adamw", {"rank": 4, "every": 6, "scale": 0.5}),
    Case("lion"),
    Case("muon", tolerance=2e-2),
    Case("muon", {"scale": "original", "nesterov": False}, 2e-2),
    Case("muon", {"scale": "match_rms"}, 2e-2),
    Case("muonh", tolerance=2e-2),
    Case("muonh", {"nesterov": False}, 2e-2),
    Case("normuon", tolerance=2e-2),
    Case("normuon", {"nesterov": False}, 2e-2),
    Case("rmsprop"),
    Case("schedule_free_adamw"),
    Case("sgd"),
    Case("sgd", {"nesterov": True}),
    Case("shampoo", tolerance=1e-11),
    Case("shampoo", {"graft": "none", "every": 3}, 1e-11),
    Case("shampoo", {"ridge": 1e-3, "every": 1}),
    Case("soap", tolerance=1e-11),
    Case("soap", {"every": 3, "shampoo_beta": 0.8}, 1e-11),
    Case("soap", {"max_side": 17}),
    Case("soap", {"max_side": 0, "every": 1}),
    Case("sophia_g", tolerance=1e-7),
    Case("sophia_g", {"gamma": 3.0, "every": 3}, 1e-7),
    Case("sophia_h", tolerance=1e-7),
    Case("sophia_h", {"gamma": 1.0, "every": 1}, 1e-7),
]


class MLP(nn.Module):
    """tanh between three matrices, the last of which is a readout; a bias after the first.

    Of integers it makes the rows of `table` that they number.
    """

    table: torch.Tensor

    def __init__(self, weights: list[Array], bias: Array) -> None:
        super().__init__()
        self.first, self.second, self.readout = (nn.Parameter(torch.tensor(w)) for w in weights)
        self.bias = nn.Parameter(torch.tensor(bias))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if x.is_floating_point() else self.table[x]
        return torch.tanh(torch.tanh(x @ self.first.T + self.bias) @ self.second.T) @ self.readout.T

    def blocks(self) -> list[nn.Module]:
        return []

    def kinds(self) -> dict[str, str]:
        return {"first": "hidden", "second": "hidden", "readout": "readout", "bias": "bias"}


def told_and_renewed(
    run: Run, model: MLP, optimizer: Composed, weights: dict[str, Array], x: Array, step: int
) -> dict[str, Array]:
    """An estimate by hand of each parameter's curvature, after torch's has entered the optimizer's state."""
    run = run.replace({"model.context": 1, "batch": BATCH, "tokens": BATCH, "slots": 1})
    labels = np.random.default_rng(step).integers(SIZES[-1], size=BATCH)
    model.table = torch.tensor(x)
    windows = torch.stack((torch.arange(BATCH), torch.tensor(labels)), dim=1)
    curvature.renew(optimizer, Fast(run, model, World()), windows, run, step)
    if run.optimizer.name == "sophia_g":
        uniform = torch.rand(BATCH, 1, generator=generator(run.seed, step, 0))
        return gauss_newton_bartlett(weights, x, uniform[:, 0].numpy())
    along = {
        name: torch.randn(w.shape, generator=generator(run.seed, step, name), dtype=torch.float64).numpy()
        for name, w in weights.items()
    }
    return hutchinson(weights, x, labels, along)


def test_every_optimizer_has_a_case() -> None:
    assert {case.name for case in CASES} == set(FORMULAS) == set(OPTIMIZERS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name} {case.options or ''}".strip())
def test_twenty_steps_are_those_of_the_formula(case: Case) -> None:
    draw = np.random.default_rng(0).standard_normal
    matrices = [draw((rows, columns)) / columns**0.5 for columns, rows in pairwise(SIZES)]
    model = MLP(matrices, np.zeros(SIZES[1]))
    settings = {"name": case.name, "lr": LR, "beta1": BETA1, "beta2": BETA2, "weight_decay": DECAY}
    rest = {"rest": {"lr": REST_LR}} if OPTIMIZERS[case.name].unit == "matrix" else {}
    run = Run(
        tokens=768,
        parametrization="sp",
        optimizer={**settings, "options": case.options, **rest},
        schedule={"name": "constant"},
    )
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
        if curvature.due(run, step):
            estimates = told_and_renewed(run, model, optimizer, weights, x, step)
            for name, formula in formulas.items():
                formula.estimate = estimates[name]
        optimizer.step()
        slopes = gradients(weights, x, lambda out: (out - y) / len(x))  # noqa: B023
        for name, formula in formulas.items():
            lr = LR if name in whole else REST_LR
            weights[name] = formula(weights[name], slopes[name], lr * share, 0.0 if name == "bias" else DECAY)
    if run.optimizer.spec.curvature and case.options:
        clipped = np.concatenate([np.abs(formula.ratio).ravel() >= 1 for formula in formulas.values()])
        assert 0.2 < clipped.mean() < 0.8
    evaluated = {name: getattr(formula, "x", weights[name]) for name, formula in formulas.items()}
    for expected, inside in ((weights, nullcontext()), (evaluated, optimizer.averaged())):
        with inside:
            for name, parameter in model.named_parameters():
                error = np.linalg.norm(parameter.detach().numpy() - expected[name])
                assert error < case.tolerance * np.linalg.norm(expected[name] - start[name]), name


@pytest.mark.parametrize("name", ["muonh", "normuon"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_all_but_newton_and_schulz_is_exact(
    name: str, nesterov: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = OPTIMIZERS[name].factory.partition(":")[0]
    monkeypatch.setattr(f"{module}.orthogonal", lambda m: torch.tensor(newton_schulz(m.numpy())))
    test_twenty_steps_are_those_of_the_formula(Case(name, {"nesterov": nesterov}))


def test_eight_bits_are_near_adamw() -> None:
    """Rows of a block and a shorter one; one block starts late, and one column is too small for the nearest code."""
    start, slope, *noise = np.random.default_rng(0).standard_normal((52, 6, 300))
    gradients = slope + np.array(noise)
    gradients[:8, 2, :256] = 0
    gradients[:, :, 5] *= 1e-6
    weight = nn.Parameter(torch.tensor(start))
    settings = Run(tokens=768, optimizer={"name": "adamw8bit", "beta1": BETA1, "beta2": BETA2}).optimizer
    optimizer = make(settings, "auto", [{"params": [weight], "lr": LR, "weight_decay": DECAY}])
    formulas = [FORMULAS[name]({}, b1=BETA1, b2=BETA2) for name in ("adamw8bit", "adamw")]
    coded, plain = start, start
    for gradient in gradients:
        weight.grad = torch.tensor(gradient)
        optimizer.step()
        coded, plain = (f(w, gradient, LR, DECAY) for f, w in zip(formulas, (coded, plain), strict=True))
    movement = np.linalg.norm(plain - start)
    assert np.linalg.norm(weight.detach().numpy() - coded) < 1e-12 * movement
    assert 1e-3 * movement < np.linalg.norm(np.delete(coded - plain, 5, axis=1)) < 0.04 * movement


def alone(name: str, start: torch.Tensor, gradients: list[torch.Tensor]) -> torch.Tensor:
    """A matrix after these gradients, without decay."""
    settings = Run(tokens=768, parametrization="sp", optimizer={"name": name}).optimizer
    weight = nn.Parameter(start.clone())
    group = {"params": [weight], "lr": LR, "weight_decay": 0.0}
    optimizer = make(settings, "auto", [group])
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
    return weight.detach()


@pytest.mark.parametrize("name, other", [("adamh", "adamw"), ("muonh", "muon")])
def test_what_starts_at_zero_has_no_sphere(name: str, other: str) -> None:
    with pytest.raises(ConfigError) as error:
        alone(name, torch.zeros(3, 4), [torch.ones(3, 4)])
    assert str(error.value) == (
        f"{name} keeps a matrix at its first norm, but one starts at zero; give it another start or use {other}"
    )


@pytest.mark.parametrize("name", ["adamh", "muonh"])
def test_a_matrix_stays_on_its_sphere(name: str) -> None:
    start, *gradients = torch.randn(101, 12, 8, generator=torch.Generator().manual_seed(0)).unbind()
    gradients[0].zero_()
    end = alone(name, start, gradients)
    assert float(end.norm() / start.norm()) == pytest.approx(1, abs=1e-6)
    assert not torch.allclose(end, start)


@pytest.mark.parametrize("name", ["galore_adamw", "shampoo", "soap"])
def test_a_matrix_starts_with_its_first_gradient(name: str) -> None:
    """What lies behind a readout of zeros has none in the first step, and no eigenvectors."""
    start, *gradients = torch.randn(13, 12, 8, generator=torch.Generator().manual_seed(0)).unbind()
    nothing = torch.zeros_like(start)
    assert torch.equal(alone(name, start, [nothing, nothing]), start)
    assert torch.equal(alone(name, start, [nothing, *gradients]), alone(name, start, gradients))


def test_vectors_that_no_gradient_has_are_not_left_to_lapack() -> None:
    tall = torch.zeros(8, 3)
    tall[[1, 4, 6], [2, 0, 1]] = torch.tensor([3.0, 2.0, 1.0])
    assert torch.equal(eigenvectors(tall @ tall.T).abs(), torch.eye(8)[:, [1, 4, 6, 0, 2, 3, 5, 7]])
