"""Activation checkpointing: what backward computes again instead of finding it in memory (Chen et al. 1604.06174).

Blocks keep their names and their place: only what they call in their forward pass is another function, so hooks around
a block run once, and what FSDP gathers for its backward pass is there when it is computed again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from froude.config import ConfigError, Run

#: Operations whose results `selective` keeps: a block's matrix products, and attention by any of torch's kernels that
#: keeps no [context, context]. The rest is cheap to compute again.
KEPT = tuple(
    getattr(torch.ops.aten, name).default
    for name in (
        "mm",
        "addmm",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    )
)


def install(model: nn.Module, run: Run) -> None:
    """Have the model's blocks compute again in backward what the run says; ConfigError where that can't be."""
    kind = run.compute.checkpointing
    if kind == "none":
        return
    blocks: Sequence[nn.Module] = model.blocks()  # type: ignore[operator]
    if kind == "sqrt":
        if not callable(getattr(model, "in_turn", None)):
            raise ConfigError(
                f'`compute.checkpointing` = "sqrt" needs a model that calls its blocks by `in_turn`, but '
                f'{run.model.factory} has none; use "blocks", or add it (froude.train.api.Model)'
            )
        model.in_turn = functools.partial(_in_segments, math.ceil(math.sqrt(len(blocks))))  # type: ignore[assignment]
    contexts: dict[str, Any] = {}
    if kind == "selective":
        contexts["context_fn"] = functools.partial(create_selective_checkpoint_contexts, list(KEPT))
    for block in dict.fromkeys(blocks):
        block.forward = _computed_again(block.forward, contexts)


def _computed_again(forward: Callable[..., Any], contexts: dict[str, Any]) -> Callable[..., Any]:
    """A forward pass of which only what it is given is kept, random draws the same the second time."""

    @functools.wraps(forward)
    def kept(*given: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*given, **named)
        return checkpoint(forward, *given, use_reentrant=False, **contexts, **named)

    return kept


#: A block, or a call of one with arguments of its own.
Block = Callable[..., Tensor]


def in_turn(blocks: Sequence[Block], x: Tensor, *rest: Any) -> Tensor:
    """What the last of the blocks makes of what the one before it made, from the first on."""
    for block in blocks:
        x = block(x, *rest)
    return x


def _in_segments(length: int, blocks: Sequence[Block], x: Tensor, *rest: Any) -> Tensor:
    """`in_turn`, of which each segment's input is kept; in a segment's backward pass, its blocks'.

    All activations of a segment at once would be more than all blocks' inputs up to some three hundred blocks.
    """
    run = _computed_again(in_turn, {})
    for first in range(0, len(blocks), length):
        x = run(blocks[first : first + length], x, *rest)
    return x
