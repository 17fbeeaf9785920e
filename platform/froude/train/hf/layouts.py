"""Where in each architecture of transformers the multipliers of a parametrization act, and where they can be folded.

Names are those of transformers' modules: `blocks` from the whole model, the others within one block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from froude.config import ConfigError


@dataclass(frozen=True)
class Layout:
    """An architecture as far as a parametrization must know it.

    `added` are the modules whose outputs are added to the residual stream, `writes` those of them that are matrices and
    so start smaller: behind a norm of its own (OLMo 2) a matrix' size makes no difference. `queries` is what scales
    queries alone, `rows` whether it holds those of keys and values, too, one third each. With `in_config` the
    architecture has multipliers of its own, in its config.
    """

    blocks: str
    final_norm: str
    attention: str
    added: tuple[str, ...]
    writes: tuple[str, ...]
    queries: str
    rows: bool = False
    in_config: bool = False
    learned_positions: bool = False
    head_dim: bool = True


_LLAMA = Layout(
    blocks="model.layers",
    final_norm="model.norm",
    attention="self_attn",
    added=("self_attn.o_proj", "mlp.down_proj"),
    writes=("self_attn.o_proj", "mlp.down_proj"),
    queries="self_attn.q_proj",
)
_QWEN3 = replace(_LLAMA, queries="self_attn.q_norm")
_OLMO2 = replace(_QWEN3, added=("post_attention_layernorm", "post_feedforward_layernorm"), writes=())
_GRANITE = replace(_LLAMA, in_config=True, head_dim=False)
_GPT2 = Layout(
    blocks="transformer.h",
    final_norm="transformer.ln_f",
    attention="attn",
    added=("attn.c_proj", "mlp.c_proj"),
    writes=("attn.c_proj", "mlp.c_proj"),
    queries="attn.c_attn",
    rows=True,
    learned_positions=True,
    head_dim=False,
)

#: By `model_type` of a config.
LAYOUTS: Mapping[str, Layout] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _QWEN3,
    "olmo2": _OLMO2,
    "granite": _GRANITE,
    "gpt2": _GPT2,
}


def layout_of(model_type: object) -> Layout:
    """The layout of this type; ConfigError for one that has none here."""
    if model_type not in LAYOUTS:
        raise ConfigError(
            f"the `model_type` of a config must be one whose multipliers are known, {', '.join(LAYOUTS)}, but got "
            f"{model_type!r}; write a class of your own around it (docs/guide/bring-your-own.md)"
        )
    return LAYOUTS[str(model_type)]
