"""The quickstart's loop with Muon: its rate and that of AdamW, which takes what is no matrix, are swept apart.

A search of both rates and the warmup, Muon's rate over three widths under muP, steps to one loss over the batch, and a
ladder of four sizes; all on the King James Bible as bytes, batches in tokens. The loop takes minutes on two cores:

    froude quickstart --space search_spaces/muon.py --out runs/muon
"""

import math

import polars as pl

from froude import laws
from froude.config import Model, Optimizer, Run, Schedule, whole_steps
from froude.space import WARMUP, Grid, LogUniform, Search, Space, Trial, Uniform

BASE_WIDTH, BATCH = 64, 768
CENTRE, REST = 2**-5.0, 2**-7.5  # peak rates about which to look
OFFSETS = (-1.5, -0.75, 0.0, 0.75, 1.5)  # octaves
WIDTHS, SIZES = (32, 64, 128), (32, 48, 64, 96)
SHORT, TARGET_STEPS = 170, 1000  # steps of stages search and lr_transfer, and of the target run
HORIZONS = (432, 648, 972)  # steps of the ladder's branches
LONGEST_WARMUP = 300  # steps: the shortest branch begins its tail at step 345
TARGET_LOSS = 2.1  # nats per token, to which stage critical_batch counts steps
LADDER = tuple(round(24 * 1.35**i) for i in range(10))  # steps of its branches
MOST_TOKENS = 600 * BATCH  # of one of them
LAW_WINDOWS, COMPARED_WINDOWS = 768, 256  # of an evaluation


def proxy(
    seed: int, width: int = BASE_WIDTH, *, steps: int = SHORT, batch: int = BATCH, **changes: object
) -> Run:
    """A run of one worker."""
    tokens = steps * batch
    return Run(
        model=Model(width=width, base_width=BASE_WIDTH),
        optimizer=Optimizer(name="muon", lr=CENTRE, rest={"lr": REST}),
        schedule=Schedule(name="wsd", warmup_tokens=round(0.1 * tokens)),
        parametrization="mup",
        batch=batch,
        tokens=tokens,
        eval_windows=COMPARED_WINDOWS,
        seed=seed,
    ).replace(changes)


def searched(rows: pl.DataFrame) -> dict[str, float]:
    """Rates and the warmup's share of the search's best trial."""
    done = rows.filter((pl.col("stage") == "search") & (pl.col("status") == "finished")).sort("loss", "run")
    if not done.height:
        return {"lr": CENTRE, "rest": REST, "warmup": 0.1}
    best = done.row(0, named=True)
    return {"lr": best["lr"], "rest": best["rest_lr"], "warmup": best["warmup_tokens"] / best["tokens"]}


def search(seed: int) -> Search:
    """Stage 1: both rates and the warmup, at one width."""
    return Search(
        "search",
        base=proxy(seed),
        axes={
            "optimizer.lr": LogUniform(2**-7, 2**-3),
            "optimizer.rest.lr": LogUniform(2**-10, 2**-5),
            WARMUP: Uniform(0.02, 0.25),
        },
        trials=14,
        startup=7,
        default={"optimizer.lr": CENTRE, "optimizer.rest.lr": REST, WARMUP: 0.1},
        parallel=3,
    )


def lr_transfer(seed: int) -> Grid:
    """Stage 2: the matrices' rate against width, under muP and, as its control, SP; the rest's is the search's."""

    def trials(rows: pl.DataFrame) -> list[Trial]:
        found = searched(rows)
        # A few trials place the optimum within an octave at best: halfway to the default, so that names stay readable.
        centre = round((math.log2(found["lr"]) + math.log2(CENTRE)) / 2 * 4) / 4
        made = []
        for parametrization, widths in (("mup", WIDTHS), ("sp", (32, 128))):
            for width in widths:
                for offset in OFFSETS:
                    lr = 2.0 ** (centre + offset)
                    name = f"{parametrization}-w{width}-lr{lr:.2e}"
                    changes = {"optimizer.lr": lr, "optimizer.rest.lr": found["rest"], "name": name}
                    made.append(
                        Trial(name, (proxy(seed, width, parametrization=parametrization, **changes),))
                    )
        return made

    return Grid("lr_transfer", trials, role="lr_transfer", after=("search",))


def pooled_rate(rows: pl.DataFrame) -> float:
    """The optimum of all widths under muP, at the middle of their range."""
    grid = rows.filter((pl.col("stage") == "lr_transfer") & (pl.col("parametrization") == "mup"))
    if not grid.height:
        return CENTRE
    # A resumed sweep must find the same number, whatever the last bits of a least-squares solver on that machine.
    return float(f"{laws.lr_transfer(grid, over='width').optimum(BASE_WIDTH).value:.4g}")


def critical_batch(seed: int) -> Grid:
    """Stage 3: steps to one loss against batch, at two rates each, of which the quicker counts."""

    def trials(rows: pl.DataFrame) -> list[Trial]:
        rate, rest, made = pooled_rate(rows), searched(rows)["rest"], []
        for batch in (192, 384, 768, 1536, 3072):
            root = math.sqrt(batch / BATCH)
            warmup = max(10, 12288 // batch)
            for octave in (-1, 0):
                lr = rate * root * 2.0**octave
                name = f"b{batch}-lr{lr:.2e}"
                changes = {
                    "optimizer.lr": lr,
                    "optimizer.rest.lr": rest * root,
                    "schedule.warmup_tokens": warmup * batch,
                }
                steps = [n for n in LADDER if 0.8 * n >= warmup and n * batch <= MOST_TOKENS]
                runs = tuple(proxy(seed, steps=n, batch=batch, name=f"{name}-n{n}", **changes) for n in steps)
                made.append(Trial(name, runs, stop_loss=TARGET_LOSS))
        return made

    return Grid("critical_batch", trials, role="critical_batch", after=("search", "lr_transfer"))


def loss_law(seed: int) -> Grid:
    """Stage 4: sizes and horizons, the horizons as branches off one trunk per size."""

    def trials(rows: pl.DataFrame) -> list[Trial]:
        found = searched(rows)
        changes = {
            "optimizer.lr": pooled_rate(rows),
            "optimizer.rest.lr": found["rest"],
            "schedule.warmup_tokens": min(LONGEST_WARMUP, round(found["warmup"] * TARGET_STEPS)) * BATCH,
            "eval_windows": LAW_WINDOWS,
        }
        return [
            Trial(
                f"law-w{width}",
                tuple(proxy(seed, width, steps=n, name=f"law-w{width}-n{n}", **changes) for n in HORIZONS),
            )
            for width in SIZES
        ]

    return Grid("loss_law", trials, role="loss_law", after=("search", "lr_transfer"))


def space(seed: int = 0) -> Space:
    """The study and its target, which one to three workers can train."""
    target = proxy(
        seed,
        160,
        steps=TARGET_STEPS,
        name="large",
        slots=6,
        reduction="exact",
        slot_schedule="block",
        workers=(1, 3),
        eval_windows=LAW_WINDOWS,
        **{"schedule.warmup_tokens": whole_steps(0.1 * TARGET_STEPS * BATCH, BATCH)},
    )
    return Space(
        "muon", seed, (search(seed), lr_transfer(seed), critical_batch(seed), loss_law(seed)), target
    )
