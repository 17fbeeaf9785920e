"""What others have published of memory and speed, beside what `froude plan --device` says: for plan_memory.md."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from froude.config import Model, Run
from froude.hardware import roofline, tables
from froude.hardware.activations import COPIES
from froude.hardware.memory import FRAGMENTATION, memory
from froude.hardware.sizes import Place, Sizes
from froude.sweep.sizes import sizes_of

KNOWN = frozenset(Model.model_fields)
FOUNDRY = (
    "[llm-foundry](https://github.com/mosaicml/llm-foundry/blob/main/scripts/train/benchmarking/README.md)"
)
TITAN = "[torchtitan](https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md)"
LLAMA = "[LLaMA 2](https://arxiv.org/abs/2307.09288), table 2"
GB, GIB = 1e9, 2**30


def shape(
    width: int, depth: int, heads: int, hidden: float, context: int, vocab: int, batch: int, **changes: Any
) -> Run:
    """A run of that model in bf16, whose batch is in windows; keys that this version's Model lacks are left out."""
    more = {key: value for key, value in changes.items() if key not in KNOWN and "." in key}
    table = {key: value for key, value in changes.items() if key in KNOWN}
    return Run(
        model=Model(
            width=width,
            depth=depth,
            head_dim=width // heads,
            mlp_ratio=hidden / width,
            context=context,
            vocab=vocab,
            **table,
        ),
        precision="bf16",
        batch=batch * context,
        tokens=batch * context,
        parametrization="sp",
    ).replace(more)


def mpt(width: int, depth: int, context: int, windows: int, gpus: int, **changes: Any) -> Run:
    """llm-foundry's models: GELU of 4 times, so SwiGLU of 8/3, heads of 128, tied."""
    return shape(
        width,
        depth,
        width // 128,
        round(8 / 3 * width),
        context,
        50_368,
        windows * gpus,
        tied=True,
        **changes,
    )


def llama3(windows: int, context: int = 8192, **changes: Any) -> Run:
    """Llama 3 8B, 2407.21783, table 3."""
    return shape(4096, 32, 32, 14_336, context, 128_256, windows, kv_heads=8, **changes)


AGAIN = {"compute.checkpointing": "blocks"}
SELECTIVE = {"compute.checkpointing": "selective"}
LLAMA_70B = shape(8192, 80, 64, 28_672, 4096, 32_000, 1024, kv_heads=8, **AGAIN)
#: Source, what, device, place, run, published tokens a second and device.
SPEEDS: tuple[tuple[str, str, str, str, Run, float], ...] = (
    (FOUNDRY, "1B", "h100-80gb", "1x8", mpt(2048, 24, 2048, 14, 8), 45_455),
    (FOUNDRY, "3B", "h100-80gb", "2x8", mpt(2560, 32, 2048, 10, 16), 24_142),
    (FOUNDRY, "7B", "h100-80gb", "1x8", mpt(4096, 32, 2048, 6, 8), 10_643),
    (FOUNDRY, "7B", "h100-80gb", "16x8", mpt(4096, 32, 2048, 6, 128), 10_475),
    (FOUNDRY, "7B, context 32k", "h100-80gb", "1x8", mpt(4096, 32, 32_768, 2, 8, **AGAIN), 3_318),
    (FOUNDRY, "13B", "h100-80gb", "1x8", mpt(5120, 40, 2048, 2, 8), 4_792),
    (FOUNDRY, "13B", "h100-80gb", "16x8", mpt(5120, 40, 2048, 16, 128, **AGAIN), 5_080),
    (FOUNDRY, "30B", "h100-80gb", "16x8", mpt(7168, 48, 2048, 8, 128, **AGAIN), 2_199),
    (FOUNDRY, "70B", "h100-80gb", "16x8", mpt(8192, 80, 2048, 8, 128, **AGAIN), 1_058),
    (FOUNDRY, "13B", "a100-80gb", "1x8", mpt(5120, 40, 2048, 2, 8), 2_262),
    (FOUNDRY, "30B", "a100-80gb", "1x8", mpt(7168, 48, 2048, 3, 8, **AGAIN), 916),
    (FOUNDRY, "70B", "a100-80gb", "8x8", mpt(8192, 80, 2048, 8, 64, **AGAIN), 410),
    (TITAN, "8B, eager", "h100-80gb", "1x8", llama3(16, **SELECTIVE), 5_762),
    (TITAN, "8B, compiled", "h100-80gb", "1x8", llama3(16, **SELECTIVE), 6_667),
    (TITAN, "8B, compiled", "h100-80gb", "16x8", llama3(256, **SELECTIVE), 6_514),
    # 2e12 tokens over hours of a device.
    (
        LLAMA,
        "7B",
        "a100-80gb",
        "32x8",
        shape(4096, 32, 32, 11_008, 4096, 32_000, 1024),
        2e12 / 184_320 / 3600,
    ),
    (
        LLAMA,
        "13B",
        "a100-80gb",
        "32x8",
        shape(5120, 40, 40, 13_824, 4096, 32_000, 1024),
        2e12 / 368_640 / 3600,
    ),
    (LLAMA, "70B", "a100-80gb", "32x8", LLAMA_70B, 2e12 / 1_720_320 / 3600),
)


def speeds() -> Iterator[str]:
    """Each published speed beside the roofline's, and how far apart they are."""
    factors = []
    rows = []
    for source, what, name, at, run, published in SPEEDS:
        place, device = Place.parse(at), tables.device(name)
        found = roofline.step(run, sizes_of(run), place, device)
        each = found.tokens_per_second / place.workers
        factors.append(each / published)
        rows.append(
            f"| {source} | {what} | {at} {name} | {published:,.0f} | {each:,.0f} | {each / published:.2f} | "
            f"{found.mfu:.0%} |"
        )
    logs = [math.log(factor) for factor in factors]
    mean = math.exp(sum(logs) / len(logs))
    nine = math.ceil(0.9 * len(logs))
    off = sorted(math.exp(abs(log)) for log in logs)
    yield from (
        "## Speed: published, and by the roofline",
        "",
        f"{len(rows)} speeds in bf16, with other kernels and other networks than froude's. The parts of their peak "
        "that the two GPUs sustain (devices.toml) were lowered once with all of these ratios in view, from 0.75 and "
        "0.62, at which the mean was 1.18 and the worst 1.65: so this is a fit, not a test. torchtitan's H100s had 500 "
        "W and 2.4 TB/s; LLaMA 2's hours have all that stood still. "
        f"The geometric mean of the ratios is {mean:.2f}; {nine} of {len(off)} are within a factor of "
        f"{off[nine - 1]:.2f}, all within {off[-1]:.2f}.",
        "",
        "| source | model | devices | published, tokens/s a device | roofline | ratio | MFU by the roofline |",
        "|---|---|---|---:|---:|---:|---:|",
        *rows,
    )


#: What is published (GiB, torch's reserved memory), and the run: windows a device, context, devices, checkpointing.
PEAKS = (
    ("table 1, FSDP", 82.4, 2, 8192, 8, "selective"),
    ("table 1, compiled", 77.0, 2, 8192, 8, "selective"),
    ("table 3, FSDP", 67.0, 2, 8192, 128, "selective"),
    ("table 3, compiled", 62.0, 2, 8192, 128, "selective"),
    ("table 2, compiled, fp8", 83.9, 1, 32_768, 8, "blocks"),
)


def theirs(run: Run, sizes: Sizes, workers: int, tokens: int) -> float:
    """Bytes with torchtitan's choices: weights gathered and a residual stream in bf16, of products every second kept.

    Outputs of wq, wv, w1, w2 and attention, and the block's input (torchtitan, activation_checkpoint.py, "op").
    """
    width, hidden = run.model.width, round(run.model.mlp_ratio * run.model.width)
    heads = 8 * run.model.head_dim
    held = 12 * sizes.parameters / workers
    gathered = 2 * (sizes.outside + 2 * sizes.block)
    whole = 2 * (8 * width + 4 * heads + 4 * hidden)  # of a block in bf16
    kept = 2 * (width + 3 * width + heads + hidden) if run.compute.checkpointing == "selective" else 2 * width
    logits = 4 * COPIES * tokens * run.model.vocab
    return held + gathered + tokens * (sizes.depth * kept + whole) + logits


def peaks() -> Iterator[str]:
    """Published peaks beside the plan's, for its own ways and for theirs."""
    yield from (
        "## Peak memory: published, and planned",
        "",
        f"Llama 3.1 8B, {TITAN}, GiB; theirs is what torch has reserved, so the plan has its {FRAGMENTATION:.0%} for "
        "fragmentation, without the context and NCCL's buffers. froude keeps the residual stream in fp32 and gathers "
        "fp32 weights; torchtitan has both in bf16, and of a block's products keeps every second: the column `theirs` "
        "counts that with the same arithmetic.",
        "",
        "| source | published | planned for froude | difference | planned, theirs | difference |",
        "|---|---:|---:|---:|---:|---:|",
    )
    for what, published, windows, context, workers, checkpointing in PEAKS:
        changes = {"compute.checkpointing": checkpointing}
        run = llama3(windows * workers, context, **changes)
        sizes = grouped(sizes_of(run), run)
        own = memory(run, sizes, Place(max(1, workers // 8), 8), gpu=True).peak * (1 + FRAGMENTATION) / GIB
        other = theirs(run, sizes, workers, windows * context) * (1 + FRAGMENTATION) / GIB
        yield (
            f"| {what} | {published} | {own:.1f} | {own / published - 1:+.0%} | {other:.1f} | "
            f"{other / published - 1:+.0%} |"
        )


def grouped(sizes: Sizes, run: Run) -> Sizes:
    """Llama 3 8B's parameters where this version's model has no grouped queries."""
    if "kv_heads" in KNOWN:
        return sizes
    less = 2 * run.model.width * (run.model.width - 8 * run.model.head_dim)
    return replace(
        sizes,
        parameters=sizes.parameters - sizes.depth * less,
        blocks=sizes.blocks - sizes.depth * less,
        block=sizes.block - less,
        products=sizes.products - sizes.depth * less,
        state_bytes=sizes.state_bytes - 8 * sizes.depth * less,
    )


def textbook() -> Iterator[str]:
    """Bytes of a parameter as primers count them, beside the plan's, for round numbers of parameters."""
    run = shape(8192, 80, 64, 28_672, 4096, 32_000, 8)
    yield from (
        "## Weights, gradients and state: the arithmetic of primers",
        "",
        "AdamW, GB (10^9 bytes). Primers count 2 bytes of weights and 2 of gradients in bf16, 4 of fp32 masters and 8 "
        "of state: 16 a parameter; in fp32 4 + 4 + 8. froude keeps 4 + 4 + 8, and copies in bf16 while they are used: "
        "the sum is the same, its parts are not.",
        "",
        "| parameters | workers that share | primers: weights, gradients, state | sum | froude's | sum |",
        "|---:|---:|---|---:|---|---:|",
    )
    for parameters in (1e9, 7e9, 70e9):
        for workers in (1, 8):
            parts = [(2 + 4) * parameters, 2 * parameters, 8 * parameters]
            sizes = Sizes(
                parameters=int(parameters),
                blocks=int(parameters),
                block=int(parameters / 80),
                depth=80,
                products=0,
                readout=0,
                largest=0,
                state_bytes=int(8 * parameters),
                flops_per_token=6 * parameters,
            )
            found = memory(run, sizes, Place(1, workers), gpu=True).items
            ours = [found[name].bytes for name in ("weights", "kept gradients", "state")]
            primers = [part / workers for part in parts]
            yield (
                f"| {parameters / 1e9:g}B | {workers} | {_list(primers)} | {sum(primers) / GB:,.1f} | {_list(ours)} | "
                f"{sum(ours) / GB:,.1f} |"
            )
    stream = 80 * 4096 * 8192 * 2 / GB
    kept = memory(run.replace({"micro_batch": 4096}), sizes, Place(1, 8), gpu=True)
    yield from (
        "",
        "Activations of 70B, one window of 4096: primers count the streams between blocks in bf16, 80 x 4096 x 8192 x "
        f"2 = {stream:.1f} GB, and say that all of them easily exceed 100 GB; counted tensor by tensor they are "
        f"{kept.items['activations'].bytes / GB:.0f} GB without checkpointing.",
    )


def _list(parts: list[float]) -> str:
    return " + ".join(f"{part / GB:,.1f}" for part in parts)


def tables_of_published() -> list[str]:
    """All of them."""
    return [*textbook(), "", *peaks(), "", *speeds()]


if __name__ == "__main__":
    print("\n".join(tables_of_published()))
