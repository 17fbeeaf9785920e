"""Studies with known best settings: rows of every stage of a made-up world, and the best recipe of its target."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from froude.config import Run
from froude.laws.batch.growth import PRIOR as GROWTH
from froude.laws.lr.exponents import KNOBS
from froude.promote.choice.knobs import WARMUP_TOKENS_SD
from froude.promote.choice.searched import BEND, BETA2, HALF_LIFE_SD, WARMUP, half_life
from froude.promote.choice.step_time import StepTime
from froude.promote.fits import Fits, fit_trials
from froude.promote.ladder.regret import CURVATURE
from froude.train.rows import describe

BATCH, SHORT, GOAL = 768, 768 * 170, 2.2
STAGES: dict[str, Any] = {
    "search": {"role": "search"},
    "rates": {"role": "lr_transfer"},
    "batches": {"role": "critical_batch", "target_loss": GOAL},
    "ladder": {"role": "loss_law"},
}
TARGET = Run(
    name="large",
    stage="target",
    batch=BATCH,
    slots=3,
    tokens=768 * 2400,
    workers=(1, 3),
    model={"width": 160},
    optimizer={"weight_decay": 0.1},
    schedule={"warmup_tokens": 768 * 40},
)
PARAMS = 26 * 160**2


def law(params: float, tokens: float) -> float:
    """The loss of a run at `BATCH` and the best settings, the same in all worlds."""
    return float(0.9 + 30 / params**0.4 + 60 / tokens**0.4)


@dataclass(frozen=True)
class World:
    """The truth: exponents, optima of a run of `SHORT` tokens at `BATCH`, curvatures, the critical batch, the law."""

    lr: float
    warmup: float
    half_life: float
    bends: tuple[float, float, float]
    lr_tokens: float
    lr_batch: float
    critical: float
    least_steps: float
    growth: float
    half_life_batch: float
    warmup_tokens: float

    @classmethod
    def draw(cls, rng: np.random.Generator) -> World:
        def normal(mean: float, sd: float) -> float:
            return float(mean + sd * rng.standard_normal())

        return cls(
            lr=math.exp(normal(math.log(5.5e-3), 0.4)),
            warmup=math.exp(normal(*WARMUP)),
            half_life=math.exp(normal(math.log(half_life(BETA2, BATCH)), HALF_LIFE_SD)),
            bends=(*(math.exp(normal(*each)) for each in (CURVATURE, BEND, BEND)),),  # type: ignore[arg-type]
            lr_tokens=normal(*KNOBS["lr_tokens"].prior),
            lr_batch=normal(*KNOBS["lr_batch"].prior),
            critical=math.exp(normal(math.log(400), 0.4)),
            least_steps=60.0,
            growth=normal(*GROWTH),
            half_life_batch=normal(*KNOBS["half_life_batch"].prior),
            warmup_tokens=normal(0.0, WARMUP_TOKENS_SD),
        )

    def best_rate(self, batch: float, tokens: float) -> float:
        return self.lr * (batch / BATCH) ** self.lr_batch * (tokens / SHORT) ** self.lr_tokens

    def best_beta2(self, batch: float) -> float:
        return float(0.5 ** (batch / (self.half_life * (batch / BATCH) ** self.half_life_batch)))

    def best_warmup(self, tokens: float) -> float:
        """A share of the tokens."""
        return self.warmup * (tokens / SHORT) ** self.warmup_tokens

    def critical_at(self, tokens: float) -> float:
        """Measured where the batch itself reaches the goal, with twice the least tokens."""
        return self.critical * (tokens / (2 * self.critical * self.least_steps)) ** self.growth

    def loss(self, params: float, tokens: float, batch: float) -> float:
        """At the best settings; the law is of runs at `BATCH`."""
        critical = self.critical_at(TARGET.tokens)
        return law(params, tokens * (1 + BATCH / critical) / (1 + batch / critical))

    def cost(self, lr: float, warmup: float, life: float, best: float) -> float:
        """Proportion of the loss by which settings miss the best ones; above the best rate it is steeper."""
        a, b, c = self.bends
        u = math.log(lr / best)
        away = 0.5 * a * u * u * (1 + 0.3 * max(u, 0.0))
        return (
            away
            + 0.5 * b * math.log(warmup / self.warmup) ** 2
            + 0.5 * c * math.log(life / self.half_life) ** 2
        )


#: Critical batch 400 at 49 thousand tokens: 2,113 at the target's 1.8 million.
CLEAR = World(5.5e-3, 0.06, 1e4, (0.05, 0.02, 0.02), -0.1, 0.5, 400.0, 60.0, 0.46, 0.0, 0.0)
FLOPS = 156.0 * TARGET.model.width**2
#: An overhead as long as the computing of 2,400 tokens on one worker.
TIME = StepTime(0.01, 0.01 / (2400 * FLOPS), "made up")
REST = dict.fromkeys(("rest_lr", "rest_beta2"), pl.Float64)
#: What a row says besides what is swept: made once, since a thousand studies are.
BLANK: dict[str, Any] = {
    **describe(TARGET.replace({"slots": 1, "workers": 1}, name="x")),
    "status": "finished", "workers": 1, "leaked": 0.0, "error": None, "rest_lr": None, "rest_beta2": None,
}  # fmt: skip


def row(
    stage: str, name: str, loss: float, *, width: int = 64, tokens: int = SHORT, **more: Any
) -> dict[str, Any]:
    sizes = {
        "width": width,
        "params": 26 * width**2,
        "tokens": tokens,
        "batch": BATCH,
        "trial": name,
        "lr": 5.5e-3,
    }
    made = {
        **BLANK,
        **sizes,
        "stage": stage,
        "run": name,
        "fingerprint": name,
        "loss": loss,
        "seconds": 1.0,
        **more,
    }
    return {
        **made,
        "batch_final": made["batch"],
        "steps": tokens // made["batch"],
        "flops": 156.0 * width**2 * tokens,
    }


def rows(world: World, rng: np.random.Generator, *, noise: float = 0.003, trials: int = 16) -> pl.DataFrame:
    """Rows of `trials()` of all stages but the ladder's."""

    def noisy(loss: float) -> float:
        return loss * math.exp(noise * float(rng.standard_normal()))

    found = []
    for i in range(trials):
        lr, warmup = (
            5.5e-3 * 2 ** rng.uniform(-2.5, 2.5),
            math.exp(rng.uniform(math.log(0.015), math.log(0.3))),
        )
        life = half_life(BETA2, BATCH) * math.exp(rng.uniform(-1.5, 1.5))
        loss = noisy(1.9 * math.exp(world.cost(lr, warmup, life, world.lr)))
        more = {"lr": lr, "beta2": 0.5 ** (BATCH / life), "warmup_tokens": round(warmup * SHORT)}
        found.append(row("search", f"search-{i}", loss, **more))
    for width in (32, 64, 128):
        for i, seed in ((i, seed) for i in range(7) for seed in range(2)):
            lr = 5.5e-3 * 2 ** ((i - 3) * 0.6)
            cost = world.cost(lr, world.warmup, world.half_life, world.lr)
            loss = noisy((1.9 - 0.1 * math.log2(width / 64)) * math.exp(cost))
            found.append(row("rates", f"w{width}-{i}-{seed}", loss, width=width, lr=lr, seed=seed))
    for batch in (64, 192, 384, 768, 1536, 3072):
        needed = (
            world.least_steps * (1 + world.critical / batch) * math.exp(0.03 * float(rng.standard_normal()))
        )
        for i in range(14):
            steps = round(40 * 1.35**i)
            loss = GOAL - 0.5 * math.log(steps / needed)
            name = f"b{batch}-{steps}"
            found.append(row("batches", name, loss, tokens=batch * steps, batch=batch, trial=f"b{batch}"))
            if loss <= GOAL:
                break
    return pl.DataFrame(found, infer_schema_length=None, schema_overrides=REST)


def ladder(rng: np.random.Generator, *, noise: float = 0.003) -> pl.DataFrame:
    """Rows of the loss law, which takes longer to fit than all the rest: one for all worlds."""
    found = []
    for width in (32, 48, 64, 96):
        for steps in (432, 648, 972, 1458):
            loss = law(26 * width**2, 768 * steps) * math.exp(noise * float(rng.standard_normal()))
            found.append(row("ladder", f"l{width}-{steps}", loss, width=width, tokens=768 * steps))
    return pl.DataFrame(found, infer_schema_length=None, schema_overrides=REST)


def study(
    world: World, rng: np.random.Generator, known: Fits | None = None, *, target: Run = TARGET, **more: Any
) -> Fits:
    """The fits to those rows, with the loss law and the ladder of `known`."""
    fits = fit_trials(rows(world, rng, **more), stages=STAGES, target=target)
    if known is None:
        return fits
    return replace(fits, loss=known.loss, rows={**fits.rows, "loss_law": known.rows["loss_law"]})


def ladder_fits() -> Fits:
    """The fits of a study that has only its ladder."""
    return fit_trials(ladder(np.random.default_rng(0)), stages=STAGES, target=TARGET)
