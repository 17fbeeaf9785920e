"""The search space of this study: every stage that a promotion wants, of models that train in a second.

Widths are 8 to 20, the text is the King James Bible as bytes, batches are 96 tokens. So small a study has few files and
a fit of every law; what the gate refuses of it is overridden, with reasons.
"""

from __future__ import annotations

import polars as pl

from froude.config import Model, Run
from froude.space import WARMUP, Choice, Grid, LogUniform, Search, Space, Trial

BATCH, STEPS, LR = 96, 60, 2**-5
OCTAVES = (-2.0, -1.0, 0.0, 1.0, 2.0)
TOO_HIGH = {"optimizer.lr": 2.0**7, "optimizer.clip": 1e6}  # a run that diverges


def proxy(seed: int, width: int = 16, *, steps: int = STEPS, batch: int = BATCH, **changes: object) -> Run:
    run = Run(
        model=Model(width=width, depth=1, head_dim=4, context=16, base_width=16),
        schedule={"name": "wsd", "warmup_tokens": 8 * batch},
        batch=batch,
        tokens=steps * batch,
        eval_windows=256,
        norms_every=20,
        seed=seed,
    )
    return run.replace({"optimizer.lr": LR, **changes})


def single(run: Run, name: str) -> Trial:
    return Trial(name, (run.replace(name=name),))


def search(seed: int) -> Search:
    return Search(
        "recipe",
        base=proxy(seed),
        axes={
            "optimizer.lr": LogUniform(2**-8, 2**-3),
            WARMUP: Choice((0.1, 0.2)),
            "schedule.name": Choice(("wsd", "cosine")),
        },
        trials=4,
        startup=2,
        default={"optimizer.lr": LR, WARMUP: 0.1, "schedule.name": "wsd"},
    )


def searched(rows: pl.DataFrame) -> float:
    """The rate about which to look: the default, or an octave from it towards the search's best."""
    best = rows.filter((pl.col("stage") == "recipe") & (pl.col("status") == "finished")).sort("loss")
    rate = float(best["lr"][0]) if best.height else LR
    return LR if LR / 2 < rate < LR * 2 else LR * 2 if rate > LR else LR / 2


def lr_transfer(seed: int) -> Grid:
    def trials(rows: pl.DataFrame) -> list[Trial]:
        middle, found = searched(rows), []
        for rules, width in (("mup", 8), ("mup", 16), ("sp", 8)):
            for octave in OCTAVES:
                run = proxy(seed, width, parametrization=rules, **{"optimizer.lr": middle * 2**octave})
                found.append(single(run, f"{rules}-w{width}-o{octave:g}"))
        for width in (8, 16):
            run = proxy(seed + 1, width, **{"optimizer.lr": middle})
            found.append(single(run, f"mup-w{width}-o0-again"))
        return found

    def extend(rows: pl.DataFrame) -> list[Trial]:
        return [single(proxy(seed, 8, **TOO_HIGH), "mup-w8-too-high")]

    return Grid("rates", trials, role="lr_transfer", extend=extend)


def critical_batch(seed: int) -> Grid:
    def trials(rows: pl.DataFrame) -> list[Trial]:
        found = []
        for batch in (96, 192, 384):
            lr = {"optimizer.lr": LR * (batch / BATCH) ** 0.5}
            steps = [round(24 * 1.35**i) for i in range(7)]
            runs = (proxy(seed, steps=n, batch=batch, name=f"b{batch}-n{n}", **lr) for n in steps)
            found.append(Trial(f"b{batch}", tuple(runs), stop_loss=2.6))
        return found

    return Grid("batches", trials, role="critical_batch", after=())


def loss_law(seed: int) -> Grid:
    def trials(rows: pl.DataFrame) -> list[Trial]:
        found = []
        for width, again in ((8, 0), (12, 0), (16, 0), (16, 1)):
            name = f"law-w{width}-s{again}"
            runs = (proxy(seed + again, width, steps=n, name=f"{name}-n{n}") for n in (60, 100, 160))
            found.append(Trial(name, tuple(runs)))
        return found

    return Grid("law", trials, role="loss_law", after=())


def space(seed: int = 0) -> Space:
    target = proxy(seed, 20, steps=240).replace(
        name="large",
        slots=6,
        reduction="exact",
        workers=(1, 2),
        checkpoint_every=40,
        keep_checkpoints=1,
        eval_every=60,
    )
    return Space(
        "small", seed, (search(seed), lr_transfer(seed), critical_batch(seed), loss_law(seed)), target
    )
