"""A target of ten times the compute of any proxy, promoted without an override.

A search of beta2 and the rate, rates at the target's own horizon, and a ladder of six widths, of which the two widest
run shorter: so tokens per parameter span the target's, and no proxy costs more than a tenth of it. All runs train
on the King James Bible as bytes; batches are in tokens.
"""

import polars as pl

from froude import laws
from froude.config import Model, Optimizer, Run, Schedule
from froude.space import Grid, LogUniform, Search, Space, Trial, Uniform

BASE_WIDTH, BATCH = 64, 1536
CENTRE, BETA2 = 2**-7, 0.95  # peak rate about which to look; beta2 where nothing has been found yet
OFFSETS = tuple(octaves / 2 for octaves in range(-4, 5))  # octaves
RATE_WIDTHS = (48, 64, 96)
TARGET_WIDTH, STEPS = 320, 1000
WARMUP = 64  # steps of all runs but the search's, whose warmup is as large a part of theirs
SEARCH_STEPS = 300
#: Steps of the branches off each width's trunk.
WHOLE = (160, 250, 500, 1000)
LADDER = {32: WHOLE, 48: WHOLE, 64: WHOLE, 96: WHOLE, 128: WHOLE[1:3], 160: (160, 300)}
LAW_SEEDS, RATE_SEEDS = 3, 2
LAW_WINDOWS, COMPARED_WINDOWS = 768, 256  # of an evaluation


def proxy(seed: int, width: int, steps: int, **changes: object) -> Run:
    """A run of one worker."""
    return Run(
        model=Model(width=width, base_width=BASE_WIDTH),
        optimizer=Optimizer(lr=CENTRE, beta2=BETA2, weight_decay=0.1),
        schedule=Schedule(name="wsd", warmup_tokens=WARMUP * BATCH),
        parametrization="mup",
        batch=BATCH,
        tokens=steps * BATCH,
        eval_windows=LAW_WINDOWS,
        seed=seed,
    ).replace(changes)


def search(seed: int) -> Search:
    """beta2, with a rate that suits it, at one width."""
    warmup = round(WARMUP * SEARCH_STEPS / STEPS) * BATCH
    return Search(
        "search",
        base=proxy(
            seed,
            RATE_WIDTHS[0],
            SEARCH_STEPS,
            **{"schedule.warmup_tokens": warmup, "eval_windows": COMPARED_WINDOWS},
        ),
        axes={"optimizer.lr": LogUniform(2**-9, 2**-5), "optimizer.beta2": Uniform(0.9, 0.99)},
        trials=12,
        startup=6,
        default={"optimizer.lr": CENTRE, "optimizer.beta2": BETA2},
        parallel=2,
    )


def searched_beta2(rows: pl.DataFrame) -> float:
    """beta2 of the search's best trial, which the recipe will have."""
    done = rows.filter((pl.col("stage") == "search") & (pl.col("status") == "finished")).sort("loss", "run")
    return float(done["beta2"][0]) if done.height else BETA2


def lr_transfer(seed: int) -> Grid:
    """Rates over widths, at the target's horizon: what a longer one does to the best rate need not be known."""

    def trials(rows: pl.DataFrame) -> list[Trial]:
        beta2, found = searched_beta2(rows), []
        for of in range(seed, seed + RATE_SEEDS):
            for width in RATE_WIDTHS:
                for octaves in OFFSETS:
                    lr = CENTRE * 2.0**octaves
                    name = f"rate-w{width}-lr{lr:.2e}-s{of}"
                    changes = {"optimizer.lr": lr, "optimizer.beta2": beta2}
                    found.append(Trial(name, (proxy(of, width, STEPS, name=name, **changes),)))
        return found

    return Grid("lr_transfer", trials, role="lr_transfer", after=("search",))


def pooled_rate(rows: pl.DataFrame) -> float:
    """The optimum of all widths, at the middle of their range; every proxy of the law gets it, as the target will."""
    grid = rows.filter(pl.col("stage") == "lr_transfer")
    if not grid.height:
        return CENTRE
    # A resumed sweep must find the same number, whatever the last bits of a least-squares solver on that machine.
    return float(f"{laws.lr_transfer(grid, over='width').optimum(BASE_WIDTH).value:.4g}")


def loss_law(seed: int) -> Grid:
    """Sizes and horizons, the horizons as branches off one trunk for each size and seed."""

    def trials(rows: pl.DataFrame) -> list[Trial]:
        changes = {"optimizer.lr": pooled_rate(rows), "optimizer.beta2": searched_beta2(rows)}
        found = []
        for of in range(seed, seed + LAW_SEEDS):
            for width, horizons in LADDER.items():
                name = f"law-w{width}-s{of}"
                runs = (proxy(of, width, n, name=f"{name}-n{n}", **changes) for n in horizons)
                found.append(Trial(name, tuple(runs)))
        return found

    return Grid("loss_law", trials, role="loss_law", after=("search", "lr_transfer"))


def space(seed: int = 0) -> Space:
    """The study and its target, which two workers can train."""
    target = proxy(
        seed,
        TARGET_WIDTH,
        STEPS,
        name="large",
        slots=6,
        reduction="exact",
        slot_schedule="block",
        workers=(1, 2),
        checkpoint_every=200,
    )
    return Space("reach", seed, (search(seed), lr_transfer(seed), loss_law(seed)), target)
