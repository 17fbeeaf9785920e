"""What is minimised: the cross-entropy of the next token, under the run's precision."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from froude.config import Run

#: Of (model, windows, run), a sum over the windows' tokens; a reduction computes the gradient of its mean over a batch.
Objective = Callable[[nn.Module, Tensor, Run], Tensor]


def precision(run: Run, device: torch.device) -> AbstractContextManager[object]:
    """bf16 autocast where the run asks for it; parameters and optimizer state stay fp32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=run.precision == "bf16")


def summed_loss(model: nn.Module, windows: Tensor, run: Run) -> Tensor:
    """Cross-entropy summed over all targets of int64 windows [n, context + 1], in nats."""
    return summed_entropy(logits_of(model, windows, run), windows[:, 1:])


def logits_of(model: nn.Module, windows: Tensor, run: Run) -> Tensor:
    """Logits in fp32 [n, context, vocab] of all inputs of int64 windows [n, context + 1]."""
    with precision(run, windows.device):
        logits: Tensor = model(windows[:, :-1])
    return logits.float()


def summed_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of logits [n, context, vocab] and labels [n, context], summed, in nats."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
