"""Published recipes, each as a Run of its true size, to be planned, and as a small one of its kind, to be trained.

    froude plan search_spaces/published_recipes.py:llama2_7b --device h100-80gb --nodes 4x8
    froude sweep search_spaces/published_recipes.py --out runs/published

The small ones have the recipe's proportions, schedule and optimizer at a width of 64 on the King James Bible; they
show that a recipe runs, nothing about its loss at size. Batches, warmups and horizons are in tokens; a batch is the
published one rounded to whole windows of the context. Where a model has what the package's has not (GELU, learned or
relative positions, a norm after the branch), the nearest is taken, of such a size that the parameters agree; each
docstring lists what is left out. In all of them matrices start as the package's do, data are others, and what follows
pretraining's main stage is left out. OLMo 2's numbers were read from its configuration; the others' cite tables and
sections that were not opened again for this file.

SURVEY, where a comment says so, is no paper of a model's makers, but the table "Training Recipes from Real Models" of a
post on training large language models by S. Wanninayaka; it cites no source for a figure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from froude.config import Model, Optimizer, Run, Schedule, whole_steps
from froude.space import Grid, Space, Trial

SMALL_WIDTH, SMALL_STEPS, SMALL_BATCH = 64, 60, 1536
SMALL_CONTEXT = 64


def recipe(
    name: str,
    *,
    width: int,
    depth: int,
    heads: int,
    hidden: int,
    context: int,
    vocab: int,
    batch: int,
    tokens: float,
    lr: float,
    warmup: float,
    schedule: dict[str, Any],
    eps: float = 1e-8,
    attention: dict[str, Any] | None = None,
    **model: Any,
) -> Run:
    """AdamW with beta1 0.9, beta2 0.95, weight decay 0.1 and clip 1, in bf16.

    SURVEY has these for GPT-3 (as Adam), Chinchilla, LLaMA 2 and Mistral; DeepSeek's are of its section 2.3, and
    OLMo 2's of its configuration.
    """
    shape = {"width": width, "depth": depth, "head_dim": width // heads, "mlp_ratio": hidden / width}
    return Run(
        name=name,
        model=Model(
            **shape,
            context=context,
            vocab=vocab,
            readout_sd=0.02,
            **model,
            **(attention or {}),
        ),
        optimizer=Optimizer(lr=lr, beta1=0.9, beta2=0.95, eps=eps, weight_decay=0.1, clip=1.0),
        schedule=Schedule(warmup_tokens=whole_steps(warmup, batch), **schedule),
        parametrization="sp",
        precision="bf16",
        batch=batch,
        tokens=whole_steps(
            tokens, batch * max((factor for _, factor in schedule.get("ramp", ())), default=1)
        ),
    )


COSINE = {"name": "cosine", "floor": 0.1}


def gpt3() -> Run:
    """GPT-3 175B, Brown et al. 2005.14165.

    Left out: the batch ramp from 32k tokens, linear over the first 4 to 12 billion tokens (appendix B); the end of the
    cosine at 260 of 300 billion tokens, after which the rate stays at 10%, where this one falls to the end (appendix
    B); attention in bands in every other block (section 2.1); learned positions, GELU, biases, LayerNorm; fp16. Its
    optimizer is called Adam; AdamW is taken, for a weight decay of 0.1 that is cited as decoupled (1711.05101).
    """
    return recipe(
        "gpt3-175b",
        width=12_288,  # table 2.1
        depth=96,  # table 2.1
        heads=96,  # table 2.1; each of 128
        hidden=32_768,  # 8/3 of the width: as many parameters as its GELU layer of 4 times (section 2.1)
        context=2048,  # section 2.1
        vocab=50_257,  # GPT-2's byte pairs, section 2.1
        tied=True,  # as GPT-2, section 2.1
        batch=1536 * 2048,  # 3.2M, table 2.1
        tokens=300e9,  # table 2.1
        lr=0.6e-4,  # table 2.1
        warmup=375e6,  # appendix B
        schedule=COSINE,  # to 10% of the peak, appendix B
    )


def chinchilla() -> Run:
    """Chinchilla 70B, Hoffmann et al. 2203.15556.

    Left out: relative positions and GELU (as Gopher, 2112.11446).
    """
    return recipe(
        "chinchilla-70b",
        width=8192,  # table 4
        depth=80,  # table 4
        heads=64,  # table 4; each of 128
        hidden=24_576,  # 3 times: its GELU layer of 4 times, and Gopher's relative positions, 2112.11446
        context=2048,  # as Gopher
        vocab=32_000,  # section 4.1
        batch=768 * 2048,  # 1.5M, table 4
        tokens=1.4e12,  # section 4.1
        lr=1e-4,  # table 4
        warmup=1500 * 768 * 2048,  # 1500 steps, SURVEY
        schedule={
            **COSINE,  # to 10% over the run, section 3.1
            "ramp": ((whole_steps(7e11, 2 * 768 * 2048), 2),),  # 1.5M to 3M midway, table 4
            "ramp_rate": "constant",
        },
    )


def llama2_7b() -> Run:
    """LLaMA 2 7B, Touvron et al. 2307.09288.

    Left out: nothing that the paper names.
    """
    return recipe(
        "llama2-7b",
        width=4096,  # as LLaMA, 2302.13971, table 2
        depth=32,  # 2302.13971, table 2
        heads=32,  # 2302.13971, table 2
        hidden=11_008,  # 2/3 of 4 times, to a multiple of 256
        context=4096,  # table 1
        vocab=32_000,  # section 2.2
        batch=1024 * 4096,  # 4M, table 1
        tokens=2e12,  # table 1
        lr=3e-4,  # table 1
        warmup=2000 * 1024 * 4096,  # 2000 steps, section 2.2
        eps=1e-5,  # section 2.2
        schedule=COSINE,  # to 10%, section 2.2
    )


def llama2_70b() -> Run:
    """LLaMA 2 70B, Touvron et al. 2307.09288.

    Left out: nothing that the paper names.
    """
    return recipe(
        "llama2-70b",
        width=8192,  # as LLaMA 65B, 2302.13971, table 2
        depth=80,  # 2302.13971, table 2
        heads=64,  # 2302.13971, table 2
        hidden=28_672,  # 1.3 times what LLaMA would have (A.2.1), to a multiple of 4096
        attention={"kv_heads": 8},  # table 1 and section A.2.1
        context=4096,  # table 1
        vocab=32_000,  # section 2.2
        batch=1024 * 4096,  # 4M, table 1
        tokens=2e12,  # table 1
        lr=1.5e-4,  # table 1
        warmup=2000 * 1024 * 4096,  # section 2.2
        eps=1e-5,  # section 2.2
        schedule=COSINE,
    )


def mistral_7b() -> Run:
    """Mistral 7B, Jiang et al. 2310.06825, for the shape; how it was trained is not published, and here from SURVEY.

    Left out: what nobody outside knows, such as its tokens.
    """
    return recipe(
        "mistral-7b",
        width=4096,  # table 1
        depth=32,  # table 1
        heads=32,  # table 1
        hidden=14_336,  # table 1
        attention={"kv_heads": 8, "sliding_window": 4096},  # table 1
        context=8192,  # table 1
        vocab=32_000,  # table 1
        batch=512 * 8192,  # 4M, SURVEY
        tokens=8e12,  # SURVEY: "~8T (estimated)"
        lr=3e-4,  # SURVEY
        warmup=1000 * 512 * 8192,  # 1000 steps, SURVEY
        schedule=COSINE,  # SURVEY
    )


#: Peak to 80% of the tokens, then 31.6% of it, from 90% on 10%: DeepSeek LLM, 2401.02954, section 2.3.
MULTI_STEP = {"name": "multi_step"}


def deepseek_7b() -> Run:
    """DeepSeek LLM 7B, 2401.02954.

    Left out: initialisation with a standard deviation of 0.006 (section 2.3).
    """
    return recipe(
        "deepseek-7b",
        width=4096,  # table 2
        depth=30,  # table 2
        heads=32,  # table 2
        hidden=11_008,  # the released configuration; 8/3 of the width, section 2.2
        context=4096,  # table 2
        vocab=102_400,  # section 2.1
        batch=2304 * 4096,  # 2304 windows, table 2
        tokens=2e12,  # table 2
        lr=4.2e-4,  # table 2
        warmup=2000 * 2304 * 4096,  # 2000 steps, section 2.3
        schedule=MULTI_STEP,
    )


def deepseek_67b() -> Run:
    """DeepSeek LLM 67B, 2401.02954.

    Left out: initialisation with a standard deviation of 0.006 (section 2.3).
    """
    return recipe(
        "deepseek-67b",
        width=8192,  # table 2
        depth=95,  # table 2
        heads=64,  # table 2
        hidden=22_016,  # the released configuration
        attention={"kv_heads": 8},  # table 2
        context=4096,  # table 2
        vocab=102_400,  # section 2.1
        batch=4608 * 4096,  # 4608 windows, table 2
        tokens=2e12,  # table 2
        lr=3.2e-4,  # table 2
        warmup=2000 * 4608 * 4096,  # section 2.3
        schedule=MULTI_STEP,
    )


def olmo2_7b() -> Run:
    """OLMo 2 7B, stage 1, 2501.00656; numbers from allenai/OLMo, configs/official-1124/OLMo2-7B-stage1.yaml.

    Left out: norms after the branches instead of before, and of queries and keys over all heads at once; a cosine that
    is drawn for 5e12 tokens, where stage 1 ends before; stage 2.
    """
    return recipe(
        "olmo2-7b",
        width=4096,
        depth=32,
        heads=32,
        hidden=11_008,  # half of mlp_hidden_size
        attention={"rope_base": 500_000.0},  # rope_theta
        context=4096,
        vocab=100_352,  # embedding_size: 100,278 tokens, padded
        qk_norm=True,  # attention_layer_norm; theirs is over all heads at once
        z_loss=1e-5,  # auxiliary_loss_multiplier
        batch=1024 * 4096,  # global_train_batch_size
        tokens=4e12,  # table 1 of the model card: 4 trillion
        lr=3e-4,
        warmup=8_388_608_000,  # t_warmup
        schedule=COSINE,  # alpha_f; theirs was drawn for 5e12 tokens
    )


#: Each recipe with the parameters that its source gives, embeddings included.
RECIPES: dict[Callable[[], Run], float] = {
    gpt3: 174.6e9,  # table 2.1: 175B; 12 L d^2 and the embedding make 174.6B
    chinchilla: 70e9,  # section 4.1
    llama2_7b: 6.738e9,  # of the released weights
    llama2_70b: 68.98e9,  # of the released weights
    mistral_7b: 7.242e9,  # of the released weights
    deepseek_7b: 6.91e9,  # of the released weights
    deepseek_67b: 67.42e9,  # of the released weights
    olmo2_7b: 7.299e9,  # of the released weights
}


def small(made: Run, seed: int = 0) -> Run:
    """A run of a minute that has the recipe's proportions, schedule, optimizer and options; on the built-in corpus."""
    shape, least = made.model, SMALL_WIDTH // 16
    share = made.schedule.warmup_tokens / made.tokens
    tokens = SMALL_STEPS * SMALL_BATCH
    changes: dict[str, Any] = {
        "name": f"{made.name}-small",
        "seed": seed,
        "model.width": SMALL_WIDTH,
        "model.head_dim": 16,
        "model.depth": 2,
        "model.context": SMALL_CONTEXT,
        "model.vocab": 256,
        "optimizer.lr": 2**-8,  # what suits the width, not the recipe's
        "precision": "fp32",
        "batch": SMALL_BATCH,
        "tokens": tokens,
        "schedule.warmup_tokens": whole_steps(max(share, 0.02) * tokens, SMALL_BATCH),
        "schedule.ramp": [
            (whole_steps(at / made.tokens * tokens, SMALL_BATCH), factor) for at, factor in made.schedule.ramp
        ],
        "eval_windows": 96,
    }
    if shape.kv_heads:
        changes["model.kv_heads"] = max(1, least // 4)
    if shape.sliding_window:
        changes["model.sliding_window"] = SMALL_CONTEXT // 2  # half of the context, as Mistral's
    return made.replace(changes)


def space(seed: int = 0) -> Space:
    """All small ones, a trial each; the target is the last."""

    def trials(_rows: object) -> list[Trial]:
        return [Trial(run.name, (run,)) for run in (small(made(), seed) for made in RECIPES)]

    return Space("published", seed, (Grid("small", trials, role="loss_law"),), small(olmo2_7b(), seed))
