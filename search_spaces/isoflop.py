"""Loss against size at five compute budgets, 3e17 to 3e19 FLOPs, for the loss law and for the best size of a budget.

At each budget seven sizes, tokens = budget / (6 · parameters), so that each run has a schedule of its own; the middle
size has two seeds. The peak rate comes from a study such as lr_transfer.py: set it below.
Bytes of the UTF-8 file named by FROUDE_CORPUS (corpus.txt if unset), on every node.
"""

import math
import os

from froude.config import Data, Model, Optimizer, Run, Schedule, whole_steps
from froude.space import Grid, Space, Trial

CONTEXT, BASE_WIDTH, HEAD = 1024, 256, 64
LR = 2**-7  # at the base width, under muP
BUDGETS = (3e17, 1e18, 3e18, 1e19, 3e19)
ASPECT = 64  # width over depth
SIZES = tuple(range(4, 31, 2))  # depth, of which each budget uses seven
TOKENS_PER_PARAMETER = 20  # about which a budget's sizes lie
PER_BUDGET = 7


def parameters(depth: int) -> int:
    """Those of the hidden matrices: attention 4 · width², SwiGLU 9 · width² (three times as wide), a layer."""
    return 13 * depth * (ASPECT * depth) ** 2


def proxy(depth: int, flops: float, seed: int) -> Run:
    """The run of one size at one budget."""
    width, params = ASPECT * depth, parameters(depth)
    tokens = flops / 6 / params
    batch = 2 ** round(math.log2(0.58 * tokens**0.571))  # Step Law (2503.04715), to a power of two
    tokens = whole_steps(tokens, batch)
    return Run(
        name=f"c{flops:.0e}-d{depth}-s{seed}".replace("+", ""),
        model=Model(width=width, base_width=BASE_WIDTH, depth=depth, head_dim=HEAD, context=CONTEXT),
        data=Data(
            source="froude.train.data.text:TextFile", path=os.environ.get("FROUDE_CORPUS", "corpus.txt")
        ),
        optimizer=Optimizer(lr=LR),
        schedule=Schedule(name="cosine", warmup_tokens=whole_steps(0.02 * tokens, batch)),
        precision="bf16",
        batch=batch,
        slots=8,
        tokens=tokens,
        seed=seed,
    )


def runs(seed: int) -> list[Run]:
    """Seven sizes about the one with TOKENS_PER_PARAMETER at each budget, the middle one twice."""
    found = []
    for flops in BUDGETS:
        best = (flops / 6 / TOKENS_PER_PARAMETER) ** 0.5
        middle = min(range(len(SIZES)), key=lambda i: abs(parameters(SIZES[i]) / best - 1))
        first = min(max(0, middle - PER_BUDGET // 2), len(SIZES) - PER_BUDGET)
        for depth in SIZES[first : first + PER_BUDGET]:
            again = (seed, seed + 1) if depth == SIZES[middle] else (seed,)
            found += [proxy(depth, flops, each) for each in again]
    return found


def space(seed: int = 0) -> Space:
    """The study, and a target of ten times its largest budget on 8 to 64 GPUs."""
    largest = 10 * max(BUDGETS)
    made = proxy(32, largest, seed)
    target = made.replace(
        {"workers": (8, 64), "slots": 64, "reduction": "exact", "checkpoint_every": 500}, name="large"
    )
    trials = [Trial(run.name, (run,)) for run in runs(seed)]
    return Space("isoflop", seed, (Grid("isoflop", lambda rows: trials, role="loss_law"),), target)
