"""What is minimised: the cross-entropy of the next token, under the run's precision, and a penalty on log Z."""

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
    return _cross_entropy(_logits(model, windows, run), windows)


def minimised(model: nn.Module, windows: Tensor, run: Run) -> tuple[Tensor, Tensor]:
    """What a step minimises, and the cross-entropy in it, both summed over all targets as `summed_loss`, in nats.

    The first has `model.z_loss` log(Z)^2 more for each target, Z the sum of its exponentiated logits: PaLM's, which
    keeps logits near 0 (Chowdhery et al. 2204.02311, section 5.1: 1e-4; OLMo 2, 2501.00656: 1e-5).
    """
    logits_BxTxV = _logits(model, windows, run)
    entropy, weight = _cross_entropy(logits_BxTxV, windows), run.model.z_loss
    if not weight:
        return entropy, entropy
    return entropy + weight * logits_BxTxV.logsumexp(-1).square().sum(), entropy


def _logits(model: nn.Module, windows: Tensor, run: Run) -> Tensor:
    with precision(run, windows.device):
        logits: Tensor = model(windows[:, :-1])
    return logits.float()


def _cross_entropy(logits_BxTxV: Tensor, windows: Tensor) -> Tensor:
    return F.cross_entropy(logits_BxTxV.flatten(0, 1), windows[:, 1:].flatten(), reduction="sum")
