"""torchtitan's own Llama 3 as a model of froude, under muP, and a small study of its rates.

    pip install torchtitan==0.3.0      # and, with torch for CPUs, triton==3.7.1
    export PYTHONPATH=$PWD/search_spaces
    froude coordcheck search_spaces/torchtitan_llama.py --trust --widths 64,128,256

torchtitan imports Triton even for a dense model; torch for GPUs brings it, torch for CPUs does not. Tested with these
versions and torch 2.13 on CPUs. What the methods are for: docs/guide/bring-your-own.md.
"""

from torch import Tensor, nn
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm, ScaledDotProductAttention
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config
from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock

from froude.config import Model, Optimizer, Run, Schedule
from froude.space import Grid, Space, Trial
from froude.train.api import Kind, branch_sd, initial_sd, multiplier

BATCH, STEPS = 768, 200


class Branch(Linear):
    """What it puts out is added to the residual stream."""

    def __init__(self, run: Run, inputs: int) -> None:
        super().__init__(Linear.Config(in_features=inputs, out_features=run.model.width))
        self.multiplier = multiplier(run, "residual")

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.multiplier


def config(run: Run) -> Llama3Model.Config:
    """The run's shape in the words of torchtitan, as its own registry does it, but with q, k and v apart."""
    shape, unset = run.model, {}  # parameters start as froude says, below
    norm = RMSNorm.Config(normalized_shape=shape.width)
    layer = Llama3TransformerBlock.Config(
        attention_norm=norm,
        ffn_norm=norm,
        attention=make_gqa_config(
            dim=shape.width,
            n_heads=shape.heads,
            qk_norm=RMSNorm.Config(normalized_shape=shape.head_dim) if shape.qk_norm else None,
            inner_attention=ScaledDotProductAttention.Config(),  # causal; the others want masks
            rope=ComplexRoPE.Config(dim=shape.head_dim, max_seq_len=shape.context, theta=500_000.0),
            wqkv_param_init=unset,
            wo_param_init=unset,
        ),
        feed_forward=make_ffn_config(
            dim=shape.width,
            hidden_dim=round(shape.mlp_ratio * shape.width),
            w1_param_init=unset,
            w2w3_param_init=unset,
        ),
    )
    return Llama3Model.Config(
        dim=shape.width,
        vocab_size=shape.vocab,
        tok_embeddings=Embedding.Config(num_embeddings=shape.vocab, embedding_dim=shape.width),
        norm=norm,
        lm_head=Linear.Config(in_features=shape.width, out_features=shape.vocab),
        layers=[layer] * shape.depth,
        enable_weight_tying=shape.tied,
    )


class Llama(Llama3Model):
    """The model of torchtitan, told what froude must know of it; parameters keep their names there."""

    libraries = ("torchtitan",)  # its version counts among what a result comes from

    def __init__(self, run: Run) -> None:
        super().__init__(config(run))
        self.context, self.multiplier = run.model.context, multiplier(run, "logits")
        for layer in self.layers.values():
            layer.attention.scaling = multiplier(run, "attention")
            layer.attention.wo = Branch(run, layer.attention.wo.in_features)
            layer.feed_forward.w2 = Branch(run, layer.feed_forward.w2.in_features)
        branches = {f"{name}.weight" for name, module in self.named_modules() if isinstance(module, Branch)}
        for name, kind in self.kinds().items():
            parameter = self.get_parameter(name)
            if kind == "norm":
                nn.init.ones_(parameter)
            else:
                sd = initial_sd(run, kind, parameter.shape[1])
                nn.init.normal_(parameter, std=sd * branch_sd(run) if name in branches else sd)

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) * self.multiplier

    def blocks(self) -> list[nn.Module]:
        return list(self.layers.values())

    def kinds(self) -> dict[str, Kind]:
        tables: dict[str, Kind] = {"tok_embeddings.weight": "embedding", "lm_head.weight": "readout"}
        return {
            name: tables.get(name, "hidden" if parameter.ndim == 2 else "norm")
            for name, parameter in self.named_parameters()
        }

    def flops_per_token(self) -> float:
        return float(self.config.get_nparams_and_flops(self, self.context)[1])  # theirs


def proxy(seed: int, width: int, lr: float) -> Run:
    """One run."""
    return Run(
        name=f"w{width}-lr{lr:.2e}",
        model=Model(factory="torchtitan_llama:Llama", width=width, depth=2, base_width=64),
        optimizer=Optimizer(lr=lr),
        schedule=Schedule(name="wsd", warmup_tokens=10 * BATCH),
        batch=BATCH,
        tokens=STEPS * BATCH,
        seed=seed,
    )


def space(seed: int = 0) -> Space:
    """Five rates at three widths, and a target of twice the largest width."""
    runs = [proxy(seed, width, 2.0**lr) for width in (64, 96, 128) for lr in (-10, -9, -8, -7, -6)]
    rates = Grid("lr_transfer", lambda rows: [Trial(run.name, (run,)) for run in runs], role="lr_transfer")
    target = proxy(seed, 256, 2.0**-8).replace({"name": "large", "workers": (1, 2), "reduction": "exact"})
    return Space("torchtitan", seed, (rates,), target)
