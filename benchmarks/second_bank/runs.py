"""What the second bank trains on each corpus: proxies of two ladders with their rates, and larger runs to forecast.

Designed after the first bank's look (benchmarks/bank.md): other corpora, 2.7 times its batch, four times its context.
A first set of proxies, of the package's own model, was trained and looked at (plain-proxies.parquet, docs/log.md): from
width 64 on they began to copy from their context, at 1,000 to 2,800 steps, earlier or later by seed. No larger run was
trained to them. These have a model that copies from the start (smeared.py), and horizons after it has begun to. All
numbers were fixed before the first of these proxies was trained, but for rates.
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
CENTRE = 2**-7.25  # about which rates are looked for
OFFSETS = (-1.5, -0.75, 0.0, 0.75, 1.5)  # octaves
RATE_WIDTHS, RATE_STEPS = (48, 96), 1000
HORIZONS = (1000, 1400, 2000, 2800)  # steps
WIDTHS, SEEDS = (48, 64, 80, 96, 128), (0, 1)
SHAPES = ((48, 2), (64, 3), (80, 4), (96, 5))  # width, depth
#: The larger runs, by name: width, depth, steps, seeds. `wide` is the one with a floor of noise.
LARGER = {
    "far": (384, 3, 7200, (0,)),
    "deep": (224, 6, 5000, (0,)),
    "wide": (320, 3, 5600, (0, 1, 2)),
    "middle": (208, 3, 4800, (0,)),
}
#: What is begun first: what takes longest, but what a bank can do without comes last.
FIRST = ("far-s0", "deep-s0", "wide-s0", "wide-s1")
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

    @property
    def turn(self) -> tuple[int, float]:
        """What to begin first has the least."""
        order = {"rates": 0, "trunks": 2, "deep": 2}
        return order.get(self.stage, 1 if self.trial in FIRST else 3), -self.work


def run_of(
    corpus: str, seed: int, width: int, steps: int, lr: float, *, depth: int = DEPTH, name: str, texts: Path
) -> Run:
    """One run of the bank; `lr` is the peak rate of the base width under muP."""
    return Run(
        name=name,
        model=Model(factory="smeared:Smeared", width=width, depth=depth, base_width=64, context=CONTEXT),
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
    """Rates over two widths."""
    found = []
    for width in RATE_WIDTHS:
        for offset in OFFSETS:
            lr = float(f"{CENTRE * 2**offset:.4g}")
            name = f"rate-w{width}-lr{lr:.2e}"
            run = run_of(corpus, 0, width, RATE_STEPS, lr, name=name, texts=texts)
            found.append(Job(corpus, "rates", name, (run,)))
    return found


def ladders(corpus: str, texts: Path, rows: Rows) -> list[Job]:
    """The ladder in width on two seeds, that in width and depth on one."""
    lr, found = best_rate(rows), []
    sizes = [("trunks", width, DEPTH, seed) for width in WIDTHS for seed in SEEDS]
    sizes += [("deep", width, depth, 0) for width, depth in SHAPES if depth != DEPTH]
    for stage, width, depth, seed in sizes:
        name = f"{stage}-w{width}-d{depth}-s{seed}"
        of = ((n, f"{name}-n{n}") for n in HORIZONS)
        runs = (run_of(corpus, seed, width, n, lr, depth=depth, name=each, texts=texts) for n, each in of)
        found.append(Job(corpus, stage, name, tuple(runs)))
    return found


def larger(corpus: str, texts: Path, rows: Rows) -> list[Job]:
    """The runs to forecast, at the proxies' rate."""
    lr, found = best_rate(rows), []
    for name, (width, depth, steps, seeds) in LARGER.items():
        for seed in seeds:
            called = f"{name}-s{seed}"
            run = run_of(corpus, seed, width, steps, lr, depth=depth, name=called, texts=texts)
            found.append(Job(corpus, "larger", called, (run,)))
    return found


def best_rate(rows: Rows) -> float:
    """The best rate: on average over widths, the vertex of a parabola through the losses of the rates tried."""
    here = [row for row in rows if row["stage"] == "rates" and row["status"] == "finished"]
    vertices = []
    for width in RATE_WIDTHS:
        own = [row for row in here if row["width"] == width]
        x, y = (np.array([row[name] for row in own]) for name in ("lr", "loss"))
        bend, slope, _ = np.polyfit(np.log(x), y, 2)
        vertex = -slope / (2 * bend) if bend > 0 else math.log(x[y.argmin()])
        vertices.append(min(max(vertex, math.log(x.min())), math.log(x.max())))
    return float(f"{math.exp(float(np.mean(vertices))):.4g}")
