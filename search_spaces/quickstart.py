"""The quickstart's study: four stages of small proxies and the target run that they forecast, minutes on two cores.

The sizes were measured over five seeds. All runs train on the King James Bible as bytes; batches are in tokens.
Change a number here, or copy the file: `froude plan search_spaces/quickstart.py` shows what it would take.
"""

import math

import polars as pl

from froude import laws
from froude.config import Model, Optimizer, Run, Schedule, whole_steps
from froude.space import WARMUP, Choice, Grid, LogUniform, Search, Space, Trial, Uniform

BASE_WIDTH, BATCH = 64, 768
DEFAULT_LR, DEFAULT_BETA2 = 2**-7.5, 0.95
SHORT = 170  # steps of stages search and lr_transfer: 131k tokens
TARGET_STEPS = 1000  # of the target run
LONGEST_LAW_WARMUP = 300  # steps: the shortest branch of stage loss_law begins its tail at step 345
TARGET_LOSS = 2.2  # nats per token, to which stage critical_batch counts steps
BATCHES = (192, 384, 768, 1536, 3072)  # of stage critical_batch
OFFSETS = (-1.5, -0.75, 0.0, 0.75, 1.5)  # octaves of learning rate
# Validation windows of an evaluation: what the loss law reads must be as exact as the target run's own loss; elsewhere
# trials are compared with one another on the same windows, and fewer do.
LAW_WINDOWS, COMPARED_WINDOWS = 768, 256


def proxy(
    seed: int, width: int = BASE_WIDTH, *, steps: int = SHORT, batch: int = BATCH, **changes: object
) -> Run:
    """A one-worker run with the study's defaults."""
    tokens = steps * batch
    run = Run(
        model=Model(width=width, base_width=BASE_WIDTH),
        optimizer=Optimizer(lr=DEFAULT_LR, beta2=DEFAULT_BETA2, weight_decay=0.1),
        schedule=Schedule(name="wsd", warmup_tokens=round(0.1 * tokens)),
        parametrization="mup",
        batch=batch,
        tokens=tokens,
        eval_windows=COMPARED_WINDOWS,
        seed=seed,
    )
    return run.replace(changes)


def rounded(value: float, unit: float) -> float:
    """The nearest multiple of the unit."""
    return round(value / unit) * unit


def at_recipe(rows: pl.DataFrame) -> pl.DataFrame:
    """Finished trials of the search at the recipe's batch and schedule, best first."""
    here = (pl.col("stage") == "search") & (pl.col("batch") == BATCH) & (pl.col("schedule") == "wsd")
    return rows.filter(here & (pl.col("status") == "finished")).sort("loss", "run")


def searched_beta2(rows: pl.DataFrame) -> float:
    """beta2 of the search's best trial at the recipe's batch and schedule."""
    best = at_recipe(rows)
    return float(best["beta2"][0]) if best.height else DEFAULT_BETA2


def searched_centre(rows: pl.DataFrame) -> float:
    """log2 of the learning rate about which to look.

    The best quarter's median, drawn halfway to the default: a few trials of one seed place the optimum within an octave
    at best. To a quarter of an octave, so that names stay readable.
    """
    best = at_recipe(rows)
    if not best.height:
        return math.log2(DEFAULT_LR)
    quarter = best.head(max(1, round(best.height / 4)))["lr"].log(2).median()
    assert isinstance(quarter, float)
    return rounded((quarter + math.log2(DEFAULT_LR)) / 2, 0.25)


def searched_warmup(rows: pl.DataFrame) -> int:
    """Steps of the warmup that the recipe will have: the same share of its tokens as in the search's best trial.

    The loss law's trunks warm up as long. With 24 steps instead, the law lay 2% above runs that warmed up for 130, and
    so did its forecasts.
    """
    best = at_recipe(rows)
    share = float(best["warmup_tokens"][0] / best["tokens"][0]) if best.height else 0.1
    return min(LONGEST_LAW_WARMUP, round(share * TARGET_STEPS))


def pooled_rate(rows: pl.DataFrame) -> float:
    """The muP optimum of stage lr_transfer, one for all widths, at the middle of their range."""
    grid = rows.filter((pl.col("stage") == "lr_transfer") & (pl.col("parametrization") == "mup"))
    if not grid.height:
        return DEFAULT_LR
    law = laws.lr_transfer(grid, over="width")
    usable = law.curves.filter(pl.col("status").is_in(["ok", "flat"]))
    if usable.height >= 2:
        middle = math.exp(float(usable["width"].log().mean()))
        rate = float(law.optimum(middle).value)
    else:
        best = grid.filter(pl.col("status") == "finished").sort("loss").group_by("width").first()
        rate = float(2 ** best["lr"].log(2).mean()) if best.height else DEFAULT_LR
    # A resumed sweep must find the same number, whatever the last bits of a least-squares solver on that machine.
    return float(f"{rate:.4g}")


def rate_trial(seed: int, parametrization: str, width: int, log2_lr: float, beta2: float) -> Trial:
    """One point of a curve of loss against learning rate."""
    lr = 2.0**log2_lr
    name = f"{parametrization}-w{width}-lr{lr:.2e}"
    changes = {"optimizer.lr": lr, "optimizer.beta2": beta2, "parametrization": parametrization}
    return Trial(name, (proxy(seed, width, name=name, **changes),))


# SP and muP are the same at the base width: its runs count for both.
CURVES = (("mup", 32), ("mup", 64), ("mup", 128), ("sp", 32), ("sp", 128))


def search(seed: int) -> Search:
    """Stage 1: a recipe, at one width."""
    return Search(
        "search",
        base=proxy(seed),
        axes={
            "optimizer.lr": LogUniform(2**-10, 2**-5),
            WARMUP: Uniform(0.02, 0.25),
            "optimizer.beta2": Uniform(0.9, 0.99),
            "batch": Choice((384, 768, 1536)),
            "schedule.name": Choice(("cosine", "wsd")),
        },
        trials=16,
        startup=8,
        default={
            "optimizer.lr": DEFAULT_LR,
            WARMUP: 0.1,
            "optimizer.beta2": DEFAULT_BETA2,
            "batch": BATCH,
            "schedule.name": "wsd",
        },
        parallel=3,
    )


def lr_transfer(seed: int) -> Grid:
    """Stage 2: learning rate against width, in SP and in muP, about the rate that the search found."""

    def centre(rows: pl.DataFrame, parametrization: str, width: int) -> float:
        # Under SP the optimum falls by about an octave per octave of width.
        return searched_centre(rows) - (math.log2(width / BASE_WIDTH) if parametrization == "sp" else 0.0)

    def trials(rows: pl.DataFrame) -> list[Trial]:
        beta2 = searched_beta2(rows)
        return [
            rate_trial(seed, p, width, centre(rows, p, width) + offset, beta2)
            for p, width in CURVES
            for offset in OFFSETS
        ]

    def extend(rows: pl.DataFrame) -> list[Trial]:
        """Two more rates beyond the edge at which a width's optimum lies, in the joint fit of its parametrization."""
        beta2, more = searched_beta2(rows), []
        for p in ("mup", "sp"):
            grid = rows.filter(pl.col("stage") == "lr_transfer").filter(
                (pl.col("parametrization") == p) | (pl.col("width") == BASE_WIDTH)
            )
            curves = laws.lr_transfer(grid, over="width").curves
            for width in curves.filter(pl.col("status") == "edge")["width"].to_list():
                if (p, width) not in CURVES:  # the base width is extended under muP
                    continue
                middle = centre(rows, p, width)
                finished = grid.filter((pl.col("width") == width) & (pl.col("status") == "finished"))
                best = math.log2(finished.sort("loss")["lr"][0])
                side = math.copysign(1.0, best - middle)
                more += [
                    rate_trial(seed, p, int(width), middle + side * offset, beta2) for offset in (2.25, 3.0)
                ]
        return more

    return Grid("lr_transfer", trials, role="lr_transfer", extend=extend)


def ladder(batch: int, warmup: int) -> list[int]:
    """Steps 24 · 1.35^i of the branches, from the first whose tail begins after the warmup to twice the steps needed.

    Needed are 66 (1 + 475 / batch) steps, with the least steps and the critical batch the largest of five seeds'.
    """
    needed = 2 * 66 * (1 + 475 / batch)
    steps, i = [], 0
    while not steps or steps[-1] < needed:
        step = round(24 * 1.35**i)
        i += 1
        if 0.8 * step >= warmup:
            steps.append(step)
    return steps


def critical_batch(seed: int) -> Grid:
    """Stage 3: steps to one loss against batch, at two learning rates each, of which the quicker counts."""

    def trial(batch: int, log2_lr: float, beta2: float) -> Trial:
        """A trunk with branches; beta2 keeps its half-life in tokens, the rate follows the root of the batch."""
        warmup = max(10, 12288 // batch)
        lr = 2.0**log2_lr * math.sqrt(batch / BATCH)
        name = f"b{batch}-lr{lr:.2e}"
        changes = {
            "optimizer.lr": lr,
            "optimizer.beta2": min(0.99, max(0.9, beta2 ** (batch / BATCH))),
            "schedule.warmup_tokens": warmup * batch,
        }
        steps = ladder(batch, warmup)
        runs = tuple(proxy(seed, steps=n, batch=batch, name=f"{name}-n{n}", **changes) for n in steps)
        return Trial(name, runs, stop_loss=TARGET_LOSS)

    def trials(rows: pl.DataFrame) -> list[Trial]:
        log2_lr, beta2 = math.log2(pooled_rate(rows)), searched_beta2(rows)
        return [trial(batch, log2_lr + octave, beta2) for batch in BATCHES for octave in (0, 1)]

    return Grid("critical_batch", trials, role="critical_batch", after=("search", "lr_transfer"))


def loss_law(seed: int) -> Grid:
    """Stage 4: sizes and horizons, the horizons as branches off one trunk per size."""

    def trials(rows: pl.DataFrame) -> list[Trial]:
        changes = {
            "optimizer.lr": pooled_rate(rows),
            "optimizer.beta2": searched_beta2(rows),
            "schedule.warmup_tokens": searched_warmup(rows) * BATCH,
            "eval_windows": LAW_WINDOWS,
        }
        found = []
        for width in (32, 48, 64, 96):
            name = f"law-w{width}"
            runs = (proxy(seed, width, steps=n, name=f"{name}-n{n}", **changes) for n in (432, 648, 972))
            found.append(Trial(name, tuple(runs)))
        return found

    return Grid("loss_law", trials, role="loss_law", after=("search", "lr_transfer"))


def space(seed: int = 0) -> Space:
    """The study; another seed changes initialisation, order of data and search of every run."""
    target = proxy(
        seed,
        160,
        steps=TARGET_STEPS,
        name="large",
        slots=6,  # two windows each, for one, two or three workers; with twelve of one a step took up to a third longer
        reduction="exact",
        slot_schedule="block",  # for so small a model and slots the number of messages counts, not their size
        workers=(1, 3),
        eval_windows=LAW_WINDOWS,
        **{"schedule.warmup_tokens": whole_steps(0.1 * TARGET_STEPS * BATCH, BATCH)},
    )
    return Space(
        "quickstart", seed, (search(seed), lr_transfer(seed), critical_batch(seed), loss_law(seed)), target
    )
