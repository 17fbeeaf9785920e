"""Which tokens a token sees: those before it, of its window, of its document; and attention to what is seen.

Without a window and documents no mask is made, and the kernels are those of causal attention. With them a CPU has a
mask of booleans, as many as attention weights of one head. On a GPU long contexts go through FlexAttention, whose mask
is of blocks of 128 tokens, and which leaves out those blocks that nobody sees.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from froude.config import ConfigError, Run
from froude.sections import Model

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

    #: None: all before it. Booleans are [windows or 1, 1, T, T].
    Mask = Tensor | BlockMask | None
    #: By the width of a window, 0 where there is none.
    Masks = Mapping[int, Mask]

#: Tokens, and features of a head, from which on FlexAttention is used on a GPU: a block of its mask, and its least.
BLOCK, LEAST_HEAD = 128, 16


def masks(windows: Iterable[int], tokens: Tensor, documents: Tensor | None, head_dim: int) -> Masks:
    """For each width of a window (0: all) who sees whom among tokens [B, T] of documents [B, T]."""
    (B, T), device = tokens.shape, tokens.device
    flex = _by_blocks(device, T, head_dim)
    found: dict[int, Mask] = {}
    for window in windows:
        if documents is None and not 0 < window < T:
            found[window] = None
            continue
        rule, batch = _rule(window, documents), 1 if documents is None else B
        found[window] = _blocks(rule, batch, T, device) if flex else _booleans(rule, batch, T, device)
    return found


def check(run: Run, device: torch.device) -> None:
    """ConfigError for an optimizer that differentiates a backward pass where FlexAttention, which can't, would be used.

    Of the package's own model: what another calls is found out when it is differentiated.
    """
    shape = run.model
    if run.optimizer.spec.curvature != "hutchinson" or shape.factory != Model.model_fields["factory"].default:
        return
    windowed = 0 < shape.sliding_window < shape.context and shape.global_every != 1
    if not ((windowed or shape.documents) and _by_blocks(device, shape.context, shape.head_dim)):
        return
    key = "documents" if shape.documents else "sliding_window"
    raise ConfigError(
        f"{run.optimizer.name} needs second derivatives, which attention with `model.{key}` does not have on a GPU, "
        f"from {BLOCK} tokens and {LEAST_HEAD} features a head on; leave the key out, use sophia_g, or train on a CPU"
    )


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """Attention of queries [B, H, T, K] to keys and values [B, G, T, K], each for H / G heads in a row."""
    grouped = q.shape[1] != k.shape[1]
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
    if isinstance(mask, Tensor):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)
    found: Tensor = _compiled("flex_attention")(q, k, v, block_mask=mask, scale=scale, enable_gqa=grouped)
    return found


def of_first(mask: Mask, T: int, device: torch.device) -> Tensor:
    """Whom each token of the first window sees, booleans [T, T]."""
    if mask is None:
        return torch.ones(T, T, dtype=torch.bool, device=device).tril()
    return mask[0, 0] if isinstance(mask, Tensor) else _booleans(mask.mask_mod, 1, T, device)[0, 0]


def _by_blocks(device: torch.device, T: int, head_dim: int) -> bool:
    """Whether a mask is one of blocks, and attention under it FlexAttention."""
    return device.type == "cuda" and T >= BLOCK and head_dim >= LEAST_HEAD


def _rule(window: int, documents: Tensor | None) -> Callable[..., Tensor]:
    """Of batch, head, query and key, whether the one sees the other."""

    def sees(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = key <= query
        if window:
            seen = seen & (query - key < window)
        if documents is not None:
            seen = seen & (documents[b, query] == documents[b, key])
        return seen

    return sees


def _booleans(rule: Callable[..., Tensor], B: int, T: int, device: torch.device) -> Tensor:
    t = torch.arange(T, device=device)
    b = torch.arange(B, device=device)[:, None, None, None]
    return rule(b, None, t[:, None], t[None, :]).expand(B, 1, T, T)


def _blocks(rule: Callable[..., Tensor], B: int, T: int, device: torch.device) -> BlockMask:
    found: BlockMask = _compiled("create_block_mask")(rule, B, None, T, T, device=device)
    return found


@functools.cache
def _compiled(name: str) -> Callable[..., Any]:
    """A function of FlexAttention, which is of use only when compiled; imported and compiled when first needed."""
    from torch.nn.attention import flex_attention

    found: Callable[..., Any] = torch.compile(getattr(flex_attention, name), dynamic=False)
    return found
