"""What is minimised: the cross-entropy of the next token, under the run's precision, and a penalty on log Z."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from froude.config import Run
from froude.train.data.documents import inputs, labels
from froude.train.memory.chunked import losses
from froude.train.precision.products import autocast

#: Of (model, windows, run), two sums over the windows' tokens: a reduction computes the gradient of the first's
#: mean over the batch, and reports that of the second.
Objective = Callable[[nn.Module, Tensor, Run], tuple[Tensor, Tensor]]


def summed_loss(model: nn.Module, windows: Tensor, run: Run) -> Tensor:
    """Cross-entropy summed over all targets of int64 windows [n, context + 1], in nats."""
    return _losses(model, windows, run, 0.0)[1]


def minimised(model: nn.Module, windows: Tensor, run: Run) -> tuple[Tensor, Tensor]:
    """What a step minimises, and the cross-entropy in it, both summed over all targets as `summed_loss`, in nats."""
    return _losses(model, windows, run, run.model.z_loss)


def _losses(model: nn.Module, windows: Tensor, run: Run, z_loss: float) -> tuple[Tensor, Tensor]:
    if not run.compute.loss_chunk:
        return losses(logits_of(model, windows, run), labels(windows), z_loss)
    with autocast(run, windows.device):
        found: tuple[Tensor, Tensor] = model(*inputs(windows), labels=labels(windows), z_loss=z_loss)
    return found


def logits_of(model: nn.Module, windows: Tensor, run: Run) -> Tensor:
    """Logits in fp32 [n, context, vocab] of all inputs of int64 windows [n, context + 1]."""
    with autocast(run, windows.device):
        logits: Tensor = model(*inputs(windows))
    return logits.float()
