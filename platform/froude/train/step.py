"""One training step: a pure function of parameters, optimizer state and the windows that it is handed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from froude.config import Run
from froude.train import parallel, schedules
from froude.train.parallel import World


@dataclass(frozen=True)
class StepResult:
    """Mean loss of the batch before the update (nats per token), gradient norm before clipping, peak rate used."""

    loss: float
    grad_norm: float
    lr: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


def precision(run: Run, device: torch.device) -> AbstractContextManager[object]:
    """bf16 autocast where the run asks for it; parameters and optimizer state stay fp32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=run.precision == "bf16")


def summed_loss(model: nn.Module, windows: Tensor, run: Run) -> Tensor:
    """Cross-entropy summed over all targets of int64 windows [n, context + 1], in nats."""
    inputs, targets = windows[:, :-1], windows[:, 1:]
    with precision(run, windows.device):
        logits = model(inputs)
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum")


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    chunks: Sequence[Tensor],
    run: Run,
    step: int,
    world: World,
) -> StepResult:
    """Accumulate the gradient of the batch's mean loss over this rank's chunks, clip it, update.

    A non-finite loss or norm leaves the parameters as they were. The loss is divided by the global number of tokens,
    so how the batch is split changes nothing; times the world size, since FSDP averages over ranks.
    """
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    for i, windows in enumerate(chunks):
        parallel.set_gradient_sync(model, i == len(chunks) - 1, world)
        loss = summed_loss(model, windows, run)
        total += loss.detach().double()
        (loss * (world.size / run.batch)).backward()
    gradients = parallel.local_gradients(model)
    squared = torch.nn.utils.get_total_norm(gradients).double().square()
    total, squared = world.sum(torch.stack((total, squared))).unbind()
    share = schedules.at_step(run, step)
    result = StepResult(float(total) / run.batch, float(squared.sqrt()), run.optimizer.lr * share)
    if result.finite:
        scale = min(run.optimizer.clip / (result.grad_norm + 1e-6), 1.0)  # as torch.nn.utils.clip_grad_norm_
        if scale < 1.0:
            torch._foreach_mul_(gradients, scale)
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * share
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return result
