"""A study whose runs nanoGPT trains, in a folder NANOGPT with a data set in its data/ named by NANOGPT_DATA.

    export NANOGPT=~/nanoGPT NANOGPT_DATA=shakespeare_char
    froude sweep search_spaces/external/nanogpt_space.py --out runs/nanogpt --trust

Rates are nanoGPT's own at each width (SP), so the target's comes from how the best one falls over widths.
"""

import os
from pathlib import Path

import polars as pl

from froude import laws
from froude.config import Model, Optimizer, Run, Schedule, Trainer, whole_steps
from froude.space import Grid, LogUniform, Search, Space, Trial

CONTEXT, BATCH, DEPTH = 64, 1024, 2
WIDTHS, TARGET_WIDTH = (32, 48, 64), 96
RATE, OCTAVES = 2**-7.5, (-2.0, -1.25, -0.5, 0.0, 0.5, 1.25, 2.0)
SHORT, HORIZONS, TARGET_STEPS = 300, (300, 600, 1200), 2400
HERE = Path(__file__).parent
PLACE, DATASET = os.environ.get("NANOGPT", "nanoGPT"), os.environ.get("NANOGPT_DATA", "shakespeare_char")


def params(width: int) -> int:
    """Parameters without embedding, as nanogpt.py tells them."""
    return DEPTH * (12 * width**2 + 2 * width) + width


def run(seed: int, width: int, steps: int, **changes: object) -> Run:
    """One run; batch and tokens are in tokens."""
    tokens = steps * BATCH
    made = Run(
        model=Model(width=width, depth=DEPTH, head_dim=16, context=CONTEXT),
        optimizer=Optimizer(lr=RATE, beta2=0.95, weight_decay=0.1),
        schedule=Schedule(name="cosine", floor=0.1, warmup_tokens=whole_steps(0.1 * tokens, BATCH)),
        parametrization="sp",
        trainer=Trainer(
            command=("{python}", str(HERE / "nanogpt.py"), "{run}", PLACE, DATASET),
            files=(str(HERE / "nanogpt.py"), f"{PLACE}/train.py", f"{PLACE}/model.py"),
            params=params(width),
            retries=1,
        ),
        batch=BATCH,
        slots=1,
        tokens=tokens,
        seed=seed,
    )
    return made.replace(changes)


def rate_at(rows: pl.DataFrame, width: int) -> float:
    """The best rate at a width, by a line through those of stage lr_transfer over widths."""
    grid = rows.filter(pl.col("stage") == "lr_transfer")
    law = laws.lr_transfer(grid) if grid.height else None
    return float(f"{law.optimum(width).value:.4g}") if law is not None and law.status == "ok" else RATE


def lr_transfer(seed: int) -> Grid:
    """Seven rates at three widths; the middle one with two seeds."""

    def layout(rows: pl.DataFrame) -> list[Trial]:
        return [
            Trial(name, (run(each, width, SHORT, **{"optimizer.lr": RATE * 2**octaves, "name": name}),))
            for width in WIDTHS
            for number, octaves in enumerate(OCTAVES)
            for each in ((seed, seed + 1) if octaves == 0 else (seed,))
            for name in [f"rate{number}-w{width}-s{each}"]
        ]

    return Grid("lr_transfer", layout, "lr_transfer", after=())


def loss_law(seed: int) -> Grid:
    """Three widths at three horizons, each at its width's rate; the shortest with two seeds."""

    def layout(rows: pl.DataFrame) -> list[Trial]:
        return [
            Trial(
                name,
                (run(each, width, steps, **{"optimizer.lr": rate_at(rows, width), "name": name}),),
            )
            for width in WIDTHS
            for steps in HORIZONS
            for each in ((seed, seed + 1) if steps == HORIZONS[0] else (seed,))
            for name in [f"law-w{width}-n{steps}-s{each}"]
        ]

    return Grid("loss_law", layout, "loss_law", after=("lr_transfer",))


def space(seed: int = 0) -> Space:
    """The study."""
    search = Search(
        "search",
        base=run(seed, WIDTHS[0], SHORT),
        axes={"optimizer.beta2": LogUniform(0.9, 0.99)},
        trials=3,
        startup=2,
        default={"optimizer.beta2": 0.95},
    )
    target = run(seed, TARGET_WIDTH, TARGET_STEPS, name="large")
    return Space("nanogpt", seed, (search, lr_transfer(seed), loss_law(seed)), target)
