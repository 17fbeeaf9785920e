"""The loss of a few tokens at a time: of the logits, which are [tokens, vocab], only a chunk's exist at once.

A chunk's gradient is computed in the forward pass, as soon as its loss is known (as Liger's kernel does, Hsu et al.
2410.10989): nothing of it is kept for backward, and nothing is computed twice. What is left for backward is to multiply
two gradients by a number. One that is kept from micro-batch to micro-batch is autograd's own, so gradients over ranks
are reduced as often as without chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from froude.config import ConfigError, Run

#: From logits in fp32 [..., vocab] and labels [...] to what is minimised and what is reported, both summed.
Losses = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def losses(logits: Tensor, labels: Tensor, z_loss: float) -> tuple[Tensor, Tensor]:
    """What a step minimises, and the cross-entropy in it, summed over all labels; logits [n, context, vocab] in fp32.

    The first has z_loss * log(Z)^2 more for each target, Z the sum of its exponentiated logits: PaLM's, which keeps
    logits near 0 (Chowdhery et al. 2204.02311, section 5.1: 1e-4; OLMo 2, 2501.00656: 1e-5).
    """
    entropy = summed_entropy(logits, labels)
    return entropy + z_loss * logits.logsumexp(-1).square().sum() if z_loss else entropy, entropy


def summed_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of logits [n, context, vocab] and labels [n, context], summed, in nats."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def install(model: nn.Module, run: Run) -> None:
    """Have the model return `losses` when it is called with `labels`, if the run asks for chunks.

    In its forward pass, so that all who gather its weights for that have done so. ConfigError for a model that only
    gives logits.
    """
    size = run.compute.loss_chunk
    if not size:
        return
    missing = [name for name in ("features", "logits") if not callable(getattr(model, name, None))]
    if missing:
        raise ConfigError(
            f"`compute.loss_chunk` needs a model with features(tokens) and logits(features), but {run.model.factory} "
            f"lacks {' and '.join(missing)}; add what is missing (froude.train.api.Model), or leave the key out"
        )
    whole: Callable[..., Tensor] = model.forward

    def forward(
        tokens: Tensor, *more: Any, labels: Tensor | None = None, z_loss: float = 0.0, **named: Any
    ) -> Any:
        if labels is None:
            return whole(tokens, *more, **named)
        features: Tensor = model.features(tokens, *more, **named)  # type: ignore[operator]
        return in_chunks(model.logits, features, labels, size, z_loss)  # type: ignore[arg-type]

    model.forward = forward


def in_chunks(
    readout: Callable[[Tensor], Tensor], features: Tensor, labels: Tensor, size: int, z_loss: float
) -> tuple[Tensor, Tensor]:
    """`losses` of the logits that `readout` makes of features [n, context, width], `size` tokens at a time.

    Of the first of the two, one backward pass can be made.
    """
    learns = torch.is_grad_enabled()
    given, targets = features.detach().flatten(0, 1), labels.flatten()
    of_features = torch.empty_like(given) if learns else None
    total = torch.zeros(2, dtype=torch.float64, device=features.device)
    leaves: list[Tensor] = []
    of_leaves: list[Tensor] = []
    for first in range(0, len(given), size):
        here = slice(first, first + size)
        part = given[None, here].requires_grad_(learns)
        sought, entropy = losses(readout(part).float(), targets[None, here], z_loss)
        total += torch.stack((sought, entropy)).detach().double()
        if of_features is None:
            continue
        leaves = leaves or [leaf for leaf in leaves_of(sought) if leaf is not part]
        with torch.autocast(features.device.type, enabled=False):  # as in any backward pass
            of_part, *rest = torch.autograd.grad(sought, [part, *leaves])
        of_features[here] = of_part[0]
        if of_leaves:
            torch._foreach_add_(of_leaves, rest)
        else:  # a sum over chunks, so at least in fp32
            of_leaves = [each.to(torch.promote_types(each.dtype, torch.float32)) for each in rest]
        del rest  # as large as the readout, and the next chunk's come before this name is taken
    sought, entropy = total.float().unbind()
    if of_features is not None:
        gradients = [of_features.view_as(features), *of_leaves]
        sought = _Given.apply(sought, gradients, features, *leaves)  # type: ignore[no-untyped-call]
    return sought, entropy


def leaves_of(result: Tensor) -> list[Tensor]:
    """The tensors with a gradient that a result was computed from, each once."""
    found: list[Tensor] = []
    seen, left = set(), [result.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            found.append(leaf)
        left += [following for following, _ in node.next_functions]
    return found


class _Given(torch.autograd.Function):
    """A number whose gradient by its inputs is known already."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *inputs: Tensor) -> Tensor:
        ctx.gradients, ctx.dtypes = gradients, [tensor.dtype for tensor in inputs]
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, []  # in place, since they are large
        if not gradients:
            raise RuntimeError("a loss in chunks has one backward pass")
        return None, None, *(g.mul_(slope).to(t) for g, t in zip(gradients, ctx.dtypes, strict=True))
