"""The beginning of a study of an hour: the quickstart's stages, with more and longer proxies.

A search of beta2, rates, batches, and nine sizes and horizons; `froude plan --next` then chooses the runs that the
forecast still lacks, as benchmarks/campaign/hour.py does until it is certified and narrow. Each run is a trial:
branches off one trunk are one piece of evidence, and a certificate asks for two that are larger than what they were
forecast from.
"""

from pathlib import Path

import polars as pl

from froude import laws
from froude.config import Model, Optimizer, Run, Schedule
from froude.space import Grid, LogUniform, Search, Space, Trial, Uniform, load_space

BASE_WIDTH, BATCH = 64, 768
CENTRE, BETA2 = 2**-7.5, 0.95  # peak rate about which to look; where nothing has been found yet
SHORT = 340  # steps of stages search and lr_transfer
OFFSETS = (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5)  # octaves
TARGET_WIDTH, TARGET_STEPS = 192, 4000
WARMUP = 0.05  # share of the steps; what the law is fitted to warms up for as many steps as the target
LAW_WINDOWS, COMPARED_WINDOWS = 768, 256  # of an evaluation


def proxy(seed: int, width: int, steps: int, **changes: object) -> Run:
    """A one-worker run on the King James Bible as bytes; batches are in tokens."""
    return Run(
        model=Model(width=width, base_width=BASE_WIDTH),
        optimizer=Optimizer(lr=CENTRE, beta2=BETA2, weight_decay=0.1),
        schedule=Schedule(name="wsd", warmup_tokens=round(WARMUP * TARGET_STEPS) * BATCH),
        parametrization="mup",
        batch=BATCH,
        tokens=steps * BATCH,
        eval_windows=COMPARED_WINDOWS,
        seed=seed,
    ).replace(changes)


def search(seed: int) -> Search:
    """beta2, with a rate that suits it, at one width."""
    return Search(
        "search",
        base=proxy(seed, BASE_WIDTH, SHORT, **{"schedule.warmup_tokens": round(WARMUP * SHORT) * BATCH}),
        axes={"optimizer.lr": LogUniform(2**-10, 2**-5), "optimizer.beta2": Uniform(0.9, 0.99)},
        trials=12,
        startup=6,
        default={"optimizer.lr": CENTRE, "optimizer.beta2": BETA2},
        parallel=3,
    )


def searched_beta2(rows: pl.DataFrame) -> float:
    """beta2 of the search's best trial, as the quickstart's critical_batch sees it and the recipe will have it."""
    done = rows.filter((pl.col("stage") == "search") & (pl.col("status") == "finished")).sort("loss", "run")
    return float(done["beta2"][0]) if done.height else BETA2


def lr_transfer(seed: int) -> Grid:
    """Learning rate against width under muP; a second seed about the middle."""

    def trials(rows: pl.DataFrame) -> list[Trial]:
        beta2, found = searched_beta2(rows), []
        for width in (32, 64, 128):
            for octaves in OFFSETS:
                lr = CENTRE * 2.0**octaves
                changes = {
                    "optimizer.lr": lr,
                    "optimizer.beta2": beta2,
                    "schedule.warmup_tokens": round(WARMUP * SHORT) * BATCH,
                }
                for of in (seed, seed + 1) if abs(octaves) <= 0.5 else (seed,):
                    name = f"mup-w{width}-lr{lr:.2e}-s{of}"
                    found.append(Trial(name, (proxy(of, width, SHORT, name=name, **changes),)))
        return found

    return Grid("lr_transfer", trials, role="lr_transfer", after=("search",))


def pooled_rate(rows: pl.DataFrame) -> float:
    """The optimum of all widths, at the middle of their range; every horizon gets it, as the target will."""
    grid = rows.filter(pl.col("stage") == "lr_transfer")
    if not grid.height:
        return CENTRE
    # A resumed sweep must find the same number, whatever the last bits of a least-squares solver on that machine.
    return float(f"{laws.lr_transfer(grid, over='width').optimum(BASE_WIDTH).value:.4g}")


def loss_law(seed: int) -> Grid:
    """The first sizes and horizons; the planner goes on from here.

    39 seeds of width 64 spread by 0.8% of the loss after 600 steps, two of width 160 by 0.2% after 4000, and the law
    has one scatter for all: the shortest run should not be too short.
    """

    def trials(rows: pl.DataFrame) -> list[Trial]:
        changes = {
            "optimizer.lr": pooled_rate(rows),
            "optimizer.beta2": searched_beta2(rows),
            "eval_windows": LAW_WINDOWS,
        }
        runs = [
            proxy(seed, width, steps, name=f"law-w{width}-n{steps}", **changes)
            for width in (64, 96, 128)
            for steps in (1000, 1700, 2900)
        ]
        return [Trial(run.name, (run,)) for run in runs]

    return Grid("loss_law", trials, role="loss_law", after=("search", "lr_transfer"))


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
    stages = (search(seed), lr_transfer(seed), batches, loss_law(seed))
    return Space("hour", seed, stages, target)
