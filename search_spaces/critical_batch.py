"""Steps to one loss against batch, at 92 million parameters: where more data parallelism stops paying.

Batches of 16 thousand to 2 million tokens, three rates each on the square-root rule, beta2 by its half-life in tokens,
horizons as WSD branches off one trunk, which ends at the target loss. Bytes of the UTF-8 file named by FROUDE_CORPUS
(corpus.txt if unset), on every node.
"""

import math
import os

from froude.config import Data, Model, Optimizer, Run, Schedule
from froude.space import Grid, Space, Trial

CONTEXT, BASE_BATCH = 1024, 2**17
BATCHES = tuple(2**i for i in range(14, 22))
LR, BETA2 = 2**-8, 0.95  # at the base batch
TARGET_LOSS = 0.95  # nats per byte; set it to what the base batch reaches after half of the longest branch
MOST_TOKENS, SHARE = 2**32, 1.35  # that a branch may have, and from each branch to the next
WARMUP = 2**24  # tokens, at least 20 steps


def proxy(batch: int, octaves: float, steps: int, seed: int) -> Run:
    """One horizon of one trunk."""
    scale = batch / BASE_BATCH
    lr = LR * math.sqrt(scale) * 2**octaves
    return Run(
        name=f"b{batch}-lr{lr:.2e}-n{steps}",
        model=Model(width=768, base_width=256, depth=12, head_dim=64, context=CONTEXT),
        data=Data(
            source="froude.train.data.text:TextFile", path=os.environ.get("FROUDE_CORPUS", "corpus.txt")
        ),
        optimizer=Optimizer(lr=lr, beta2=min(0.999, max(0.5, BETA2**scale))),
        schedule=Schedule(name="wsd", warmup_tokens=max(20, WARMUP // batch) * batch),
        precision="bf16",
        batch=batch,
        tokens=steps * batch,
        seed=seed,
    )


def trial(batch: int, octaves: float, seed: int) -> Trial:
    """A trunk with branches ever 1.35 times longer, from the first whose tail begins after the warmup."""
    first = max(20, WARMUP // batch) / 0.8
    last = max(MOST_TOKENS / batch, 2 * first)
    count = int(math.log(last / first) / math.log(SHARE)) + 1
    runs = [proxy(batch, octaves, math.ceil(first * SHARE**i), seed) for i in range(count)]
    return Trial(runs[0].name.rpartition("-n")[0], tuple(runs), stop_loss=TARGET_LOSS)


def space(seed: int = 0) -> Space:
    """The study; its target is the base batch's run of the most tokens, on 8 workers."""
    trials = [trial(batch, octaves, seed) for batch in BATCHES for octaves in (-1, 0, 1)]
    target = proxy(BASE_BATCH, 0, MOST_TOKENS // BASE_BATCH, seed).replace(
        {"workers": (1, 8), "slots": 8}, name="large"
    )
    grid = Grid("critical_batch", lambda rows: trials, role="critical_batch")
    return Space("critical_batch", seed, (grid,), target)
