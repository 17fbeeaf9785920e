"""Faults of a target run, invented from what a training stack's modules are called; the detectors' code was unread.

What was known of the detectors is what docs/guide/forecast.md and transfer.md tell a user: the three kinds of alarm,
and the names of the rules that the diagnosis checks. What should see a fault, and why, is written here before any of
them ran. Faults of models over width are in `blind_models`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from froude.config import Run
from froude.train import api, parallel
from froude.train.data.order import Batches
from froude.train.trainer import Trainer

MID = 0.4  # of the run: where a fault begins that does not begin with it


@dataclass(frozen=True)
class RunFault:
    """A fault of a target run: what it changes in the trainer as built, a batch's number or windows, about a step.

    `start` is the share of the steps after which it begins; `settings` are those of each step, behind the seal.
    """

    name: str
    module: str
    expected: str
    because: str
    start: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    build: Callable[[Trainer], None] | None = None
    number: Callable[[int, int], int] | None = None
    windows: Callable[[Tensor], Tensor] | None = None
    begin: Callable[[Trainer], None] | None = None
    before: Callable[[Trainer, int], None] | None = None
    after: Callable[[Trainer, int], None] | None = None


class Shard:
    """The first two hundredth of a source."""

    def __init__(self, source: api.Source) -> None:
        self.source, self.length, self.sha256 = source, source.length // 200, source.sha256

    def read(self, first: int, n: int) -> Any:
        return self.source.read(first, n)


class InOrder(Batches):
    """Batches in the corpus's own order."""

    def windows(self, step: int, slot: int) -> list[int]:
        first = self._first(step, slot)
        return [sample % self.source.length for sample in range(first, first + self.windows_per_slot)]


def batches(trainer: Trainer, source: api.Source, kind: type[Batches] = Batches) -> None:
    run = trainer.run
    trainer.batches = kind(source, run.seed, run.windows_per_slot, run.slots)


def groups(trainer: Trainer, **settings: Any) -> None:
    """Change what the optimizer's groups have; a decay of zero stays."""
    for group in trainer.optimizer.param_groups:
        factor = settings.get("decay")
        group |= {key: value for key, value in settings.items() if key != "decay"}
        group["weight_decay"] *= 1.0 if factor is None else factor


def twice_the_rate(trainer: Trainer) -> None:
    """The group that holds the first matrix of a block, at twice its peak."""
    matrix = trainer.model.layers[0].qkv
    for group in trainer.optimizer.param_groups:
        if any(parameter is matrix for parameter in group["params"]):
            group["peak"] *= 2.0


def doubled(trainer: Trainer) -> None:
    """Each gradient is added to that of the step before, which nobody set to zero."""
    inner, last = trainer.reduction.backward, []

    def backward(windows: Tensor, **options: Any) -> Any:
        totals = inner(windows, **options)
        gradients = parallel.local_gradients(trainer.model)
        own = [gradient.clone() for gradient in gradients]
        if last:
            torch._foreach_add_(gradients, last)
        last[:] = own
        return totals

    trainer.reduction.backward = backward


def forget(trainer: Trainer) -> None:
    for state in trainer.optimizer.state.values():
        for value in state.values():
            value.zero_()


def late_inputs(trainer: Trainer) -> None:
    """The model sees each input one place later, so that its target is the second next token; in training only."""
    trainer.model.register_forward_pre_hook(
        lambda model, tokens: (torch.roll(tokens[0], 1, 1),) if model.training else None
    )


def noisy(trainer: Trainer) -> None:
    generator = torch.Generator().manual_seed(0)

    def disturb(block: nn.Module, _: Any, x: Tensor) -> Tensor | None:
        noise = torch.randn(x.shape, generator=generator) * (0.2 * x.detach().std())
        return x + noise if block.training else None

    for block in trainer.model.layers:
        block.register_forward_hook(disturb)


def no_positions(trainer: Trainer) -> None:
    trainer.model.cos.fill_(1.0)
    trainer.model.sin.fill_(0.0)


def keep(trainer: Trainer, prefix: str) -> None:
    trainer.kept = {
        n: p.detach().clone() for n, p in trainer.model.named_parameters() if n.startswith(prefix)
    }


@torch.no_grad()
def put_back(trainer: Trainer, _: int) -> None:
    for name, parameter in trainer.model.named_parameters():
        if name in trainer.kept:
            parameter.copy_(trainer.kept[name])


@torch.no_grad()
def rounded(trainer: Trainer, _: int) -> None:
    for parameter in trainer.model.parameters():
        parameter.copy_(parameter.bfloat16())


def remember(trainer: Trainer, step: int) -> None:
    trainer.before_step = trainer.snapshot() if step % 4 == 3 else None


def lose(trainer: Trainer, _: int) -> None:
    if trainer.before_step:
        trainer.restore(trainer.before_step)


def lowered(windows: Tensor) -> Tensor:
    return torch.where((windows >= 65) & (windows <= 90), windows + 32, windows)


def halved(windows: Tensor) -> Tensor:
    return windows[: len(windows) // 2].repeat(2, 1)


def held_out(trainer: Trainer) -> api.Source:
    return api.build_source(trainer.run, "validation")


def swapped(trainer: Trainer) -> None:
    """Evaluations read windows of the training split."""
    trainer.validation = trainer._held(api.build_source(trainer.run, "train"), "the training split")


# fmt: off
RUN_FAULTS = [
    RunFault("no shuffle: windows in the corpus's order", "data/order", "shape",
             "a batch is one chapter, and chapters differ",
             build=lambda t: batches(t, t.batches.source, InOrder)),
    RunFault("a restart begins the data anew at batch 0", "data/order", "nothing",
             "two passes differ little at this size",
             start=MID, number=lambda batch, first: batch - first),
    RunFault("targets shifted by one more", "data/windows", "band",
             "the next but one byte is much harder", start=MID,
             begin=late_inputs),
    RunFault("trained on the validation split", "data/split", "nothing",
             "its text is as hard; two passes of it help little",
             build=lambda t: batches(t, held_out(t))),
    RunFault("loader stuck on one shard, a 200th", "data/content", "band",
             "24 passes: learned by heart, late in the run",
             build=lambda t: batches(t, Shard(t.batches.source))),
    RunFault("text lowercased", "data/text", "shape",
             "capitals carry bits that are gone", start=MID, windows=lowered),
    RunFault("half of the batch is a copy of the other half", "exact/slots", "nothing",
             "only the gradient's noise grows",
             windows=halved),
    RunFault("gradient not set to zero: the last one is added", "step", "nothing",
             "Adam takes it as a little more momentum",
             build=doubled),
    RunFault("no weight decay", "optimizers/adamw", "nothing", "too short a run for it to matter",
             build=lambda t: groups(t, decay=0.0)),
    RunFault("weight decay ten times too strong", "optimizers/adamw", "band",
             "weights are held small all through the run",
             build=lambda t: groups(t, decay=10.0)),
    RunFault("beta2 .999", "optimizers/spec", "nothing", "a slower second moment costs a percent at most",
             build=lambda t: groups(t, betas=(t.run.optimizer.beta1, 0.999))),
    RunFault("moments and their count lost at a restart", "worker", "shape",
             "the first updates are of sign only",
             start=MID, begin=forget),
    RunFault("warmup skipped", "schedules", "rate", "the optimizer has another rate than the seal",
             settings={"schedule.warmup_tokens": 0}),
    RunFault("hidden matrices at twice their rate, unseen", "parametrization", "nothing",
             "the optimum is flat",
             build=twice_the_rate),
    RunFault("embedding never updated", "model", "band", "a random table costs a few percent",
             build=lambda t: keep(t, "embedding"), after=put_back),
    RunFault("last block frozen", "model", "nothing", "the rest goes on learning", start=MID,
             begin=lambda t: keep(t, f"layers.{t.run.model.depth - 1}."), after=put_back),
    RunFault("positions lost at a restart: rotary tables unfilled", "model", "band",
             "attention was built on them", start=MID,
             begin=no_positions),
    RunFault("weights kept in bf16", "objective", "nothing",
             "at this rate an update is larger than the rounding",
             after=rounded),
    RunFault("noise of a fifth in each block's output", "exact/environment", "band",
             "as if a fifth of dropout began",
             start=MID, begin=noisy),
    RunFault("every fourth update is lost", "loop", "nothing",
             "a quarter fewer steps move the curve by a percent",
             before=remember, after=lose),
    RunFault("no gradient clipping", "stability", "nothing", "Adam divides the scale out",
             settings={"optimizer.clip": 1e9}),
    RunFault("evaluated on the training split", "trainer", "nothing",
             "no alarm looks at evaluations; one pass hardly fits",
             build=swapped),
]
# fmt: on


class Patient(Trainer):
    """A trainer with a fault, or with none."""

    def __init__(self, run: Run, fault: RunFault | None = None) -> None:
        super().__init__(run)
        self.fault = fault
        self.first = round(fault.start * run.steps) if fault else run.steps
        if fault and fault.build:
            fault.build(self)

    def draw(self, batch: int, factor: int = 1) -> Any:
        fault = self.fault
        if fault is None or batch < self.first:
            return super().draw(batch, factor)
        drawn = super().draw(fault.number(batch, self.first) if fault.number else batch, factor)
        return drawn._replace(windows=fault.windows(drawn.windows)) if fault.windows else drawn

    def step(self, run: Run, step: int, *more: Any, **named: Any) -> Any:
        fault = self.fault
        if fault is None or step < self.first:
            return super().step(run, step, *more, **named)
        if step == self.first and fault.begin:
            fault.begin(self)
        if fault.before:
            fault.before(self, step)
        result = super().step(run.replace(fault.settings) if fault.settings else run, step, *more, **named)
        if fault.after:
            fault.after(self, step)
        return result
