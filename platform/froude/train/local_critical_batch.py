"""The critical batch where a run stands, measured: branches from its checkpoint with once to eight times the batch.

All train on the same tokens, at the rate of the checkpoint times the root of the factor, beta2 to its power: what the
spike policy has made of rate, clip and batches by then holds for them, too. The local
critical batch is the largest that ends no worse than any smaller one (Merrill et al. 2505.23971; they compare smoothed
training losses, here it is the loss over the same validation windows, which has less noise at a proxy's scale).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from froude import schedules
from froude.config import ConfigError, Optimizer, Run
from froude.optimizers.section import Rest
from froude.train import api, parallel
from froude.train.data.order import Batches
from froude.train.parallel import World
from froude.train.stability.spikes import SpikePolicy
from froude.train.step import train_step
from froude.train.trainer import Trainer, only_trainer

if TYPE_CHECKING:
    from froude.checkpoint.run_store import RunStore

FACTORS = (1, 2, 4, 8)
#: Nats per token by which a branch may end above a smaller batch's and still count as no worse.
TOLERANCE = 0.01
#: A window's length: a share of the run, but not less than a number of half-lives of Adam's second moment.
SHARE, HALF_LIVES = 0.005, 5


@dataclass(frozen=True)
class Branch:
    """One branch: its batch in tokens, its rate, and its validation loss at the end in nats per token."""

    batch: int
    lr: float
    steps: int
    loss: float


@dataclass(frozen=True)
class Branched:
    """Branches of `tokens` tokens each from `step`; `critical` (tokens) is a lower bound where `open`, not null."""

    step: int
    tokens: int
    branches: tuple[Branch, ...]
    critical: int
    open: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The same for people."""
        rows = [
            f"  {b.batch:>10,}  rate {b.lr:.3g}  {b.steps:>6} steps  loss {b.loss:.4f}" for b in self.branches
        ]
        found = f"at least {self.critical:,}" if self.open else f"{self.critical:,}"
        return [
            f"batch measured on branches of {self.tokens:,} tokens from step {self.step}:",
            *rows,
            f"critical batch: {found} tokens",
        ]


def branch(
    run: Run,
    store: RunStore,
    *,
    tokens: int = 0,
    device: str = "cpu",
    progress: Callable[[float, str], None] | None = None,
) -> Branched:
    """Train the branches from the newest checkpoint, on this process alone, for `tokens` (0: as long as it takes).

    Writes nothing. ConfigError for a run without a checkpoint.
    """
    world = World(device=parallel.resolve_device(device))
    first = Trainer(_alone(run, 1, 0), world)
    position = store.load(first.state())
    step = position["step"]
    if not step:
        raise ConfigError(f"branches begin at a checkpoint, but {run.name} has none yet; train it first")
    start = first.snapshot()
    del first
    at = min(step, run.steps - 1)
    taken = run.phases.factor_at(at)
    rounds = max(1, round((tokens or _window(run)) / (max(FACTORS) * taken * run.batch)))
    source = api.build_source(run, "train")
    batches = Batches(source, run.seed, run.windows, 1, documented=run.model.documents)
    policy, firsts = SpikePolicy(run, position["scalars"].get("stability", {"batch": step})), []
    for _ in range(rounds * max(FACTORS)):
        policy.leave_out(at + 1)
        firsts.append(policy.batch)
        policy.batch += taken
    softened, found = policy.softened(firsts[0]), []
    for number, factor in enumerate(FACTORS):
        own = _alone(run, factor, at)
        trainer = only_trainer(own, world)
        trainer.restore(start)
        trainer.optimizer.change_beta2(
            lambda settings: schedules.beta2_at(run, step - 1, _table(run, settings.section).beta2),
            lambda settings: settings.beta2,
        )
        steps = rounds * max(FACTORS) // factor
        for i in range(steps):
            drawn = [batches.slot(first, 0, taken).windows for first in firsts[i * factor : (i + 1) * factor]]
            train_step(
                trainer.model,
                trainer.optimizer,
                trainer.reduction,
                torch.from_numpy(np.concatenate(drawn)).to(world.device),
                own,
                i,
                lambda loss, norm: softened,
                scaling=trainer.scaling,
            )
            if progress:
                progress((number + (i + 1) / steps) / len(FACTORS), f"batch {own.batch:,}")
        found.append(Branch(own.batch, own.optimizer.lr * softened.lr_factor, steps, trainer.evaluate()))
        del trainer
    critical = largest_as_good([each.loss for each in found])
    return Branched(
        step,
        rounds * max(FACTORS) * taken * run.batch,
        tuple(found),
        found[critical].batch,
        critical == len(found) - 1,
    )


def largest_as_good(losses: Sequence[float]) -> int:
    """The place of the last loss before the first that is worse than one before it, by more than the tolerance."""
    for i, loss in enumerate(losses):
        if not loss <= min(losses[:i], default=math.inf) + TOLERANCE:
            return max(i - 1, 0)
    return len(losses) - 1


def _alone(run: Run, factor: int, step: int) -> Run:
    """The run at `factor` times the batch of a step on one worker: constant at what that step has of rate and decay."""
    batch = run.phases.batch_at(step) * factor
    share = max(schedules.at_step(run, step), 1e-9) * factor**0.5
    decay = schedules.weight_decay_at(run, step)
    spec, changed = run.optimizer.spec, {}
    for table in (run.optimizer, run.optimizer.rest) if spec.unit == "matrix" else (run.optimizer,):
        changed[f"{table.section}.lr"] = table.lr * share
        if table.spec.has_beta2:
            changed[f"{table.section}.beta2"] = schedules.beta2_at(run, step, table.beta2) ** factor
        if table.spec.decays:
            changed[f"{table.section}.weight_decay"] = table.weight_decay * decay
    return run.pinned().replace(
        {
            "batch": batch,
            "tokens": batch,
            "slots": 1,
            "workers": 1,
            "reduction": "fast",
            "schedule": {"name": "constant"},
            "optimizer.implementation": spec.plain,
            **changed,
        },
        name=run.name,
    )


def _table(run: Run, section: str) -> Optimizer | Rest:
    """The settings of the run that a table of this name has."""
    return run.optimizer if section == run.optimizer.section else run.optimizer.rest


def _window(run: Run) -> float:
    """Tokens of a window."""
    beta2 = run.optimizer.by_rows.beta2
    half_life = run.batch * math.log(0.5) / math.log(beta2) if beta2 else 0.0
    return max(SHARE * run.tokens, HALF_LIVES * half_life)
