"""A run's model, optimizer and data on this worker: one step, one evaluation, and the state that both depend on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from froude.config import Run
from froude.train import api, ledger, parallel
from froude.train.data.order import Batches, validation_windows
from froude.train.parallel import World
from froude.train.parametrization import parameter_groups
from froude.train.step import StepResult, summed_loss, train_step

#: Windows of one forward pass of an evaluation: bounds memory; changes no result beyond rounding.
EVAL_CHUNK = 96


class Trainer:
    """Everything that a run needs between two steps; built from the run alone, the same on every rank."""

    def __init__(self, run: Run, world: World | None = None) -> None:
        self.run, self.world = run, world or World()
        self.batches = Batches(api.build_source(run, "train"), run.seed, run.windows_per_slot, run.slots)
        self.validation = api.as_int64(
            validation_windows(api.build_source(run, "validation"), run.eval_windows)
        )
        self.model = api.build_model(run)
        self.counts = api.count_parameters(self.model)
        self.flops_per_token = float(self.model.flops_per_token())  # type: ignore[operator]
        self.model.to(self.world.device)
        parallel.shard(self.model, self.model.blocks(), self.world)  # type: ignore[operator]
        # One fused kernel is quickest for small models; its vector tail makes it inexact under sharding on a CPU,
        # so sharded runs use the elementwise form.
        single = self.world.size == 1
        self.optimizer = torch.optim.AdamW(
            parameter_groups(run, self.model), fused=single or None, foreach=None if single else True
        )

    def step(
        self, run: Run, step: int, rows: list[dict[str, Any]] | None = None, attempt: int = 1
    ) -> StepResult:
        """The update from `step` to `step + 1` under `run`'s schedule; ledger rows of this rank are added to `rows`."""
        mine = self.world.slots(run.slots)
        slots = [self.batches.slot(step, slot) for slot in mine]
        windows = torch.cat([torch.from_numpy(slot.tokens) for slot in slots]).to(self.world.device)
        if rows is not None:
            size = run.windows_per_slot
            for i, (number, slot) in enumerate(zip(mine, slots, strict=True)):
                part = windows[i * size : (i + 1) * size]
                rows.append(ledger.row(run, attempt, step + 1, number, slot.first_sample, part))
        return train_step(self.model, self.optimizer, self._chunks(windows), run, step, self.world)

    def _chunks(self, windows: Tensor) -> Sequence[Tensor]:
        """Micro-batches of this rank; every rank has the same number, so that their collectives match."""
        size = self.run.micro_batch // self.run.model.context
        most = -(-self.run.slots // self.world.size) * self.run.windows_per_slot
        return windows.tensor_split(-(-most // size)) if size and most > size else (windows,)

    @torch.no_grad()
    def evaluate(self) -> float:
        """Mean loss over the validation windows in nats per token, the same value on every rank."""
        chunks = self.validation.split(EVAL_CHUNK)
        total = torch.zeros((), dtype=torch.float64, device=self.world.device)
        self.model.eval()
        for first in range(0, len(chunks), self.world.size):
            mine = first + self.world.rank
            # A rank without a chunk in the last round still takes part in the collectives of a forward pass.
            chunk = chunks[min(mine, len(chunks) - 1)].to(self.world.device)
            loss = summed_loss(self.model, chunk, self.run)
            if mine < len(chunks):
                total += loss.double()
        self.model.train()
        return float(self.world.sum(total)) / (len(self.validation) * self.run.model.context)

    def state(self) -> dict[str, Tensor]:
        """Parameters and optimizer state by name; the tensors themselves, so that loading into them suffices."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            tensors[f"model.{name}"] = parameter.detach()
            state = self.optimizer.state[parameter]
            if not state:  # as AdamW itself starts, so that a checkpoint can be read before the first step
                state["step"] = torch.zeros((), dtype=torch.float32)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
            for key, value in state.items():
                tensors[f"optimizer.{name}.{key}"] = value.detach()
        return tensors

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of `state()`."""
        return {name: tensor.clone() for name, tensor in self.state().items()}

    @torch.no_grad()
    def restore(self, snapshot: dict[str, Tensor]) -> None:
        for name, tensor in self.state().items():
            tensor.copy_(snapshot[name])
