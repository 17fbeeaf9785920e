"""What the bank trains on each corpus: proxies of two ladders with their rates, and larger runs to forecast.

Proxies know nothing of the larger runs' losses; the larger runs' rate comes from the proxies' rows alone. All numbers
here were fixed before the first proxy was trained, but for those read from rows.
"""

from __future__ import annotations

import math
from pathlib import Path

import polars as pl
from corpora import text

from froude import laws
from froude.config import Data, Model, Optimizer, Run, Schedule
from froude.space import Grid, Space, Trial

FOLDER = Path(__file__).resolve().parents[2] / "runs" / "bank"
BATCH = 1536  # tokens
WARMUP = 64 * BATCH  # of every run: a law of runs that warm up alike
CENTRE = 2**-8.0  # about which rates are looked for
OFFSETS = (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5)  # octaves
SHORT, LONG = 480, 1920  # steps of the two horizons at which rates are looked for
HORIZONS = (240, 480, 960, 1920)  # steps
WIDTHS = (32, 48, 64, 96)
SHAPES = ((32, 2), (48, 3), (64, 4), (80, 5))  # width, depth
MOST_DRIFT = -0.5  # an exponent of the rate in the horizon below this is taken for noise


def run_of(corpus: str, seed: int, width: int, steps: int, lr: float, *, depth: int = 2, name: str) -> Run:
    """One run of the bank; `lr` is the peak rate of the base width under muP."""
    return Run(
        name=name,
        model=Model(width=width, depth=depth, base_width=64),
        data=Data(source="froude.train.data.text:TextFile", path=str(text(corpus, FOLDER))),
        optimizer=Optimizer(lr=lr, beta2=0.95, weight_decay=0.1),
        schedule=Schedule(name="wsd", warmup_tokens=WARMUP),
        parametrization="mup",
        batch=BATCH,
        tokens=steps * BATCH,
        eval_windows=1536,
        seed=seed,
    )


def best_rate(rows: pl.DataFrame, steps: int) -> float:
    """The best rate at one horizon, over all widths; the centre where nothing has run yet."""
    here = rows.filter(
        pl.col("stage").is_in(["rates", "horizon_rates"]) & (pl.col("tokens") == steps * BATCH)
    )
    if not here.height:
        return CENTRE
    if here["width"].n_unique() > 1:
        return float(laws.lr_transfer(here, over="width").optimum(64).value)
    return float(laws.lr_curve(here).lr)


def rate_at(rows: pl.DataFrame, steps: float) -> float:
    """The rate for a horizon: a power of it through the best rates at the two that were searched."""
    short, long = best_rate(rows, SHORT), best_rate(rows, LONG)
    exponent = math.log(long / short) / math.log(LONG / SHORT)
    exponent = min(max(exponent, MOST_DRIFT), 0.0)
    return float(f"{short * (steps / SHORT) ** exponent:.4g}")


def stages(corpus: str, seed: int) -> tuple[Grid, ...]:
    """Rates over widths, rates at four times the horizon, a ladder in width, a ladder in width and depth."""

    def rate(width: int, steps: int, offset: float, of: int) -> Trial:
        name = f"rate-w{width}-n{steps}-lr{CENTRE * 2**offset:.2e}-s{of}"
        return Trial(name, (run_of(corpus, of, width, steps, CENTRE * 2**offset, name=name),))

    def rates(rows: pl.DataFrame) -> list[Trial]:
        return [
            rate(width, SHORT, offset, of)
            for width in (32, 64, 96)
            for offset in OFFSETS
            for of in ((seed, seed + 1) if abs(offset) <= 0.5 else (seed,))
        ]

    def horizon_rates(rows: pl.DataFrame) -> list[Trial]:
        return [rate(64, LONG, offset, seed) for offset in (-2.0, -1.25, -0.5, 0.25, 1.0)]

    def trunks(rows: pl.DataFrame) -> list[Trial]:
        found, lr = [], rate_at(rows, HORIZONS[-1])
        for width in WIDTHS:
            for of in (seed, seed + 1):
                name = f"trunk-w{width}-s{of}"
                runs = tuple(run_of(corpus, of, width, n, lr, name=f"{name}-n{n}") for n in HORIZONS)
                found.append(Trial(name, runs))
        return found

    def deep(rows: pl.DataFrame) -> list[Trial]:
        found = []
        for width, depth in SHAPES:
            for steps in HORIZONS[1:]:
                name = f"deep-w{width}-d{depth}-n{steps}"
                run = run_of(corpus, seed, width, steps, rate_at(rows, steps), depth=depth, name=name)
                found.append(Trial(name, (run,)))
        return found

    return (
        Grid("rates", rates, role="lr_transfer"),
        Grid("horizon_rates", horizon_rates, role="search", after=()),
        Grid("trunks", trunks, role="loss_law", after=("rates", "horizon_rates")),
        Grid("deep", deep, role="loss_law", after=("rates", "horizon_rates")),
    )


#: The larger runs, by name: width, depth, steps, seeds. `wide` is the one with a floor of noise.
LARGER = {
    "middle": (128, 2, 3840, (0,)),
    "wide": (208, 2, 5760, (0, 1, 2)),
    "deep": (160, 6, 4320, (0,)),
    "far": (320, 2, 10080, (0,)),
}


def proxies(corpus: str, seed: int) -> Space:
    """The study of the proxies; its target is the run `wide`."""
    width, depth, steps, _ = LARGER["wide"]
    target = run_of(corpus, seed, width, steps, CENTRE, depth=depth, name="wide")
    return Space(f"bank-{corpus}", seed, stages(corpus, seed), target)
