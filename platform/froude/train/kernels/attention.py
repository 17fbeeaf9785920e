"""Causal attention and RoPE in the operations that take least on a CPU for short windows.

There torch's fused attention is slow in bf16 (five times at 64 tokens), and in fp32 where matrix products are fast ones
(six times); beyond 512 tokens it is the quicker one. Shapes as in `froude.train.model`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from froude.hardware.sizes import IN_PIECES


def attention(q_BxHxTxK: Tensor, k_BxHxTxK: Tensor, v_BxHxTxK: Tensor, scale: float) -> Tensor:
    """softmax(scale q k^T) v, in which no token sees a later one: [B, H, T, K].

    Under autocast in its type, as fused attention is; scores then are, too.
    """
    B, H, T, K = q_BxHxTxK.shape
    if T > IN_PIECES:
        return F.scaled_dot_product_attention(q_BxHxTxK, k_BxHxTxK, v_BxHxTxK, is_causal=True, scale=scale)
    device = q_BxHxTxK.device.type
    mixed = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if mixed else q_BxHxTxK.dtype
    heads = (each.to(dtype).reshape(B * H, T, K) for each in (q_BxHxTxK, k_BxHxTxK, v_BxHxTxK))
    with torch.autocast(device, enabled=False):
        q, k, v = heads
        later = torch.full((T, T), float("-inf"), dtype=dtype, device=q.device).triu(1)
        scores = torch.baddbmm(later, q, k.transpose(1, 2), alpha=scale)
        weights = scores.view(B, H, T, T).softmax(-1)  # in this shape the width test recognises attention
        return torch.bmm(weights.view(B * H, T, T), v).view(B, H, T, K)


def rotate(x_BxTxNxK: Tensor, cos_TxK: Tensor, sin_TxK: Tensor) -> Tensor:
    """RoPE of queries and keys, in three operations on whole heads."""
    half = x_BxTxNxK.shape[-1] // 2
    signed = torch.cat((-sin_TxK[:, :half], sin_TxK[:, half:]), dim=-1)
    x = x_BxTxNxK.float()  # once, not within each operation
    return torch.addcmul(x * cos_TxK[:, None], x.roll(half, -1), signed[:, None])
