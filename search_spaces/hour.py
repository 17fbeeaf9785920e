"""A study of about an hour on two cores with a certified forecast: the quickstart's, with more and longer proxies.

It begins with rates, batches, and nine sizes and horizons; `froude plan --next` chooses the runs that the forecast
still lacks, as benchmarks/campaign/hour.py does until it is narrow enough. Each run is a trial: branches off one
trunk are one piece of evidence, and a certificate asks for nine that are larger than what they were forecast from.
"""

from dataclasses import replace
from pathlib import Path

import polars as pl

from froude import laws
from froude.config import Model, Optimizer, Run, Schedule
from froude.space import Grid, Space, Trial, load_space

BASE_WIDTH, BATCH = 64, 768
CENTRE = 2**-7.5  # peak rate about which to look
TRANSFER_STEPS = 340
OFFSETS = (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5)  # octaves
TARGET_WIDTH, TARGET_STEPS = 192, 4000
WARMUP_STEPS = 200  # of the target, and of what the law is fitted to
LAW_WINDOWS, COMPARED_WINDOWS = 768, 256  # of an evaluation


def proxy(seed: int, width: int, steps: int, **changes: object) -> Run:
    """A one-worker run on the King James Bible as bytes; batches are in tokens."""
    return Run(
        model=Model(width=width, base_width=BASE_WIDTH),
        optimizer=Optimizer(lr=CENTRE, beta2=0.95, weight_decay=0.1),
        schedule=Schedule(name="wsd", warmup_tokens=WARMUP_STEPS * BATCH),
        parametrization="mup",
        batch=BATCH,
        tokens=steps * BATCH,
        eval_windows=COMPARED_WINDOWS,
        seed=seed,
    ).replace(changes)


def lr_transfer(seed: int) -> Grid:
    """Learning rate against width under muP; a second seed about the middle."""
    points = [
        (width, octaves, seed + again)
        for width in (32, 64, 128)
        for octaves in OFFSETS
        for again in ((0, 1) if abs(octaves) <= 0.5 else (0,))
    ]

    def trial(width: int, octaves: float, of: int) -> Trial:
        lr = CENTRE * 2.0**octaves
        name = f"mup-w{width}-lr{lr:.2e}-s{of}"
        changes = {"optimizer.lr": lr, "schedule.warmup_tokens": TRANSFER_STEPS // 10 * BATCH}
        return Trial(name, (proxy(of, width, TRANSFER_STEPS, name=name, **changes),))

    trials = [trial(*point) for point in points]
    return Grid("lr_transfer", lambda rows: trials, role="lr_transfer")


def pooled_rate(rows: pl.DataFrame) -> float:
    """The optimum of all widths, at the middle of their range; what the optimum falls with tokens the law absorbs."""
    grid = rows.filter(pl.col("stage") == "lr_transfer")
    if not grid.height:
        return CENTRE
    # A resumed sweep must find the same number, whatever the last bits of a least-squares solver on that machine.
    return float(f"{laws.lr_transfer(grid, over='width').optimum(BASE_WIDTH).value:.4g}")


def loss_law(seed: int) -> Grid:
    """The first sizes and horizons; the planner goes on from here."""

    def trials(rows: pl.DataFrame) -> list[Trial]:
        changes = {"optimizer.lr": pooled_rate(rows), "eval_windows": LAW_WINDOWS}
        points = [(width, steps) for width in (64, 96, 128) for steps in (600, 1200, 2400)]
        named = [(width, steps, f"law-w{width}-n{steps}") for width, steps in points]
        return [
            Trial(name, (proxy(seed, width, steps, name=name, **changes),)) for width, steps, name in named
        ]

    return Grid("loss_law", trials, role="loss_law", after=("lr_transfer",))


def space(seed: int = 0) -> Space:
    """The study and its target; the critical batch is measured as in the quickstart."""
    quickstart = load_space(Path(__file__).with_name("quickstart.py"), seed=seed)
    (batches,) = (stage for stage in quickstart.stages if stage.name == "critical_batch")
    target = proxy(
        seed,
        TARGET_WIDTH,
        TARGET_STEPS,
        name="large",
        slots=6,
        reduction="exact",
        slot_schedule="block",
        workers=(1, 3),
        eval_windows=LAW_WINDOWS,
        checkpoint_every=200,
    )
    stages = (lr_transfer(seed), replace(batches, after=("lr_transfer",)), loss_law(seed))
    return Space("hour", seed, stages, target)
