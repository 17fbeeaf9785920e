"""What is minimised: the cross-entropy of the next token, under the run's precision."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from froude.config import Run


def precision(run: Run, device: torch.device) -> AbstractContextManager[object]:
    """bf16 autocast where the run asks for it; parameters and optimizer state stay fp32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=run.precision == "bf16")


def summed_loss(model: nn.Module, windows: Tensor, run: Run) -> Tensor:
    """Cross-entropy summed over all targets of int64 windows [n, context + 1], in nats."""
    inputs, targets = windows[:, :-1], windows[:, 1:]
    with precision(run, windows.device):
        logits = model(inputs)
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum")
