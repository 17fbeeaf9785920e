"""One training step: a pure function of parameters, optimizer state and the windows that it is handed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from froude import schedules
from froude.config import Run
from froude.train import parallel
from froude.train.exact.reduce import Reduction
from froude.train.optimizers import curvature
from froude.train.optimizers.clipping import SMALL
from froude.train.optimizers.composed import Composed
from froude.train.precision.products import float32_products
from froude.train.precision.scaling import LossScale
from froude.train.speed import phases
from froude.train.stability.spikes import Decision, Judge


@dataclass(frozen=True)
class StepResult:
    """Mean loss of the batch before the update (nats per token), gradient norm before clipping, learning rate.

    The rate is that of the base width which the optimizer had in its update, else the schedule's. `slot_square` is the
    mean of the squared norms of the gradients of the batch's slots, None where it was not asked for or slots have none.
    Only a decision to update, on finite numbers, has changed the parameters.
    """

    loss: float
    grad_norm: float
    lr: float
    decision: Decision = field(default_factory=Decision)
    slot_square: float | None = None

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


def train_step(
    model: nn.Module,
    optimizer: Composed,
    reduction: Reduction,
    windows: Tensor,
    run: Run,
    step: int,
    judge: Judge | None = None,
    *,
    noise: bool = False,
    scaling: LossScale | None = None,
) -> StepResult:
    """Compute the gradient of the batch's mean loss (this rank has `windows` [n, context + 1] of it), clip, update.

    Where the optimizer wants one, an estimate of the curvature on the same windows comes before the update.
    `judge` decides by loss and norm what becomes of it. A non-finite one leaves the parameters as they were. With
    `noise` the slots' norms are measured, too. `scaling` is an fp16 run's; it finds one anew where there is none.
    """
    batch = run.phases.batch_at(step)
    scaling = scaling or LossScale.of(run)
    with float32_products(run, windows.device):
        if scaling is None:
            loss, norm, slot_square, norms = reduction.backward(windows, batch=batch, noise=noise)
        else:
            loss, norm, slot_square, norms = scaling.backward(model, reduction, windows, batch, noise)
    phases.begin("other")
    decision = judge(loss, norm) if judge else Decision()
    if scaling is not None and scaling.why and decision.action in ("update", "stop"):
        decision = Decision("stop", "; ".join(filter(None, [decision.why, scaling.why])))
    phases.begin("optimizer")
    share = schedules.at_step(run, step) * decision.lr_factor
    result = StepResult(loss, norm, run.optimizer.lr * share, decision, slot_square)
    if result.finite and decision.action == "update":
        bound = min(run.optimizer.clip * decision.clip_factor, decision.bound)
        _clip(model, optimizer, norm, norms, bound)
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * share
        if curvature.due(run, step):
            with float32_products(run, windows.device):
                curvature.renew(optimizer, reduction, windows, run, step)
            phases.begin("optimizer")
        optimizer.schedule(run, step)
        optimizer.step()
        had = [group["lr"] / group["peak"] for group in optimizer.param_groups]
        result = replace(result, lr=run.optimizer.lr * max(had, key=lambda each: abs(each - share)))
    optimizer.zero_grad()
    phases.begin("other")
    return result


def _clip(
    model: nn.Module, optimizer: Composed, norm: float, norms: Mapping[str, float], bound: float
) -> None:
    """Scale gradients down, whose norms these are: as the run's own clipping does, then to the bound."""
    left, factors = optimizer.clipping.shrink(norm, norms, bound)
    scale = min(bound / (left + SMALL), 1.0)
    if factors:
        names = [name for name, parameter in model.named_parameters() if parameter.grad is not None]
        scales = [scale * factors.get(name, 1.0) for name in names]
        torch._foreach_mul_(parallel.local_gradients(model), scales)
    elif scale < 1.0:
        torch._foreach_mul_(parallel.local_gradients(model), scale)
