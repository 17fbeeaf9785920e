"""A study whose runs a trainer of one's own trains: `train.py` beside this file, which imports nothing of froude.

    froude sweep search_spaces/external/space.py --out runs/external --trust
    froude promote runs/external --override lr_points --reason TEXT --override lr_transfers --reason TEXT
    FROUDE_RUN=runs/external/target.json FROUDE_METRICS=large.jsonl python search_spaces/external/train.py &
    froude follow runs/external --metrics large.jsonl

Change `command` to start a trainer of yours, and the shapes to what it trains.
"""

from pathlib import Path

import polars as pl

from froude import laws
from froude.config import Model, Optimizer, Run, Schedule, Trainer, whole_steps
from froude.space import Grid, LogUniform, Search, Space, Trial

BASE_WIDTH, CONTEXT, BATCH = 16, 16, 512
RATE, OCTAVES = 2**-4.0, (-2.5, -1.5, -0.75, 0.0, 0.75, 1.5, 2.5)
SHORT, TARGET_STEPS = 60, 800
TRAIN = Path(__file__).with_name("train.py")


def params(width: int) -> int:
    """Parameters of the trainer's model, without embedding and readout, as it tells them itself."""
    return 12 * width**2 + 13 * width + 2 * width


def run(seed: int, width: int, steps: int, **changes: object) -> Run:
    """One run of the trainer; batch and tokens are in tokens, as everywhere."""
    tokens = steps * BATCH
    made = Run(
        model=Model(width=width, depth=1, head_dim=8, context=CONTEXT, vocab=64, base_width=BASE_WIDTH),
        optimizer=Optimizer(lr=RATE, beta2=0.95, weight_decay=0.0),
        schedule=Schedule(name="wsd", warmup_tokens=whole_steps(0.1 * tokens, BATCH)),
        parametrization="mup",
        trainer=Trainer(command=("{python}", str(TRAIN)), params=params(width), retries=1),
        batch=BATCH,
        slots=1,
        tokens=tokens,
        seed=seed,
    )
    return made.replace(changes)


def found_rate(rows: pl.DataFrame) -> float:
    """The best rate of stage lr_transfer at the smallest width, where muP says it is the same for all."""
    grid = rows.filter((pl.col("stage") == "lr_transfer") & (pl.col("width") == BASE_WIDTH))
    curve = laws.lr_curve(grid) if grid.height else None
    return float(f"{curve.lr:.4g}") if curve is not None and curve.status in ("ok", "flat") else RATE


def lr_transfer(seed: int) -> Grid:
    """Seven rates at three widths; the middle one with two seeds."""

    def layout(rows: pl.DataFrame) -> list[Trial]:
        return [
            Trial(name, (run(each, width, SHORT, **{"optimizer.lr": RATE * 2**octaves, "name": name}),))
            for width in (16, 32, 64)
            for number, octaves in enumerate(OCTAVES)
            for each in ((seed, seed + 1) if octaves == 0 else (seed,))
            for name in [f"rate{number}-w{width}-s{each}"]
        ]

    return Grid("lr_transfer", layout, "lr_transfer", after=())


def loss_law(seed: int) -> Grid:
    """Three widths at three horizons, at the best rate; the shortest with two seeds."""

    def layout(rows: pl.DataFrame) -> list[Trial]:
        rate = found_rate(rows)
        return [
            Trial(name, (run(each, width, steps, **{"optimizer.lr": rate, "name": name}),))
            for width in (16, 24, 32)
            for steps in (100, 200, 400)
            for each in ((seed, seed + 1) if steps == 100 else (seed,))
            for name in [f"law-w{width}-n{steps}-s{each}"]
        ]

    return Grid("loss_law", layout, "loss_law", after=("lr_transfer",))


def space(seed: int = 0) -> Space:
    """The study."""
    search = Search(
        "search",
        base=run(seed, BASE_WIDTH, SHORT),
        axes={"optimizer.beta2": LogUniform(0.9, 0.99)},
        trials=3,
        startup=2,
        default={"optimizer.beta2": 0.95},
    )
    target = run(seed, 48, TARGET_STEPS, name="large")
    return Space("external", seed, (search, lr_transfer(seed), loss_law(seed)), target)
