"""What is minimised: the cross-entropy of the next token, under the run's precision, and a penalty on log Z."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from froude.config import Run
from froude.train import kernels

#: Of (model, windows, run), two sums over the windows' tokens: a reduction computes the gradient of the first's
#: mean over the batch, and reports that of the second.
Objective = Callable[[nn.Module, Tensor, Run], tuple[Tensor, Tensor]]


def precision(run: Run, device: torch.device) -> AbstractContextManager[object]:
    """bf16 autocast where the run asks for it; parameters and optimizer state stay fp32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=run.precision == "bf16")


def summed_loss(model: nn.Module, windows: Tensor, run: Run) -> Tensor:
    """Cross-entropy summed over all targets of int64 windows [n, context + 1], in nats."""
    return summed_entropy(logits_of(model, windows, run), windows[:, 1:])


def minimised(model: nn.Module, windows: Tensor, run: Run) -> tuple[Tensor, Tensor]:
    """What a step minimises, and the cross-entropy in it, both summed over all targets as `summed_loss`, in nats.

    The first has `model.z_loss` log(Z)^2 more for each target, Z the sum of its exponentiated logits: PaLM's, which
    keeps logits near 0 (Chowdhery et al. 2204.02311, section 5.1: 1e-4; OLMo 2, 2501.00656: 1e-5).
    """
    logits = logits_of(model, windows, run)
    entropy, weight = summed_entropy(logits, windows[:, 1:]), run.model.z_loss
    if not weight:
        return entropy, entropy
    return entropy + weight * logits.logsumexp(-1).square().sum(), entropy


def logits_of(model: nn.Module, windows: Tensor, run: Run) -> Tensor:
    """Logits in fp32 [n, context, vocab] of all inputs of int64 windows [n, context + 1]."""
    with precision(run, windows.device), kernels.matmuls(run, windows.device):
        logits: Tensor = model(windows[:, :-1])
    return logits.float()


def summed_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of logits [n, context, vocab] and labels [n, context], summed, in nats."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
