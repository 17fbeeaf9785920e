"""What does each answer to a spike cost, in tokens and in the final loss? On real trainings of a small proxy.

Seeded spikes of both kinds, bad batches and too high a rate, are planted in a run, which meets them under each policy:
none, the global bound on the gradient, leaving out outliers, the spike ladder without and with its rung of easing off,
ZClip and AdaGC. Rows are kept in benchmarks/spikes.parquet as they come, so the same command goes on. Writes
benchmarks/spikes.md.

    python benchmarks/campaign/spikes.py [--seeds 5] [--report] [--check]
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor

from froude.config import Run
from froude.train.data.ledger import Drawn
from froude.train.exact.reduce import Totals
from froude.train.loop import Diverged, Loop
from froude.train.observers import Made, Observer
from froude.train.stability import spikes
from froude.train.stability.spikes import Decision, Place, SpikePolicy
from froude.train.step import StepResult
from froude.train.trainer import Trainer

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))
from _machine import commit, hardware  # noqa: E402

ROWS = HERE / "spikes.parquet"
STEPS, BATCH, WIDTH, LR = 240, 768, 32, 5.5e-3
#: After the warm-up of every policy, and before the schedule's tail.
FIRST, LAST = 130, 160
SAVE_EVERY = 10
#: Batches that a run may draw for a step that it makes, before it counts as stuck.
MOST_DRAWN = 2


def random_bytes(windows: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randint(0, 256, windows.shape, generator=generator, dtype=windows.dtype)


def one_byte(windows: Tensor, generator: torch.Generator) -> Tensor:
    return torch.full_like(windows, int(torch.randint(1, 32, (), generator=generator)))


@dataclass(frozen=True)
class Fault:
    """What goes wrong for `length` batches, or for as many steps, from a seeded one on; or all along (`peak`)."""

    name: str
    length: int = 1
    data: Callable[[Tensor, torch.Generator], Tensor] | None = None
    gradient: float = 1.0
    rate: float = 1.0
    peak: float = 1.0


FAULTS = (
    Fault("none"),
    Fault("one batch of random bytes", data=random_bytes),
    Fault("6 batches of one byte each", 6, data=one_byte),
    Fault("a gradient × 1000", gradient=1000.0),
    Fault("rate × 16 for 10 steps", 10, rate=16.0),
    Fault("peak rate × 16", peak=16.0),
)


class Skipping(SpikePolicy):
    """The ladder's detector, of whose answers only the first is taken: outliers are left out."""

    def _ease(self, here: Place, finite: bool, outlier: bool, seen: str) -> None:
        pass

    def _outlying(self, here: Place, finite: bool, seen: str) -> Decision:
        self.skips.append(here)
        return self._decide("skip", here, seen)

    def _back(self, spike: Place, here: Place, why: str) -> Decision:
        return self._decide("update", here, "")


class Before(SpikePolicy):
    """The ladder without its rung of easing off."""

    def _ease(self, here: Place, finite: bool, outlier: bool, seen: str) -> None:
        pass


@dataclass(frozen=True)
class Policy:
    """Settings of a run, and who decides where it has the ladder."""

    name: str
    settings: dict[str, Any]
    kind: type[SpikePolicy] = SpikePolicy


POLICIES = (
    Policy("off", {"stability": "off", "optimizer.clip": 1e9}),
    Policy("global clip", {"stability": "off"}),
    Policy("skip", {}, Skipping),
    Policy("ladder before", {}, Before),
    Policy("ladder", {}),
    Policy("zclip", {"stability": "off", "optimizer.clipping": "zclip"}),
    Policy("adagc", {"stability": "off", "optimizer.clipping": "adagc"}),
)


class Faulty(Trainer):
    """Trains with the fault where it has one, behind the back of schedule and data."""

    def __init__(self, run: Run, fault: Fault) -> None:
        super().__init__(run)
        self.fault, self.rate, self.scale = fault, 1.0, 1.0
        self.start = random.Random(run.seed).randrange(FIRST, LAST)
        backward, update = self.reduction.backward, self.optimizer.step

        def spoiled_backward(windows: Tensor, *, noise: bool = False) -> Totals:
            found = backward(windows, noise=noise)
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad *= self.scale
            norms = {name: norm * self.scale for name, norm in found.norms.items()}
            return found._replace(norm=found.norm * self.scale, norms=norms)

        def spoiled_update() -> None:
            for group in self.optimizer.param_groups:
                group["lr"] *= self.rate
            update()

        self.reduction.backward = spoiled_backward  # type: ignore[method-assign]
        self.optimizer.step = spoiled_update  # type: ignore[method-assign]

    def _during(self, number: int) -> bool:
        return self.start <= number < self.start + self.fault.length

    def draw(self, batch: int) -> Drawn:
        drawn = super().draw(batch)
        if self.fault.data is None or not self._during(batch):
            return drawn
        return drawn._replace(windows=self.fault.data(drawn.windows, torch.Generator().manual_seed(batch)))

    def step(self, run: Run, step: int, *rest: Any, batch: int, **options: Any) -> StepResult:  # type: ignore[override]
        self.rate = self.fault.rate if self._during(step) else 1.0
        self.scale = self.fault.gradient if self._during(batch) else 1.0
        return super().step(run, step, *rest, batch=batch, **options)


class Kept:
    """Copies of all states that were saved."""

    def __init__(self) -> None:
        self.states: list[tuple[dict[str, Any], dict[str, Tensor]]] = []

    @torch.no_grad()
    def load(self, state: dict[str, Tensor], at_most: int | None = None) -> dict[str, Any]:
        for position, tensors in reversed(self.states):
            if at_most is None or position["step"] <= at_most:
                for name, tensor in tensors.items():
                    state[name].copy_(tensor)
                return position
        return {"step": 0, "tokens": 0, "scalars": {}}

    def save(self, state: dict[str, Tensor], *, step: int, tokens: int, scalars: Any, **_: object) -> None:
        tensors = {name: tensor.clone() for name, tensor in state.items()}
        self.states.append(({"step": step, "tokens": tokens, "scalars": scalars}, tensors))


class Watch(Observer):
    """How many updates were made, also those that going back took back, and what was decided otherwise."""

    def __init__(self) -> None:
        self.made, self.actions = 0, list[str]()

    def stepped(self, made: Made) -> None:
        self.made += 1

    def decided(self, events: Sequence[Mapping[str, Any]]) -> None:
        self.actions += [event["action"] for event in events if event["action"] not in ("warn", "spike")]


def train(policy: Policy, fault: Fault, seed: int, steps: int = STEPS) -> dict[str, Any]:
    """A row: how the run ended, and what it cost."""
    run = Run(
        name="proxy",
        batch=BATCH,
        tokens=BATCH * steps,
        seed=seed,
        eval_windows=256,
        model={"width": WIDTH},
        optimizer={"lr": LR * fault.peak},
        schedule={"warmup_tokens": BATCH * steps // 10},
    ).replace(policy.settings)
    watch, began = Watch(), time.process_time()
    loop = Loop(run, Faulty(run, fault), Kept(), [watch], ledger=False)
    loop.policy = policy.kind(run, {"batch": 0})
    tried, status = 0, "finished"
    try:
        while loop.step < run.steps:
            if tried >= MOST_DRAWN * steps:
                status = "stuck"
                break
            tried += 1
            if loop.advance() and loop.step % SAVE_EVERY == 0:
                loop.commit()
    except Diverged:
        status = "stopped"
    left_out = len(spikes.policy_batches(loop.policy.state()))
    return {
        "policy": policy.name,
        "fault": fault.name,
        "seed": seed,
        "status": status,
        "loss": loop.evaluate() if status == "finished" else None,
        "repeated": (watch.made - loop.step) * BATCH,
        "left_out": left_out * BATCH,
        "actions": " ".join(watch.actions),
        "seconds": time.process_time() - began,
    }


def campaign(seeds: int) -> None:
    """Train what is not in ROWS yet."""
    rows = pl.read_parquet(ROWS).to_dicts() if ROWS.exists() else []
    done = {(row["policy"], row["fault"], row["seed"]) for row in rows}
    own = {"commit": commit("campaign/spikes.py"), "hardware": hardware()}
    for seed in range(seeds):
        for fault in FAULTS:
            for policy in POLICIES:
                if (policy.name, fault.name, seed) not in done:
                    rows.append(train(policy, fault, seed) | own)
                    pl.DataFrame(rows, infer_schema_length=None).write_parquet(ROWS)
                    print(rows[-1], flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    campaign(5)
