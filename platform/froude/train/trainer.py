"""A run's model, optimizer and data on this worker: one step, one evaluation, and the state that both depend on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from froude.config import Run
from froude.hardware.sizes import evaluated_windows
from froude.material import Material
from froude.train import api, kernels, optimizers, parallel
from froude.train.attention import seen
from froude.train.data import ledger
from froude.train.data.documents import tokens_of
from froude.train.data.ledger import Drawn
from froude.train.data.order import Batches, validation_windows
from froude.train.data.soundness import check_ids
from froude.train.exact import environment
from froude.train.exact.reduce import keeps_gathered, reduction, refuse_hooks
from froude.train.exact.slots import halved_sum
from froude.train.memory import weights
from froude.train.objective import summed_loss
from froude.train.parallel import World
from froude.train.precision import float8, measured, products
from froude.train.precision.rounding import to_bf16
from froude.train.precision.scaling import LossScale
from froude.train.speed import collector, phases
from froude.train.speed.compiled import compile_blocks
from froude.train.stability.spikes import Judge
from froude.train.step import StepResult, train_step


class Trainer:
    """Everything that a run needs between two steps; built from the run alone, the same on every rank.

    `blank`: a checkpoint will be loaded, so weights need not be drawn; where they come late they are zeros. `corpus` is
    what the splits must be, as Material has it; without it, what they are first.
    """

    def __init__(
        self,
        run: Run,
        world: World | None = None,
        *,
        blank: bool = False,
        corpus: Mapping[str, str] | None = None,
    ) -> None:
        self.run, self.world, self.corpus = run, world or World(), dict(corpus or {})
        products.check(run, self.world.device)
        kernels.check(run, self.world.device)
        seen.check(run, self.world.device)
        measured.error(run, self.world.device)  # refuses fp32 that is none
        self.scaling = LossScale.of(run)
        if run.reduction == "exact":
            environment.make_deterministic(self.world.device)
        self.draw_as(run)
        validation = self._source(run, "validation")
        self.validation = self._held(validation, f"the validation split of {run.data.source}")
        sets = api.validation_sets(run, validation)
        self.sets = {
            name: self._held(source, f"validation set {name!r} of {run.data.source}")
            for name, source in sets.items()
        }
        held = {"validation": validation, **sets}
        self.bytes_per_token = {name: api.bytes_per_token(run, source) for name, source in held.items()}
        self.model = api.build_model(run, workers=self.world.size)
        if run.precision == "fp8":
            float8.check_readout(self.model, run.model.vocab)
        if run.reduction == "exact" or self.world.size > 1:
            refuse_hooks(self.model)
        self.counts = api.count_parameters(self.model)
        self.flops_per_token = float(self.model.flops_per_token())  # type: ignore[operator]
        if run.precision == "bf16_stochastic":
            to_bf16(self.model)
        whole = keeps_gathered(run, self.world)
        blocks = self.model.blocks()  # type: ignore[operator]
        with products.float32_products(run, self.world.device):
            compile_blocks(run, self.model, blocks, self.world)
        make = weights.maker(self.model, blank=blank)
        sharding = parallel.shard(self.model, blocks, self.world, run.compute, keep=whole, make=make)
        self.shards = sharding.shards
        self.reduction = reduction(run, self.model, self.world, sharding)
        self.optimizer = optimizers.build(run, self.model, self.shards)

    def _source(self, run: Run, split: api.Split) -> api.Source:
        """The run's windows of a split; ConfigError unless they are those that it began with."""
        source = api.build_source(run, split)
        known = self.corpus.setdefault(split, self.corpus.get("corpus", source.sha256))
        Material({split: source.sha256}).required({"corpus": {split: known}}, "what the run began with")
        return source

    def _held(self, source: api.Source, name: str) -> Tensor:
        """The windows of every evaluation on a source."""
        windows = validation_windows(source, self.run.eval_windows, documented=self.run.model.documents)
        held = api.as_int64(windows)
        check_ids(tokens_of(held).numpy(), self.run, name)
        return held

    def draw_as(self, run: Run) -> None:
        """From now on draw the batches of this run, which differs from the trainer's in its length only."""
        source, documented = self._source(run, "train"), run.model.documents
        self.batches = Batches(source, run.seed, run.windows_per_slot, run.slots, documented=documented)

    def draw(self, batch: int, factor: int = 1) -> Drawn:
        """This rank's slots of a batch (from 0), or of `factor` batches from it on as one; on its device."""
        numbers = self.reduction.rounds.mine
        slots = [self.batches.slot(batch, number, factor) for number in numbers]
        for slot in slots:
            check_ids(slot.tokens, self.run, f"the training split of {self.run.data.source}")
        windows = torch.cat([torch.from_numpy(slot.windows) for slot in slots]).to(self.world.device)
        return Drawn(numbers, [slot.first_sample for slot in slots], windows, [slot.parts for slot in slots])

    def step(
        self,
        run: Run,
        step: int,
        rows: list[dict[str, Any]] | None = None,
        attempt: int = 1,
        *,
        batch: int | None = None,
        judge: Judge | None = None,
        noise: bool = False,
    ) -> StepResult:
        """The update from `step` to `step + 1` under `run`'s schedule; ledger rows of this rank are added to `rows`.

        The data are those from `batch` on: the step's own, unless some were left out. `judge` decides about the update;
        `noise` asks for the slots' norms.
        """
        phases.begin("data")
        own = run.phases.tokens_at(step) // run.batch
        drawn = self.draw(own if batch is None else batch, run.phases.factor_at(step))
        result = train_step(
            self.model,
            self.optimizer,
            self.reduction,
            drawn.windows,
            run,
            step,
            judge,
            noise=noise,
            scaling=self.scaling,
        )
        if rows is not None and (disposition := ledger.DISPOSITIONS.get(result.decision.action)):
            rows += ledger.rows(run, attempt, step + 1, drawn, disposition)
        return result

    @torch.no_grad()
    def evaluate(self, name: str = "") -> float:
        """Mean loss over the validation windows, or one of `sets`', in nats per token, the same value on every rank.

        Of the optimizer's average where it has one.
        """
        windows = self.sets[name] if name else self.validation
        chunks = windows.split(evaluated_windows(self.run, gpu=self.world.device.type == "cuda"))
        losses = torch.zeros(len(chunks), dtype=torch.float64, device=self.world.device)
        self.model.eval()
        with self.optimizer.averaged():
            for first in range(0, len(chunks), self.world.size):
                mine = first + self.world.rank
                # A rank without a chunk in the last round still takes part in the collectives of a forward pass.
                chunk = chunks[min(mine, len(chunks) - 1)].to(self.world.device)
                loss = summed_loss(self.model, chunk, self.run)
                if mine < len(chunks):
                    losses[mine] = loss.double()
            parallel.reshard(self.model, self.shards)
        self.model.train()
        # Each chunk's loss is one rank's: moved as integers and added in one order, it is the same at any world size.
        losses = self.world.sum(losses.view(torch.int64)).view(torch.float64)
        return float(halved_sum(losses[None])) / (len(windows) * self.run.model.context)

    def state(self) -> dict[str, Tensor]:
        """Parameters and optimizer state by name; the tensors themselves, so that loading into them suffices.

        A matrix that one rank owns has its state there only.
        """
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            tensors[f"model.{name}"] = parameter.detach()
        for key, value in self.optimizer.state().items():
            tensors[f"optimizer.{key}"] = value.detach()
        return tensors

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of `state()`."""
        return {name: tensor.clone() for name, tensor in self.state().items()}

    @torch.no_grad()
    def restore(self, snapshot: dict[str, Tensor]) -> None:
        for name, tensor in self.state().items():
            tensor.copy_(snapshot[name])


def state_without_memory(run: Run) -> dict[str, Tensor]:
    """Names, dtypes and shapes of what `Trainer(run).state()` has; weights require a gradient if they are trained."""
    model = api.build_model(run, "meta")
    state = optimizers.state_at_start(run, model)
    if run.precision == "bf16_stochastic":
        to_bf16(model)
    weights = {f"model.{name}": parameter for name, parameter in model.named_parameters()}
    return weights | {f"optimizer.{key}": tensor for key, tensor in state.items()}


def only_trainer(
    run: Run, world: World, *, blank: bool = False, corpus: Mapping[str, str] | None = None
) -> Trainer:
    """A trainer, once the memory of any before it is free: a sharded model lies in reference cycles."""
    collector.collect_all()
    return Trainer(run, world, blank=blank, corpus=corpus)
