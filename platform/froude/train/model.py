"""A decoder-only transformer: RMSNorm, RoPE, SwiGLU, optional QK-norm, tied or untied; any parametrization.

Shapes: B windows, T context, D width, H heads, K head_dim, F feed-forward width, V vocabulary, L blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from froude.config import Run
from froude.train.api import Kind, Part, branch_sd, initial_sd, multiplier
from froude.train.exact.draws import generator
from froude.train.kernels import attention as fast

ROPE_BASE = 10_000.0  # Su et al. 2104.09864
NORM_EPS = 1e-6


def _normal(seed: int, name: str, sd: float, *shape: int) -> nn.Parameter:
    """Normal draws from a generator of this parameter's own, so that neither order nor sharding matters."""
    if sd == 0.0 or torch.get_default_device().type == "meta":
        return nn.Parameter(torch.zeros(*shape))
    return nn.Parameter(torch.randn(*shape, generator=generator(seed, name)) * sd)


def _rotate(x_BxTx2xHxK: Tensor, cos_TxK: Tensor, sin_TxK: Tensor) -> Tensor:
    """RoPE of queries and keys in one go: fewer, larger operations matter for small models on a CPU."""
    half = x_BxTx2xHxK.shape[-1] // 2
    cos, sin = cos_TxK[:, None, None, :half], sin_TxK[:, None, None, :half]
    left, right = x_BxTx2xHxK.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def _attention(q_BxHxTxK: Tensor, k_BxHxTxK: Tensor, v_BxHxTxK: Tensor, scale: float) -> Tensor:
    return F.scaled_dot_product_attention(q_BxHxTxK, k_BxHxTxK, v_BxHxTxK, is_causal=True, scale=scale)


class Block(nn.Module):
    """x + attention(norm(x)), then x + SwiGLU(norm(x))."""

    def __init__(self, run: Run, prefix: str) -> None:
        super().__init__()
        shape, seed = run.model, run.seed
        D, self.H, self.K = shape.width, shape.width // shape.head_dim, shape.head_dim
        F_ = round(shape.mlp_ratio * D)
        out = branch_sd(run)  # 1/sqrt(2L), Radford et al. 2019
        self.scale, self.qk_norm = multiplier(run, "attention"), shape.qk_norm
        self.residual = multiplier(run, "residual")
        self.fast = run.compute.kernels == "fast"
        sd, sd_down = initial_sd(run, "hidden", D), initial_sd(run, "hidden", F_)
        self.attention_norm = nn.Parameter(torch.ones(D))
        self.qkv = _normal(seed, f"{prefix}.qkv", sd, 3 * D, D)
        self.attention_out = _normal(seed, f"{prefix}.attention_out", sd * out, D, D)
        self.mlp_norm = nn.Parameter(torch.ones(D))
        self.gate_up = _normal(seed, f"{prefix}.gate_up", sd, 2 * F_, D)
        self.down = _normal(seed, f"{prefix}.down", sd_down * out, D, F_)
        if self.qk_norm:
            self.q_gain = nn.Parameter(torch.ones(self.K))
            self.k_gain = nn.Parameter(torch.ones(self.K))

    def forward(self, x_BxTxD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        B, T, D = x_BxTxD.shape
        q, k, v = self._heads(x_BxTxD, cos, sin)
        a = (fast.attention if self.fast else _attention)(q, k, v, self.scale)
        x_BxTxD = self._added(x_BxTxD, F.linear(a.transpose(1, 2).reshape(B, T, D), self.attention_out))
        h = F.rms_norm(x_BxTxD, (D,), self.mlp_norm, NORM_EPS)
        gate, up = F.linear(h, self.gate_up).chunk(2, dim=-1)
        return self._added(x_BxTxD, F.linear(F.silu(gate) * up, self.down))

    def _heads(self, x_BxTxD: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, H, T, K]."""
        B, T, D = x_BxTxD.shape
        h = F.rms_norm(x_BxTxD, (D,), self.attention_norm, NORM_EPS)
        qkv_BxTx3xHxK = F.linear(h, self.qkv).view(B, T, 3, self.H, self.K)
        qk, v = qkv_BxTx3xHxK.split((2, 1), dim=2)
        if self.qk_norm:
            qk = F.rms_norm(qk, (self.K,), None, NORM_EPS) * torch.stack((self.q_gain, self.k_gain))[:, None]
        q, k = (fast.rotate if self.fast else _rotate)(qk, cos, sin).permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v.squeeze(2).transpose(1, 2)

    @torch.no_grad()
    def largest_attention_logit(self, x_BxTxD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The largest product of a query with a key that it may see, as softmax is given it, over the first window."""
        q_HxTxK, k_HxTxK, _ = (each[0] for each in self._heads(x_BxTxD[:1], cos, sin))
        seen_TxT = torch.ones(len(cos), len(cos), dtype=torch.bool, device=cos.device).tril()
        heads = zip(q_HxTxK, k_HxTxK, strict=True)  # one at a time: [T, T] is large where T is
        return torch.stack([(q @ k.T * self.scale).float()[seen_TxT].max() for q, k in heads]).max()

    def _added(self, x_BxTxD: Tensor, y_BxTxD: Tensor) -> Tensor:
        return x_BxTxD + (y_BxTxD if self.residual == 1.0 else y_BxTxD * self.residual)


class Transformer(nn.Module):
    """The package's own model, made from `run.model`."""

    cos: Tensor
    sin: Tensor

    def __init__(self, run: Run) -> None:
        super().__init__()
        shape, seed = run.model, run.seed
        self.shape, self.logit_multiplier = shape, multiplier(run, "logits")
        sd = initial_sd(run, "embedding", shape.vocab)
        self.embedding = _normal(seed, "embedding", sd, shape.vocab, shape.width)
        self.layers = nn.ModuleList(Block(run, f"layers.{i}") for i in range(shape.depth))
        self.norm = nn.Parameter(torch.ones(shape.width))
        if not shape.tied:
            sd = initial_sd(run, "readout", shape.width)
            self.readout = _normal(seed, "readout", sd, shape.vocab, shape.width)
        inverse = ROPE_BASE ** (-torch.arange(0, shape.head_dim, 2, device="cpu").double() / shape.head_dim)
        angle = torch.arange(shape.context, device="cpu").double()[:, None] * inverse.repeat(2)[None]
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        T = tokens.shape[1]
        # On a GPU torch's backward of `embedding` has lost writes in passes of up to 3072 tokens (pytorch#187687), in
        # releases that are in use; that of indexing sorts, and adds in one order.
        x_BxTxD = self.embedding[tokens] if tokens.is_cuda else F.embedding(tokens, self.embedding)
        cos, sin = self.cos[:T], self.sin[:T]
        for block in self.layers:
            x_BxTxD = block(x_BxTxD, cos, sin)
        x_BxTxD = F.rms_norm(x_BxTxD, (self.shape.width,), self.norm, NORM_EPS)
        readout = self.embedding if self.shape.tied else self.readout
        logits_BxTxV = F.linear(x_BxTxD, readout) * self.logit_multiplier
        cap = self.shape.softcap  # Bello et al. 1611.09940; Gemma 2 2408.00118: 30
        return cap * torch.tanh(logits_BxTxV / cap) if cap else logits_BxTxV

    def blocks(self) -> Sequence[nn.Module]:
        return list(self.layers)

    def kinds(self) -> Mapping[str, Kind]:
        def kind(name: str) -> Kind:
            if name in ("embedding", "readout"):
                return "embedding" if name == "embedding" else "readout"
            return "norm" if name.endswith(("norm", "gain")) else "hidden"

        return {name: kind(name) for name, _ in self.named_parameters()}

    def fused(self) -> Mapping[str, Sequence[Part]]:
        shape = self.shape
        heads, hidden = shape.width // shape.head_dim, round(shape.mlp_ratio * shape.width)
        parts = {
            "qkv": [Part(name, shape.width, heads) for name in ("q", "k", "v")],
            "gate_up": [Part(name, hidden) for name in ("gate", "up")],
        }
        return {f"layers.{i}.{name}": rows for i in range(len(self.layers)) for name, rows in parts.items()}

    def flops_per_token(self) -> float:
        """6 a matrix entry (readout included) plus 12 L T D for attention, as PaLM 2204.02311, appendix B."""
        shape = self.shape
        matrices = sum(p.numel() for n, p in self.named_parameters() if p.ndim == 2 and n != "embedding")
        matrices += shape.vocab * shape.width if shape.tied else 0
        return 6.0 * matrices + 12.0 * shape.depth * shape.context * shape.width
