"""What the third bank trains on each corpus: proxies with their rates, and larger runs to forecast.

Eight corpora, as coverage is decided by how many of them there are (docs/log.md, 2026-11-27). Half of them have the
package's own model, as in the first bank, half one whose heads know the token before, as in the second. Half have a
ladder in width and a larger run far beyond it, half also one in width and depth, and a larger run that is deeper. Which
is which was drawn by the hashes of their names. All numbers were fixed before the first proxy was trained, but for
rates, which are read from proxies. Time allowed no more corpora: a plan of twelve was given up after some twenty
trials, and of one of ten the last two by those hashes were left out while the first was trained (their proxies were
trained all the same, and are not kept). Nobody looked at a loss.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from packages import PACKAGES

from froude.config import Compute, Data, Model, Optimizer, Run, Schedule

TEXTS = Path("runs/third_bank/texts")
CORPORA = tuple(sorted(PACKAGES, key=lambda name: hashlib.sha256(name.encode()).digest()))
SMEARED = CORPORA[1::2]
DEEP = tuple(name for place, name in enumerate(CORPORA) if place % 4 in (1, 2))
BATCH, CONTEXT, DEPTH = 1536, 64, 2  # tokens, tokens, layers
HEAD = 8  # the size of a head; widths are its multiples
WARMUP = 64 * BATCH  # of every run: a law of runs that warm up alike
CENTRE = 2**-7.25  # about which rates are looked for
OFFSETS = (-1.5, -0.75, 0.0, 0.75, 1.5)  # octaves
RATE_WIDTHS, RATE_STEPS = (32, 64), 720
HORIZONS = (720, 1000, 1400, 2000)  # steps
WIDTHS, SEEDS = (32, 40, 48, 56, 64), (0, 1)
SHAPES = ((48, 3), (64, 4))  # width, depth; with the width of 32 they are the ladder in width and depth
#: The larger runs, by name: width, depth, steps. `wide` of the corpora in FLOOR is trained on three seeds.
LARGER = {"wide": (144, 2, 4320), "far": (200, 2, 5760), "deep": (144, 4, 4320)}
FLOOR = CORPORA[:2]
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
        """FLOPs, as 6·params·tokens with params of the blocks alone."""
        model = self.runs[-1].model
        return 72.0 * model.width**2 * model.depth * self.runs[-1].tokens


def run_of(
    corpus: str, seed: int, width: int, steps: int, lr: float, *, depth: int = DEPTH, name: str
) -> Run:
    """One run of the bank; `lr` is the peak rate of the base width under muP."""
    factory = {"factory": "smeared:Smeared"} if corpus in SMEARED else {}
    return Run(
        name=name,
        model=Model(width=width, depth=depth, head_dim=HEAD, base_width=64, context=CONTEXT, **factory),
        data=Data(source="froude.train.data.text:TextFile", path=str(TEXTS / f"{corpus}.txt")),
        optimizer=Optimizer(lr=lr, beta2=0.95, weight_decay=0.1),
        schedule=Schedule(name="wsd", warmup_tokens=WARMUP),
        compute=Compute(kernels="fast", compile="blocks"),
        parametrization="mup",
        batch=BATCH,
        tokens=steps * BATCH,
        eval_windows=1536,
        seed=seed,
    )


def rates(corpus: str) -> list[Job]:
    """Rates over two widths, of the shortest horizon."""
    found = []
    for width in RATE_WIDTHS:
        for offset in OFFSETS:
            lr = float(f"{CENTRE * 2**offset:.4g}")
            name = f"rate-w{width}-lr{lr:.2e}"
            found.append(Job(corpus, "rates", name, (run_of(corpus, 0, width, RATE_STEPS, lr, name=name),)))
    return found


def ladders(corpus: str, rows: Rows) -> list[Job]:
    """The ladder in width on two seeds, and on half of the corpora what one in width and depth has besides."""
    lr, found = best_rate(rows), []
    sizes = [("trunks", width, DEPTH, seed) for width in WIDTHS for seed in SEEDS]
    sizes += [("deep", width, depth, 0) for width, depth in SHAPES if corpus in DEEP]
    for stage, width, depth, seed in sizes:
        name = f"{stage}-w{width}-d{depth}-s{seed}"
        runs = (run_of(corpus, seed, width, n, lr, depth=depth, name=f"{name}-n{n}") for n in HORIZONS)
        found.append(Job(corpus, stage, name, tuple(runs)))
    return found


def larger(corpus: str, rows: Rows) -> list[Job]:
    """The runs to forecast, at the proxies' rate; seeds beyond the first come last."""
    lr, found = best_rate(rows), []
    named = [("wide", 0), ("deep" if corpus in DEEP else "far", 0)]
    named += [("wide", seed) for seed in (1, 2) if corpus in FLOOR]
    for size, seed in named:
        width, depth, steps = LARGER[size]
        run = run_of(corpus, seed, width, steps, lr, depth=depth, name=f"{size}-s{seed}")
        found.append(Job(corpus, "larger", run.name, (run,)))
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
