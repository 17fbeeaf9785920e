"""A decoder-only transformer: RMSNorm, RoPE, SwiGLU, optional QK-norm, tied or untied; any parametrization.

Shapes: B windows, T context, D width, H heads, G heads of keys and values, K head_dim, F feed-forward width, V
vocabulary, L blocks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from froude.config import ConfigError, Model, Run
from froude.section import hint, listing
from froude.train.api import Kind, Part, multiplier
from froude.train.attention import rope
from froude.train.attention.seen import attend, masks, of_first
from froude.train.kernels import attention as fast
from froude.train.memory import weights
from froude.train.memory.checkpointing import in_turn
from froude.train.parametrization import initial

if TYPE_CHECKING:
    from froude.train.attention.seen import Masks

NORM_EPS = 1e-6
MOST = 2**61  # entries of a tensor in fp32, whose bytes torch counts in 63 bits
FOR_ADAPTER = 'it is for `model.factory` "froude.train.hf:Model"; set that, or leave the key out'


def _matrix(run: Run, name: str, *shape: int) -> nn.Parameter:
    if math.prod(shape) >= MOST:
        keys = "`model.width` or `model.vocab`" if name in ("embedding", "readout") else "`model.width`"
        keys += " or `model.mlp_ratio`" if name.endswith(("gate_up", "down")) else ""
        rows, columns = (f"{each:,}" if each < MOST else f"{each:.3g}" for each in shape)
        raise ConfigError(
            f"a model's matrices must have fewer than 2^61 entries, but {name} of this one is too large, {rows} x "
            f"{columns}; lower {keys}"
        )
    if torch.get_default_device().type == "meta" or weights.are_absent():
        return nn.Parameter(torch.empty(*shape, device="meta"))
    return nn.Parameter(_initial(run, name, shape))


def _initial(run: Run, name: str, shape: Sequence[int]) -> Tensor:
    return initial(run, name, _kind(name), shape, writes=name.endswith(("attention_out", "down")))


def _kind(name: str) -> Kind:
    if name in ("embedding", "readout"):
        return "embedding" if name == "embedding" else "readout"
    if name.endswith("bias"):
        return "bias"
    return "norm" if name.endswith(("norm", "gain")) else "hidden"


def _rotate(x_BxTxNxK: Tensor, cos_TxK: Tensor, sin_TxK: Tensor) -> Tensor:
    """RoPE of queries and keys in one go: fewer, larger operations matter for small models on a CPU."""
    half = x_BxTxNxK.shape[-1] // 2
    cos, sin = cos_TxK[:, None, :half], sin_TxK[:, None, :half]
    left, right = x_BxTxNxK.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


class Block(nn.Module):
    """x + attention(norm(x)), then x + SwiGLU(norm(x)); or both of one norm, added to x (GPT-J; PaLM 2204.02311).

    `window` is how many tokens a token sees; 0: all before it, as blocks of one's own have that know of no windows.
    """

    qkv_bias: Tensor | None
    attention_out_bias: Tensor | None
    gate_up_bias: Tensor | None
    down_bias: Tensor | None

    def __init__(self, run: Run, prefix: str, window: int = 0) -> None:
        super().__init__()
        self.window = window
        shape = run.model
        D, self.H, self.G, self.K = shape.width, shape.heads, shape.key_heads, shape.head_dim
        F_ = round(shape.mlp_ratio * D)
        self.scale, self.qk_norm = multiplier(run, "attention"), shape.qk_norm
        self.residual = multiplier(run, "residual")
        self.fast = run.compute.kernels == "fast"
        self.attention_norm = nn.Parameter(torch.ones(D))
        self.qkv = _matrix(run, f"{prefix}.qkv", (self.H + 2 * self.G) * self.K, D)
        self.attention_out = _matrix(run, f"{prefix}.attention_out", D, D)
        self.mlp_norm = None if shape.parallel else nn.Parameter(torch.ones(D))
        self.gate_up = _matrix(run, f"{prefix}.gate_up", 2 * F_, D)
        self.down = _matrix(run, f"{prefix}.down", D, F_)
        if self.qk_norm:
            self.q_gain = nn.Parameter(torch.ones(self.K))
            self.k_gain = nn.Parameter(torch.ones(self.K))
        for name in ("qkv", "attention_out", "gate_up", "down"):
            has = shape.attention_bias if name in ("qkv", "attention_out") else shape.mlp_bias
            bias = nn.Parameter(torch.zeros(len(getattr(self, name)))) if has else None
            self.register_parameter(f"{name}_bias", bias)

    def forward(self, x_BxTxD: Tensor, cos: Tensor, sin: Tensor, seen: Masks) -> Tensor:
        h, mask = self._normed(x_BxTxD, self.attention_norm), seen[self.window]
        q, k, v = self._heads(h, cos, sin)
        if self.fast and mask is None and self.G == self.H:
            a = fast.attention(q, k, v, self.scale)
        else:
            a = attend(q, k, v, mask, self.scale)
        a = F.linear(a.transpose(1, 2).reshape(x_BxTxD.shape), self.attention_out, self.attention_out_bias)
        x_BxTxD = self._added(x_BxTxD, a)
        if self.mlp_norm is not None:
            h = self._normed(x_BxTxD, self.mlp_norm)
        gate, up = F.linear(h, self.gate_up, self.gate_up_bias).chunk(2, dim=-1)
        return self._added(x_BxTxD, F.linear(F.silu(gate) * up, self.down, self.down_bias))

    def _normed(self, x_BxTxD: Tensor, gain: Tensor) -> Tensor:
        return F.rms_norm(x_BxTxD, gain.shape, gain, NORM_EPS)

    def _heads(self, h_BxTxD: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, H, T, K], keys and values [B, G, T, K]."""
        B, T, _ = h_BxTxD.shape
        H, G, K = self.H, self.G, self.K
        qkv_BxTxNxK = F.linear(h_BxTxD, self.qkv, self.qkv_bias).view(B, T, H + 2 * G, K)
        qk, v = qkv_BxTxNxK.split((H + G, G), dim=2)
        if self.qk_norm:
            qk = F.rms_norm(qk, (K,), None, NORM_EPS)
            if H == G:
                gains = torch.stack((self.q_gain, self.k_gain))[:, None]
                qk = (qk.unflatten(2, (2, H)) * gains).flatten(2, 3)
            else:
                qk = torch.cat((qk[:, :, :H] * self.q_gain, qk[:, :, H:] * self.k_gain), dim=2)
        turned = (fast.rotate if self.fast else _rotate)(qk, cos, sin)
        q, k = turned.transpose(1, 2).split((H, G), dim=1)
        return q, k, v.transpose(1, 2)

    @torch.no_grad()
    def largest_attention_logit(self, x_BxTxD: Tensor, cos: Tensor, sin: Tensor, seen: Masks) -> Tensor:
        """The largest product of a query with a key that it may see, as softmax is given it, over the first window."""
        h = self._normed(x_BxTxD[:1], self.attention_norm)
        q_HxTxK, k_GxTxK, _ = (each[0] for each in self._heads(h, cos, sin))
        seen_TxT, shared = of_first(seen[self.window], len(cos), cos.device), self.H // self.G
        heads = (
            (q, k_GxTxK[i // shared]) for i, q in enumerate(q_HxTxK)
        )  # one at a time: [T, T] is large where T is
        return torch.stack([(q @ k.T * self.scale).float()[seen_TxT].max() for q, k in heads]).max()

    def _added(self, x_BxTxD: Tensor, y_BxTxD: Tensor) -> Tensor:
        return x_BxTxD + (y_BxTxD if self.residual == 1.0 else y_BxTxD * self.residual)


def window_of(shape: Model, number: int) -> int:
    """Tokens that a token sees in a block, counted from 0; 0: all before it."""
    sees_all = shape.global_every and (number + 1) % shape.global_every == 0
    return 0 if sees_all or shape.sliding_window >= shape.context else shape.sliding_window


def refuse_options(shape: Model, read: Collection[str] = ()) -> None:
    """ConfigError for `model.options` beside those that a factory of the package's reads: nothing would come of them.

    A factory of one's own that calls the package's may have any.
    """
    odd = [key for key in shape.options if key not in read]
    if not odd or not shape.factory.startswith("froude."):
        return
    names = [name for name in type(shape).model_fields if name not in ("factory", "options")]
    remedy = FOR_ADAPTER if odd[0] in ("config", "init") else hint(["model", odd[0]], names)
    has = f"reads {listing(read)} alone" if read else "reads none"
    raise ConfigError(f"unknown key `model.options.{odd[0]}`: {shape.factory} {has}; {remedy}")


class Transformer(nn.Module):
    """The package's own model, made from `run.model`."""

    cos: Tensor
    sin: Tensor

    def __init__(self, run: Run) -> None:
        super().__init__()
        shape = run.model
        refuse_options(shape)
        self.run, self.shape, self.logit_multiplier = run, shape, multiplier(run, "logits")
        self.in_turn = in_turn
        self.embedding = _matrix(run, "embedding", shape.vocab, shape.width)
        self.windows = [window_of(shape, i) for i in range(shape.depth)]
        self.layers = nn.ModuleList(Block(run, f"layers.{i}", w) for i, w in enumerate(self.windows))
        self.norm = nn.Parameter(torch.ones(shape.width))
        if not shape.tied:
            self.readout = _matrix(run, "readout", shape.vocab, shape.width)
        try:
            cos, sin = rope.tables(shape)
        except RuntimeError as error:  # torch's, of memory that there is not
            raise ConfigError(
                f"a model must have angles for all positions of a window, but {shape.context:,} are too many here; "
                "lower `model.context`"
            ) from error
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
        return self.logits(self.features(tokens, documents))

    def features(self, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
        """What the readout is given, [B, T, D]."""
        T = tokens.shape[1]
        # On a GPU torch's backward of `embedding` has lost writes in passes of up to 3072 tokens (pytorch#187687), in
        # releases that are in use; that of indexing sorts, and adds in one order.
        x_BxTxD = self.embedding[tokens] if tokens.is_cuda else F.embedding(tokens, self.embedding)
        seen = masks(set(self.windows), tokens, documents, self.shape.head_dim)
        x_BxTxD = self.in_turn(self.blocks(), x_BxTxD, self.cos[:T], self.sin[:T], seen)
        return F.rms_norm(x_BxTxD, (self.shape.width,), self.norm, NORM_EPS)

    def logits(self, x_BxTxD: Tensor) -> Tensor:
        """Logits [B, T, V] of features, each position by itself."""
        readout = self.embedding if self.shape.tied else self.readout
        if (
            math.frexp(self.logit_multiplier)[0] == 0.5
        ):  # a power of two: the same bits, and features are fewer
            logits_BxTxV = F.linear(x_BxTxD * self.logit_multiplier, readout)
        else:
            logits_BxTxV = F.linear(x_BxTxD, readout) * self.logit_multiplier
        cap = self.shape.softcap  # Bello et al. 1611.09940; Gemma 2 2408.00118: 30
        return cap * torch.tanh(logits_BxTxV / cap) if cap else logits_BxTxV

    def blocks(self) -> Sequence[nn.Module]:
        return list(self.layers)

    def kinds(self) -> Mapping[str, Kind]:
        return {name: _kind(name) for name, _ in self.named_parameters()}

    def initial(self, name: str) -> Tensor:
        return _initial(self.run, name, self.get_parameter(name).shape)

    def fused(self) -> Mapping[str, Sequence[Part]]:
        shape = self.shape
        hidden = round(shape.mlp_ratio * shape.width)
        heads = {"q": shape.heads, "k": shape.key_heads, "v": shape.key_heads}
        parts = {
            "qkv": [Part(name, each * shape.head_dim, each) for name, each in heads.items()],
            "gate_up": [Part(name, hidden) for name in ("gate", "up")],
        }
        return {f"layers.{i}.{name}": rows for i in range(len(self.layers)) for name, rows in parts.items()}

    def flops_per_token(self) -> float:
        """6 a matrix entry (readout included) plus 12 T D a block for attention, as PaLM 2204.02311, appendix B.

        T is the block's window where it has one. Documents count as if they were as long.
        """
        shape = self.shape
        matrices = sum(p.numel() for n, p in self.named_parameters() if p.ndim == 2 and n != "embedding")
        matrices += shape.vocab * shape.width if shape.tied else 0
        seen = sum(window or shape.context for window in self.windows)
        return 6.0 * matrices + 12.0 * seen * shape.width
