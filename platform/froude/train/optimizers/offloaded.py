"""The optimizer's state in the CPU's memory: a GPU has that of a few parameters at a time, while they are updated.

The update itself is made where the weights are, by the same kernels, so offloading changes no bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from froude.config import Run
from froude.hardware.sizes import OFFLOADED
from froude.train import parallel
from froude.train.optimizers.composed import Rows, begun
from froude.train.parallel import World


def offloads(run: Run, world: World) -> bool:
    """Whether there is another memory than the weights' to keep the state in."""
    return run.compute.offload and world.device.type != "cpu"


def buckets(run: Run, parameters: Mapping[str, nn.Parameter]) -> Iterator[dict[str, nn.Parameter]]:
    """The parameters in lists of at most OFFLOADED elements here, or of one; at once if the optimizer asks for it."""
    most = math.inf if run.optimizer.spec.unit == "model" else OFFLOADED
    bucket, size = dict[str, nn.Parameter](), 0
    for name, parameter in parameters.items():
        elements = parallel.local(parameter).numel()
        if bucket and size + elements > most:
            yield bucket
            bucket, size = {}, 0
        bucket[name] = parameter
        size += elements
    yield bucket


class Offloaded(Rows):
    """As Rows; between steps its state lies in the CPU's memory."""

    def step(self) -> None:
        device = next(iter(self.parameters.values())).device
        with brought(self._states(), device):
            super().step()

    def state(self) -> dict[str, Tensor]:
        self._states()
        return super().state()

    def _states(self) -> list[dict[str, Tensor]]:
        return [put_away(begun(self.settings, self.optimizer, p)) for p in self.parameters.values()]


def put_away(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Move a parameter's state to the CPU, in place; numbers stay where the optimizer reads them."""
    for key, tensor in state.items():
        if tensor.ndim and parallel.local(tensor).device.type != "cpu":
            state[key] = torch.empty_like(tensor, device="cpu", pin_memory=True)
            parallel.local(state[key]).copy_(parallel.local(tensor))
    return state


@contextmanager
def brought(states: Iterable[dict[str, Tensor]], device: torch.device) -> Iterator[None]:
    """Inside, these states are on the device; afterwards their own memory has what became of them."""
    kept = []
    for state in states:
        for key, tensor in state.items():
            if tensor.ndim:
                state[key] = torch.empty_like(tensor, device=device, pin_memory=False)
                parallel.local(state[key]).copy_(parallel.local(tensor), non_blocking=True)
                kept.append((state, key, tensor))
    yield
    for state, key, tensor in kept:
        # Waited for: a checkpoint may read it next.
        parallel.local(tensor).copy_(parallel.local(state[key]))
        state[key] = tensor
