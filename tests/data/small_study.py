"""A small study with known laws, written the way a sweep writes one, for tests of what reads studies."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from froude.config import Run
from froude.space import Grid, Space, Trial
from froude.store import Location
from froude.sweep import trial_store

TARGET = Run(
    name="large",
    batch=768,
    slots=12,
    tokens=768 * 1300,
    workers=(1, 3),
    schedule={"warmup_tokens": 768 * 4},
    model={"width": 192},
)
BEST_LR = 2**-7.5
B_CRIT, S_MIN, GOAL = 340.0, 55.0, 2.2
EXPONENT, FLOOR = 0.35, 0.9


def law(params: float, tokens: float) -> float:
    return FLOOR + 12 / params**EXPONENT + 30 / tokens**EXPONENT


def params(run: Run) -> int:
    return 26 * run.model.width**2


def row(run: Run, loss: float | None, trial: str = "") -> dict[str, Any]:
    """A row of `trials()`, with its Run under the key "made"."""
    from froude.train.rows import describe

    return {
        "made": run,
        **describe(run),
        "status": "finished" if loss is not None else "diverged",
        "params": params(run),
        "params_with_embeddings": params(run) + 512 * run.model.width,
        "loss": loss,
        "flops": 6.0 * params(run) * run.tokens,
        "seconds": 1.5,
        "attempts": 1,
        "trial": trial or run.name,
        "workers": 1,
        "leaked": 0.0,
    }


def base(stage: str, **changes: Any) -> Run:
    return TARGET.replace(
        {"workers": 1, "stage": stage, "model.width": 64, "tokens": 768 * 170, **changes}, name="x"
    )


def search() -> list[dict[str, Any]]:
    rows = []
    for i, (octaves, batch, schedule) in enumerate(
        [
            (0, 768, "wsd"),
            (0.5, 768, "wsd"),
            (-1, 768, "wsd"),
            (0, 384 * 2, "cosine"),
            (1, 1536, "wsd"),
            (0.2, 1536, "wsd"),
        ]
    ):
        changes = {"optimizer.lr": BEST_LR * 2**octaves, "batch": batch, "schedule.name": schedule}
        changes |= {
            "optimizer.beta2": 0.93 + 0.01 * i,
            "schedule.warmup_tokens": batch * (10 + i),
            "tokens": 1536 * 85,
        }
        run = base("recipe", **changes).replace(name=f"search-{i}")
        rows.append(
            row(run, 1.6 + 0.04 * octaves**2 + 0.07 * (schedule == "cosine") - 0.02 * (batch == 1536))
        )
    return rows


def transfer(rates: int, noise: np.random.Generator, seeds: int) -> list[dict[str, Any]]:
    """Rates at three widths, and at the middle one for four times as long: the optimum moves with neither under muP."""
    rows = []
    for width, steps in ((32, 170), (64, 170), (128, 170), (64, 680)):
        for parametrization in ("mup", "sp") if width != 64 else ("mup",):
            shift = -math.log2(width / 64) if parametrization == "sp" else 0.0
            for i, seed in ((i, seed) for i in range(rates) for seed in range(seeds)):
                octaves = (i - (rates - 1) / 2) * 3 / (rates - 1)
                changes = {"model.width": width, "optimizer.lr": BEST_LR * 2 ** (octaves + shift)}
                changes |= {"tokens": 768 * steps}
                run = base("transfer", **changes, parametrization=parametrization, seed=seed)
                loss = 1.9 - 0.1 * math.log2(width / 64) + 0.04 * octaves**2 + 0.002 * noise.standard_normal()
                name = f"{parametrization}-w{width}-{i}-s{seed}" + (f"-n{steps}" if steps > 170 else "")
                rows.append(row(run.replace(name=name), loss))
    return rows


def batches() -> list[dict[str, Any]]:
    rows = []
    for batch in (192, 384, 768, 1536, 3072):
        for factor in (1, 2):
            needed = S_MIN * (1 + B_CRIT / batch) * (1.1 if factor == 2 else 1)
            for i in range(9):
                steps = round(40 * 1.35**i)
                lr = BEST_LR * factor * math.sqrt(batch / 768)
                changes = {"batch": batch, "slots": 1, "tokens": batch * steps, "optimizer.lr": lr}
                run = base("batch", **changes, **{"schedule.warmup_tokens": 0}).replace(
                    name=f"b{batch}-x{factor}-{steps}"
                )
                loss = GOAL - 0.5 * math.log(steps / needed)
                rows.append(row(run, loss, trial=f"b{batch}-x{factor}"))
                if loss <= GOAL:
                    break
    return rows


@dataclass(frozen=True)
class Ladder:
    """The proxies of the loss law: their widths, steps, and the relative noise of a loss."""

    widths: Sequence[int] = (32, 48, 64, 96)
    steps: Sequence[int] = (432, 648, 972)
    noise: float = 0.0
    parametrization: str = "mup"

    def rows(self, seeds: int, chance: np.random.Generator) -> list[dict[str, Any]]:
        rows = []
        for width, seed in ((width, seed) for width in self.widths for seed in range(seeds)):
            for steps in self.steps:
                changes = {"model.width": width, "tokens": 768 * steps, "seed": seed}
                changes |= {"parametrization": self.parametrization}
                # At its best rate, or the law's losses would have to be worse.
                if self.parametrization == "sp":
                    changes |= {"optimizer.lr": BEST_LR * 64 / width}
                run = base("law", **changes).replace(name=f"w{width}-{steps}-s{seed}")
                loss = law(params(run), run.tokens) * math.exp(self.noise * chance.standard_normal())
                rows.append(row(run, loss, trial=f"w{width}-s{seed}"))
        return rows


def rows_by_trial(rates: int, seeds: int, ladder: Ladder) -> dict[str, list[dict[str, Any]]]:
    """Every row of the study, by the trial that computed it."""
    found: dict[str, list[dict[str, Any]]] = {}
    chance = np.random.default_rng(0)
    grids = [search(), transfer(rates, chance, seeds), batches(), ladder.rows(seeds, chance)]
    for one in (one for grid in grids for one in grid):
        found.setdefault(one["trial"], []).append(one)
    return found


LADDER = Ladder()
ROLES: dict[str, Any] = {
    "recipe": "search",
    "transfer": "lr_transfer",
    "batch": "critical_batch",
    "law": "loss_law",
}


def make_space(
    seed: int = 0, *, rates: int = 7, seeds: int = 2, target: Run = TARGET, ladder: Ladder = LADDER
) -> Space:
    """The search space that this study is of."""
    stages: dict[str, list[Trial]] = {name: [] for name in ROLES}
    for name, rows in rows_by_trial(rates, seeds, ladder).items():
        stage = rows[0]["stage"]
        goal = GOAL if stage == "batch" else None
        stages[stage].append(Trial(name, tuple(row["made"] for row in rows), stop_loss=goal))
    grids = [Grid(name, lambda _, trials=trials: trials, ROLES[name]) for name, trials in stages.items()]
    return Space("small", seed, tuple(grids), target)


def write_study(
    folder: Path,
    *,
    rates: int = 7,
    seeds: int = 2,
    target: Run = TARGET,
    ladder: Ladder = LADDER,
    change: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda row: row,
    steps: Callable[[dict[str, Any]], list[dict[str, Any]]] = lambda row: [],
) -> Path:
    """Write the study's description and its trials, one part a trial; `change` may change a row, or lose it with None.

    `steps` gives a row's rows of the steps frame.
    """
    place, made = Location.parse(folder), make_space(rates=rates, seeds=seeds, target=target, ladder=ladder)
    meta = {"froude": "study", "schema": 1, "space": made.name, "seed": made.seed}
    meta |= {"stages": made.stage_table(), "target": target.to_dict()}
    assert (place / "study.json").create(json.dumps(meta).encode())
    rows = rows_by_trial(rates, seeds, ladder)
    time = datetime(2025, 3, 1, 11, tzinfo=UTC)
    for trial in (trial for trials in made.planned().values() for trial in trials):
        time += timedelta(seconds=2)
        own = [new for row in rows[trial.name] if (new := change({**row, "time": time}))]
        if not own:
            continue
        for row in own:
            del row["made"]
        trial_store.write(place, trial, trials=own, steps=[step for row in own for step in steps(row)])
    return folder
