"""Estimates of the Hessian's diagonal at the weights and on the windows of a step (Liu et al. 2305.14342, section 2.3).

Each is made of one gradient, that of an objective of its own, which goes through the run's reduction as the loss does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from froude import schedules
from froude.config import ConfigError, Run
from froude.train.exact.draws import generator
from froude.train.exact.reduce import Reduction
from froude.train.memory.chunked import summed_entropy
from froude.train.objective import logits_of, minimised
from froude.train.optimizers.composed import Composed
from froude.train.parallel import local

#: A probability of 1 in the integers by which labels are drawn: their sums are the same in any order.
ONE = 2.0**40
#: What torch says of a function that has no second derivative.
NO_SECOND = ("is not implemented", "differentiate twice", "create_graph=False")


class Estimator(Protocol):
    """An objective, and what its gradient, parameter by parameter, says of the Hessian's diagonal."""

    def __call__(self, model: nn.Module, windows: Tensor, run: Run) -> tuple[Tensor, Tensor]: ...

    def estimate(self, name: str, gradient: Tensor) -> Tensor: ...


class GaussNewton:
    """Cross-entropy of labels drawn from the model's own logits, and B times the square of its gradient.

    Windows must come in the order of `slots`.
    """

    def __init__(
        self, run: Run, step: int, parameters: Mapping[str, nn.Parameter], slots: Sequence[int]
    ) -> None:
        self.batch = run.phases.batch_at(step)
        shape = self.batch // (run.slots * run.model.context), run.model.context
        self.left = torch.cat(
            [torch.rand(shape, generator=generator(run.seed, step, slot)) for slot in slots]
        )

    def __call__(self, model: nn.Module, windows: Tensor, run: Run) -> tuple[Tensor, Tensor]:
        here, self.left = self.left.tensor_split([len(windows)])
        logits = logits_of(model, windows, run)
        loss = summed_entropy(logits, drawn(logits.detach(), here.to(logits.device)))
        return loss, loss

    def estimate(self, name: str, gradient: Tensor) -> Tensor:
        return self.batch * gradient.square()


class Hutchinson:
    """The slope of what is minimised along normal draws u, the gradient of which is H u; and u * (H u).

    The model is not sharded.
    """

    def __init__(
        self, run: Run, step: int, parameters: Mapping[str, nn.Parameter], slots: Sequence[int]
    ) -> None:
        self.along = {
            name: torch.randn(p.shape, generator=generator(run.seed, step, name), dtype=p.dtype).to(p.device)
            for name, p in parameters.items()
        }
        self.moved = {p: self.along[name] for name, p in parameters.items() if p.requires_grad}

    def __call__(self, model: nn.Module, windows: Tensor, run: Run) -> tuple[Tensor, Tensor]:
        with sdpa_kernel(SDPBackend.MATH):  # the others have no second derivative
            sought, _ = minimised(model, windows, run)
            gradients = torch.autograd.grad(
                sought, list(self.moved), create_graph=True, materialize_grads=True
            )
        slope = torch.stack(
            [(g * u).sum() for g, u in zip(gradients, self.moved.values(), strict=True)]
        ).sum()
        return slope, slope

    def estimate(self, name: str, gradient: Tensor) -> Tensor:
        return self.along[name] * gradient


#: Made of (run, step, parameters, slots of this rank).
Make = Callable[[Run, int, Mapping[str, nn.Parameter], Sequence[int]], Estimator]
KINDS: dict[str, Make] = {"gauss_newton": GaussNewton, "hutchinson": Hutchinson}


def drawn(logits: Tensor, uniform: Tensor) -> Tensor:
    """Labels [...] of the distributions of logits [..., vocab], one by each number of [0, 1).

    Logits that are no numbers have some label, too: the loss of it is none, which tells.
    """
    heights = (logits.softmax(-1) * ONE).long().cumsum(-1)
    height = (uniform.double() * heights[..., -1]).long()
    labels = torch.searchsorted(heights, height[..., None], right=True).squeeze(-1)
    return labels.clamp(max=logits.shape[-1] - 1)


def due(run: Run, step: int) -> bool:
    """Whether the optimizer wants an estimate in this step, counted from 0."""
    return bool(run.optimizer.spec.curvature) and step % int(run.optimizer.option("every")) == 0


def renew(optimizer: Composed, reduction: Reduction, windows: Tensor, run: Run, step: int) -> None:
    """Bring the average of estimates in the optimizer's state up to date; gradients stay as they are.

    One that is not finite is left out. ConfigError for a model without the second derivatives that are needed.
    """
    parameters = optimizer.parameters
    gradients = {name: p.grad for name, p in parameters.items()}
    optimizer.zero_grad()
    estimator = KINDS[run.optimizer.spec.curvature](run, step, parameters, reduction.rounds.mine)
    try:
        norm = reduction.backward(windows, batch=run.phases.batch_at(step), objective=estimator).norm
    except RuntimeError as error:
        second = run.optimizer.spec.curvature == "hutchinson"
        if not (second and any(words in str(error) for words in NO_SECOND)):
            raise
        raise ConfigError(
            f"{run.optimizer.name} needs second derivatives, but {run.model.factory} has a function without: "
            f"{str(error).splitlines()[0]}; write it in plain torch, or use sophia_g"
        ) from error
    state, beta2 = optimizer.state(), schedules.beta2_at(run, step, run.optimizer.beta2)
    for name, parameter in parameters.items():
        if parameter.grad is not None and math.isfinite(norm):
            estimate = estimator.estimate(name, local(parameter.grad))
            hessian = local(state[f"{name}.hessian"])
            hessian.lerp_(estimate.to(hessian.device), 1 - beta2)
        parameter.grad = gradients[name]
