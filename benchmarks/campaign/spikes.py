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
#: What the tables of the committed campaign say, in words.
SAYS = (
    "**What it shows.** Single bad batches: leaving them out costs one batch and nothing else, clipping of any kind "
    "costs little. Bad batches in a row: easing off trusts the third, and ends .015 nats higher, where going back "
    "repeated 107 of 240 steps and drew 300 other batches. Too high a rate for a while: without easing off, leaving "
    "out never ends and the ladder gives the run up; with it every run finishes, nearer to the undisturbed one than "
    "under any clipping. That fault belongs to steps, so that going back meets it again, which is the worst case for "
    "the ladder before. A peak rate far too high makes a bad run with hardly a spike, and no policy helps.",
)
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

        def spoiled_backward(windows: Tensor, **options: Any) -> Totals:
            found = backward(windows, **options)
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

    def draw(self, batch: int, factor: int = 1) -> Drawn:
        drawn = super().draw(batch, factor)
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
    left_out = len(spikes.policy_batches(run, loop.policy.state()))
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


def spread(values: Sequence[float], form: str) -> str:
    """Median [least, most]."""
    ordered = sorted(values)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    low, mid, high = (format(each, form) for each in (ordered[0], middle, ordered[-1]))
    return mid if low == high else f"{mid} [{low}, {high}]"


def table(rows: pl.DataFrame, fault: str) -> list[str]:
    calm = dict(rows.filter(policy="global clip", fault="none").select("seed", "loss").iter_rows())
    lines = [
        f"## {fault[0].upper()}{fault[1:]}" if fault != "none" else "## Undisturbed",
        "",
        "| policy | finished | loss over the undisturbed | repeated, tokens | left out, tokens |",
        "|---|---|---|---|---|",
    ]
    for policy in (each.name for each in POLICIES):
        own = rows.filter(policy=policy, fault=fault).to_dicts()
        if own:
            losses = [row["loss"] - calm[row["seed"]] for row in own if row["status"] == "finished"]
            over = spread(losses, "+.3f") if losses else "none finished"
            costs = [spread([row[key] for row in own], ",.0f") for key in ("repeated", "left_out")]
            lines.append(f"| {policy} | {len(losses)} of {len(own)} | {over} | {' | '.join(costs)} |")
    return [*lines, ""]


def page(rows: pl.DataFrame) -> str:
    seeds = rows["seed"].n_unique()
    lines = [
        "# What an answer to a spike costs",
        "",
        f"`python benchmarks/campaign/spikes.py`, commit {', '.join(rows['commit'].unique().sort())}, on "
        f"{rows['hardware'][0]}, {datetime.now(UTC):%Y-%m-%d}; one process, {rows['seconds'].sum() / 60:.0f} minutes. "
        f"The package's own model, width {WIDTH}, depth 2; bytes of the King James Bible, {STEPS} steps of {BATCH} "
        f"tokens, AdamW at {LR}, WSD; {seeds} seeds, which also draw where the spike begins (batch {FIRST} to "
        f"{LAST - 1}, after every policy's warm-up). Every row is a training of its own.",
        "",
        'Policies: "off" neither clips nor decides; all others bound the global norm by 1. "skip" leaves out outliers '
        'and does nothing else. "ladder" is the spike policy of a run, "ladder before" the same without easing off. '
        "zclip and adagc are without a ladder. The loss is that of validation at the end, in nats per token, less that "
        "of the undisturbed run of the same seed under the global clip: median [least, most] of those that finished. "
        "A run that did not is one that its ladder gave up, or that left out as many batches as it was to train.",
        "",
        *(line for fault in FAULTS for line in table(rows, fault.name)),
        *SAYS,
        "",
        "**What it does not show.** These tables label policies, they choose none: the default rests on the "
        "literature's evidence. A proxy this small has few spikes of its own. Going back leaves out 100 batches before "
        f"a spike and 200 after it, which were made for large runs, not for one of {STEPS} steps: what it costs weighs "
        "more here. Faults are planted and of one size each. A run that leaves out batches trains on others in their "
        "place, so a difference of a hundredth of a nat is that of another draw of data.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--check", action="store_true", help="one short run of each policy; writes nothing")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.check:
        for policy in POLICIES:
            print(train(policy, FAULTS[0], 0, steps=10))
        return
    if not given.report:
        campaign(given.seeds)
    (HERE / "spikes.md").write_text(page(pl.read_parquet(ROWS)))


if __name__ == "__main__":
    main()
