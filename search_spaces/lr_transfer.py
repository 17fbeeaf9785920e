"""Peak learning rate against width, under muP and SP, for a target run of 1.7 billion parameters.

Widths 256 to 1024 at 8 layers, heads of 64; 537 million tokens a run, whatever the width, so that width alone moves the
optimum. Nine rates half an octave apart, the three in the middle with a second seed. Bytes of the UTF-8 file named by
FROUDE_CORPUS (corpus.txt if unset), on every node. `froude plan search_spaces/lr_transfer.py` shows what it would take.
"""

import math
import os

from froude.config import Data, Model, Optimizer, Run, Schedule
from froude.space import Grid, Space, Trial

CONTEXT, BATCH = 1024, 2**16
TOKENS = 2**13 * BATCH
WIDTHS, BASE_WIDTH, DEPTH = (256, 512, 1024), 256, 8
CENTRE = {"mup": 2**-7, "sp": 2**-7}  # at the base width, where both are the same
OFFSETS = tuple(i / 2 for i in range(-4, 5))  # octaves
TARGET_WIDTH, TARGET_TOKENS = 4096, 2**19 * BATCH


def proxy(width: int, parametrization: str, octaves: float, seed: int) -> Run:
    """One point of a U-curve; under SP the centre falls by an octave per octave of width."""
    shift = -math.log2(width / BASE_WIDTH) if parametrization == "sp" else 0.0
    lr = CENTRE[parametrization] * 2 ** (octaves + shift)
    return Run(
        name=f"{parametrization}-w{width}-lr{lr:.2e}-s{seed}",
        model=Model(width=width, base_width=BASE_WIDTH, depth=DEPTH, head_dim=64, context=CONTEXT),
        data=Data(
            source="froude.train.data.text:TextFile", path=os.environ.get("FROUDE_CORPUS", "corpus.txt")
        ),
        optimizer=Optimizer(lr=lr),
        schedule=Schedule(name="wsd", warmup_tokens=TOKENS // 50),
        parametrization=parametrization,
        precision="bf16",
        batch=BATCH,
        slots=8,
        tokens=TOKENS,
        seed=seed,
    )


def grid(seed: int) -> Grid:
    """Both parametrizations; runs at the base width count for both."""
    points = [
        (width, parametrization, octaves, seed + again)
        for width in WIDTHS
        for parametrization in ("mup", "sp")
        if (width, parametrization) != (BASE_WIDTH, "sp")
        for octaves in OFFSETS
        for again in ((0, 1) if abs(octaves) <= 0.5 else (0,))
    ]
    runs = [proxy(*point) for point in points]
    return Grid("lr_transfer", lambda rows: [Trial(run.name, (run,)) for run in runs], role="lr_transfer")


def space(seed: int = 0) -> Space:
    """The study and its target, 8 to 64 GPUs."""
    target = proxy(TARGET_WIDTH, "mup", 0.0, seed).replace(
        {
            "tokens": TARGET_TOKENS,
            "batch": 8 * BATCH,
            "slots": 64,
            "reduction": "exact",
            "schedule.warmup_tokens": TARGET_TOKENS // 128,
            "workers": (8, 64),
            "checkpoint_every": 500,
        },
        name="large",
    )
    return Space("lr_transfer", seed, (grid(seed),), target)
