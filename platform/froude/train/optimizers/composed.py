"""The optimizer that a run trains with on this rank: rows by each worker, whole matrices by their owners."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from froude import schedules
from froude.config import Optimizer, Run
from froude.optimizers import Held
from froude.optimizers.section import Rest, beta2_arguments
from froude.train import parallel
from froude.train.optimizers.clipping import Clipping
from froude.train.precision.rounding import Rounding
from froude.user_code import PASSING, call_user


class Part(Protocol):
    """What updates some of the parameters; every rank has one, and calls alike."""

    @property
    def settings(self) -> Optimizer | Rest: ...

    @property
    def param_groups(self) -> list[dict[str, Any]]: ...

    def step(self) -> None: ...

    def state(self) -> dict[str, Tensor]:
        """Its tensors by "parameter.key"; before the first step as they start."""

    def averaged(self) -> AbstractContextManager[None]:
        """Inside, its parameters are those to be evaluated; after it, to the bit, those that are trained."""


class Composed:
    """Parts that share a model's parameters; whoever trains sees one optimizer, with what clips for it."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        parts: Sequence[Part],
        clipping: Clipping,
        rounding: Rounding | None = None,
    ) -> None:
        self.parameters, self.parts, self.clipping, self.rounding = parameters, parts, clipping, rounding

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for part in self.parts for group in part.param_groups]

    def schedule(self, run: Run, step: int) -> None:
        """Set what a step of the run has of its own besides the rate: beta2 under a ramp, a falling decay, chances.

        Beta2 is whatever the class is given for it. What it has not from there stays as it is in steps: beta1 and other
        memories, all of an optimizer without beta2, Adafactor's own schedule. Call it once for each update made.
        """
        if self.rounding is not None:
            self.rounding.step = step
        if run.schedule.ramp:
            for part in self.parts:
                arguments = beta2_arguments(part.settings, schedules.beta2_at(run, step, part.settings.beta2))
                for group in part.param_groups:
                    group.update(arguments)
            if step:
                self.change_beta2(
                    lambda settings: schedules.beta2_at(run, step - 1, settings.beta2),
                    lambda settings: schedules.beta2_at(run, step, settings.beta2),
                )
        if run.schedule.weight_decay_to < 1:
            share = schedules.weight_decay_at(run, step)
            for group in self.param_groups:
                group["weight_decay"] = group.setdefault("first_weight_decay", group["weight_decay"]) * share

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    @torch.no_grad()
    def change_beta2(
        self, before: Callable[[Optimizer | Rest], float], after: Callable[[Optimizer | Rest], float]
    ) -> None:
        """Multiply what is divided by 1 - beta2^t, as if beta2 had never been another, so that the quotient stays."""
        for part in self.parts:
            old, new = before(part.settings), after(part.settings)
            corrected = part.settings.spec.corrected
            state = part.state() if old != new and corrected else {}
            for key, tensor in state.items():
                owner, _, last = key.rpartition(".")
                if last in corrected and tensor.is_floating_point():  # codes are not, their scale is
                    taken = int(state[f"{owner}.{corrected[last]}"])
                    if taken:
                        parallel.local(tensor).mul_((1 - new**taken) / (1 - old**taken))

    def state(self) -> dict[str, Tensor]:
        found = {key: tensor for part in self.parts for key, tensor in part.state().items()}
        return found | {f"clipping.{key}": tensor for key, tensor in self.clipping.state().items()}

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, the model's parameters are those to be evaluated; after it, to the bit, those that are trained."""
        with ExitStack() as stack:
            for part in self.parts:
                stack.enter_context(part.averaged())
            yield


class Rows:
    """An optimizer of torch on this rank's rows of some parameters."""

    def __init__(
        self,
        settings: Optimizer | Rest,
        optimizer: torch.optim.Optimizer,
        parameters: Mapping[str, nn.Parameter],
    ) -> None:
        self.settings, self.optimizer, self.parameters = settings, optimizer, parameters

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def step(self) -> None:
        step(self.settings, self.optimizer)

    def state(self) -> dict[str, Tensor]:
        return {
            f"{name}.{key}": tensor
            for name, parameter in self.parameters.items()
            for key, tensor in begun(self.settings, self.optimizer, parameter).items()
        }

    @contextmanager
    def averaged(self) -> Iterator[None]:
        average = self.settings.average
        if average is None:
            yield
            return
        # To and back by a formula would not give the same bits: those that are trained are kept.
        kept = []
        for parameter in self.parameters.values():
            weight = parallel.local(parameter.detach())
            towards = begun(self.settings, self.optimizer, parameter)[average.key]
            kept.append((weight, weight.clone()))
            weight.lerp_(parallel.local(towards).to(weight.device), average.weight)
        try:
            yield
        finally:
            for weight, trained in kept:
                weight.copy_(trained)


def step(settings: Optimizer | Rest, optimizer: torch.optim.Optimizer) -> None:
    """One update; what the class counts in its groups is as the state has it, before the update and after it."""
    groups = optimizer.param_groups if settings.spec.counters else []
    for group in groups:
        first, *_ = [begun(settings, optimizer, parameter) for parameter in group["params"]]
        for key in settings.spec.counters:
            group[key] = type(group[key])(first[key].item())
    optimizer.step()
    for group in groups:
        for parameter in group["params"]:
            for key in settings.spec.counters:
                optimizer.state[parameter][key].fill_(group[key])


def begun(
    settings: Optimizer | Rest, optimizer: torch.optim.Optimizer, parameter: nn.Parameter
) -> dict[str, Tensor]:
    """The state of a parameter; before the first step as it starts by itself, so that every attempt begins alike."""
    state: dict[str, Tensor] = optimizer.state[parameter]
    if not state:
        fused = bool(optimizer.defaults.get("fused"))
        for key, held in settings.spec.state(settings, tuple(parameter.shape)).items():
            state[key] = started(held, parameter, fused=fused)
    return state


def started(held: Held, parameter: Tensor, *, fused: bool = False) -> Tensor:
    """A tensor of the state as it starts: sharded as the parameter is, if it has the parameter's rows.

    A number is in fp32 if not in fp64, and on the CPU unless a fused kernel reads it.
    """
    if held.start == "weight":
        return parameter.detach().clone()
    dtype = parameter.dtype if held.dtype == "float" else getattr(torch, held.dtype)
    if not held.shape:
        number = torch.float32 if held.dtype == "float" else dtype
        return torch.full((), held.start, dtype=number, device=parameter.device if fused else "cpu")
    shard = parallel.local(parameter)
    rows = held.shape[0] if shard is parameter else shard.shape[0]
    local = torch.full((rows, *held.shape[1:]), held.start, dtype=dtype, device=parameter.device)
    return local if shard is parameter else parallel.like(parameter, local, held.shape)


def make(
    settings: Optimizer | Rest, implementation: str, groups: list[dict[str, Any]]
) -> torch.optim.Optimizer:
    """The class that the settings name, over these groups; ready to train."""
    form = {} if implementation == "auto" else {implementation: True}
    spec = settings.spec
    made: Any = call_user(
        f"class {spec.factory}",
        lambda: spec.load()(groups, **spec.arguments(settings), **form),
        but=PASSING,
    )
    if settings.spec.average:
        made.train()
    optimizer: torch.optim.Optimizer = made
    return optimizer
