"""What the second bank trains on each corpus: proxies of two ladders with their rates, and larger runs to forecast.

Designed after the first bank's look (benchmarks/bank.md): other corpora, 2.7 times its batch, four times its context,
ladders of four and five widths. All numbers were fixed before the first proxy was trained, but for rates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from froude.config import Data, Model, Optimizer, Run, Schedule

CORPORA = ("go", "rust", "c", "manuals")
BATCH, CONTEXT, DEPTH = 4096, 256, 3  # tokens, tokens, layers
WARMUP = 64 * BATCH  # of every run: a law of runs that warm up alike
CENTRE = 2**-6.75  # about which rates are looked for
OFFSETS = (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5)  # octaves
LONG_OFFSETS = (-1.5, -0.75, 0.0, 0.75)
RATE_WIDTHS, LONG_WIDTH = (48, 96), 64
SHORT, LONG = 700, 2800  # steps of the two horizons at which rates are looked for
HORIZONS = (350, 700, 1400, 2800)  # steps
WIDTHS, SEEDS = (32, 48, 64, 96, 128), (0, 1)
SHAPES = ((32, 2), (48, 3), (64, 4), (96, 5))  # width, depth
MOST_DRIFT = -0.5  # an exponent of the rate in the horizon below this is taken for noise
#: The larger runs, by name: width, depth, steps, seeds. `wide` is the one with a floor of noise.
LARGER = {
    "far": (448, 3, 7200, (0,)),
    "deep": (224, 6, 5000, (0,)),
    "wide": (320, 3, 5600, (0, 1, 2)),
    "middle": (208, 3, 4800, (0,)),
}
Rows = Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class Job:
    """A trial: one run, or branches off one trunk, by tokens."""

    corpus: str
    stage: str
    trial: str
    runs: tuple[Run, ...]

    @property
    def work(self) -> float:
        """Steps times layers: how long it takes while launching kernels is what takes long."""
        return self.runs[-1].steps * (2.0 + self.runs[-1].model.depth)


def run_of(
    corpus: str, seed: int, width: int, steps: int, lr: float, *, depth: int = DEPTH, name: str, texts: Path
) -> Run:
    """One run of the bank; `lr` is the peak rate of the base width under muP."""
    return Run(
        name=name,
        model=Model(width=width, depth=depth, base_width=64, context=CONTEXT),
        data=Data(source="froude.train.data.text:TextFile", path=str(texts / f"{corpus}.txt")),
        optimizer=Optimizer(lr=lr, beta2=0.95, weight_decay=0.1, implementation="fused"),
        schedule=Schedule(name="wsd", warmup_tokens=WARMUP),
        parametrization="mup",
        precision="bf16",
        batch=BATCH,
        tokens=steps * BATCH,
        eval_windows=1536,
        seed=seed,
    )


def rates(corpus: str, texts: Path) -> list[Job]:
    """Rates over two widths at the shorter horizon, and over one width at the longer."""
    found = []
    for stage, widths, steps, offsets in (
        ("rates", RATE_WIDTHS, SHORT, OFFSETS),
        ("horizon_rates", (LONG_WIDTH,), LONG, LONG_OFFSETS),
    ):
        for width in widths:
            for offset in offsets:
                lr = float(f"{CENTRE * 2**offset:.4g}")
                name = f"rate-w{width}-n{steps}-lr{lr:.2e}"
                found.append(
                    Job(corpus, stage, name, (run_of(corpus, 0, width, steps, lr, name=name, texts=texts),))
                )
    return found


def ladders(corpus: str, texts: Path, rows: Rows) -> list[Job]:
    """The ladder in width on two seeds, that in width and depth on one, at the rate of the longest horizon."""
    lr, found = rate_at(rows, HORIZONS[-1]), []
    sizes = [("trunks", width, DEPTH, seed) for width in WIDTHS for seed in SEEDS]
    sizes += [("deep", width, depth, 0) for width, depth in SHAPES if depth != DEPTH]
    for stage, width, depth, seed in sizes:
        name = f"{stage}-w{width}-d{depth}-s{seed}"
        of = ((n, f"{name}-n{n}") for n in HORIZONS)
        runs = (run_of(corpus, seed, width, n, lr, depth=depth, name=each, texts=texts) for n, each in of)
        found.append(Job(corpus, stage, name, tuple(runs)))
    return found


def larger(corpus: str, texts: Path, rows: Rows) -> list[Job]:
    """The runs to forecast; their rate is that of the proxies for their horizon."""
    found, kept = [], list(rows)
    for name, (width, depth, steps, seeds) in LARGER.items():
        for seed in seeds:
            called, lr = f"{name}-s{seed}", rate_at(kept, steps)
            run = run_of(corpus, seed, width, steps, lr, depth=depth, name=called, texts=texts)
            found.append(Job(corpus, "larger", called, (run,)))
    return found


def best_rate(rows: Rows, steps: int) -> float:
    """The best rate at one horizon: on average over widths, the vertex of a parabola through the five lowest losses."""
    here = [row for row in rows if row["stage"].endswith("rates") and row["tokens"] == steps * BATCH]
    vertices = []
    for width in sorted({row["width"] for row in here}):
        own = [row for row in here if row["width"] == width and row["status"] == "finished"]
        lowest = sorted(own, key=lambda row: row["loss"])[:5]
        x, y = (np.array([row[name] for row in lowest]) for name in ("lr", "loss"))
        bend, slope, _ = np.polyfit(np.log(x), y, 2)
        vertex = -slope / (2 * bend) if bend > 0 else math.log(x[0])
        vertices.append(min(max(vertex, math.log(x.min())), math.log(x.max())))
    return math.exp(float(np.mean(vertices)))


def rate_at(rows: Rows, steps: float) -> float:
    """The rate for a horizon: a power of it through the best rates at the two that were searched."""
    kept = list(rows)
    short, long = best_rate(kept, SHORT), best_rate(kept, LONG)
    exponent = math.log(long / short) / math.log(LONG / SHORT)
    exponent = min(max(exponent, MOST_DRIFT), 0.0)
    return float(f"{short * (steps / SHORT) ** exponent:.4g}")
