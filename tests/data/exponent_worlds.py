"""Trials of `froude.space.Exponents` with losses whose exponents are known."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import polars as pl

from froude import Study
from froude.config import Run
from froude.laws.lr.exponents import KNOBS, settings
from froude.space import Exponents
from froude.sweep import trial_store
from froude.train.rows import describe

BASE = Run(tokens=768 * 256, model={"width": 32})
STAGE = Exponents("exponents", BASE)
HALF_LIFE = 768 * math.log(0.5) / math.log(0.95)
#: True exponents of a world: rate over tokens and batch, timescale over tokens, half-life over batch.
TRUTH = {"lr_tokens": 0.13, "lr_batch": 0.4, "timescale_tokens": -0.5, "half_life_batch": 0.2}


def design() -> pl.DataFrame:
    """The rows of the stage's trials, without losses, in their order."""
    rows = [{**describe(trial.runs[0]), "params": 26_000} for trial in STAGE.planned()]
    return settings(pl.DataFrame(rows, infer_schema_length=None)).with_columns(status=pl.lit("finished"))


def part(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    """The rows of one exponent."""
    base = {
        "batch": 768.0,
        "tokens": float(BASE.tokens),
        "timescale": STAGE.timescale,
        "half_life": HALF_LIFE,
    }
    return rows.filter((pl.col(key) / base[key] - 1).abs() < 1e-6 for key in KNOBS[name].held if key in base)


def losses(rows: pl.DataFrame, rng: np.random.Generator, noise: float = 0.003) -> pl.DataFrame:
    """Curves like those of published sweeps, steeper above the best rate; a floor a seed; the centres are random."""
    lr, tokens, batch, timescale, half_life, seed = (
        rows[name].cast(pl.Float64).to_numpy()
        for name in ("lr", "tokens", "batch", "timescale", "half_life", "seed")
    )
    far, wide = np.log(tokens / BASE.tokens), np.log(batch / 768)
    off = rng.uniform(-0.3, 0.3, 3)
    u = np.log(lr / 5.5e-3) - off[0] - TRUTH["lr_tokens"] * far - TRUTH["lr_batch"] * wide
    t = np.log(timescale / STAGE.timescale) - off[1] - TRUTH["timescale_tokens"] * far
    h = np.log(half_life / HALF_LIFE) - off[2] - TRUTH["half_life_batch"] * wide
    loss = 3 - 0.1 * far + 0.0225 * u**2 + 0.0072 * u**3 * (u > 0) + 0.0225 * t**2 + 0.0225 * h**2
    floors = 0.01 * rng.standard_normal(2)[seed.astype(int)]
    return rows.with_columns(loss=pl.Series(loss + floors + noise * rng.standard_normal(loss.size)))


def add_to(study: Study) -> Study:
    """Write the stage and its trials into a study."""
    rows = losses(design(), np.random.default_rng(0), 0.001).drop("timescale", "half_life")
    for trial, row in zip(STAGE.planned(), rows.to_dicts(), strict=True):
        more = {"trial": trial.name, "seconds": 1.0, "attempts": 1, "workers": 1, "flops": 1e9}
        trial_store.write(study.location, trial, trials=[{**row, **more}])
    meta = study.meta
    meta["stages"][STAGE.name] = {"role": STAGE.role, "trials": rows.height, "extends": True}
    (study.location / "study.json").replace(json.dumps(meta).encode())
    return Study(Path(study.location.path))
