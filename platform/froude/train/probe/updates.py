"""What a run's code does to its tensors, measured from outside: on the model as built, and on single real updates.

No number here is read off a setting of an optimizer's group or of a module: each is a change of a tensor. So a bug
shows wherever it is: in the model, in the groups, in the optimizer or in the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from froude.config import Run
from froude.train import api, optimizers
from froude.train.exact.reduce import Fast, Totals
from froude.train.exact.slots import Rounds
from froude.train.objective import Objective, minimised
from froude.train.parallel import World
from froude.train.probe.coordcheck import first_batch, short
from froude.train.step import train_step

STEPS = 10
#: Of a gradient that no epsilon comes near; Adam's update does not depend on its size.
LARGE = 1e4
PROMPTS = 4  # windows of random tokens that the model as built is shown
MASKED = -1e4  # what is below it in a softmax's input is a mask


@dataclass(frozen=True)
class Measured:
    """One parameter: RMS as built; rate and decay (share of the weight a step) that an update really applies.

    `moved` is the RMS of what STEPS updates change, `undamped` the median share that epsilon leaves of an update at the
    gradient after them (NaN where updates are as large as it), `logits` the RMS by which logits change when the rows of
    tokens that do not occur change by N(0, 1): 0 unless the parameter makes logits.
    """

    shape: tuple[int, ...]
    init: float
    lr: float
    decay: float
    moved: float
    undamped: float
    logits: float


@dataclass(frozen=True)
class Probe:
    """A run's parameters by name, and the RMS of its attention logits as built, NaN where none were seen."""

    run: Run
    tensors: Mapping[str, Measured]
    attention: float


class _Given:
    """A reduction whose gradient is handed in instead of computed; that of anything but the loss is zero."""

    rounds = Rounds(1, 0, 1)

    def __init__(self, model: nn.Module, gradients: Mapping[str, Tensor], norm: float) -> None:
        self.model, self.gradients, self.norm = model, gradients, norm

    def backward(
        self, windows: Tensor, *, batch: int = 0, noise: bool = False, objective: Objective = minimised
    ) -> Totals:
        for name, parameter in self.model.named_parameters():
            given = self.gradients[name]
            parameter.grad = given.clone() if objective is minimised else torch.zeros_like(given)
        return Totals(0.0, self.norm)


def probe(run: Run, tables: Sequence[str]) -> Probe:
    """Measure one run; `tables` are its parameters [vocab, width] or [width, vocab]. Takes a few real steps."""
    run = short(run, STEPS)
    model = api.build_model(run)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    logits, attention = _responses(model, run, tables)
    zeros = {name: torch.zeros_like(p) for name, p in start.items()}
    ones = {name: torch.ones_like(p) for name, p in start.items()}
    signs = {name: LARGE * (1 - 2 * (p.cumsum(-1) % 2)) for name, p in ones.items()}

    end, gradients, norm = _train(model, run)
    pushed, decayed = _update(model, run, zeros, signs, 0.0), _update(model, run, ones, zeros, 0.0)
    real = _update(model, run, zeros, gradients, norm)
    scale = LARGE if run.optimizer.spec.proportional else 1.0
    return Probe(
        run,
        {
            name: Measured(
                shape=tuple(p.shape),
                init=rms(p),
                lr=(lr := rms(pushed[name]) / scale),
                decay=-float(decayed[name].double().mean()),
                moved=rms(end[name] - p),
                undamped=_undamped(real[name], gradients[name], lr) if scale == 1.0 else math.nan,
                logits=logits.get(name, 0.0),
            )
            for name, p in start.items()
        },
        attention,
    )


def rms(x: Tensor) -> float:
    """Root mean square, in fp64."""
    return float(x.detach().double().square().mean().sqrt())


def _train(model: nn.Module, run: Run) -> tuple[dict[str, Tensor], dict[str, Tensor], float]:
    """Weights after STEPS updates on one batch, and the gradient there with its norm."""
    world = World()
    optimizer, reduction = optimizers.build(run, model, world), Fast(run, model, world)
    windows = first_batch(run, world.device)
    for step in range(STEPS):
        train_step(model, optimizer, reduction, windows, run, step)
    norm = reduction.backward(windows).norm
    weights, gradients = {}, {}
    for name, p in model.named_parameters():
        weights[name] = p.detach().clone()
        gradients[name] = torch.zeros_like(p) if p.grad is None else p.grad
        p.grad = None
    return weights, gradients, norm


def _update(
    model: nn.Module, run: Run, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], norm: float
) -> dict[str, Tensor]:
    """How the first step of a new optimizer moves these weights under this gradient (whose norm is for clipping)."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    train_step(
        model, optimizers.build(run, model, World()), _Given(model, gradients, norm), torch.empty(0), run, 0
    )
    return {name: p.detach() - weights[name] for name, p in model.named_parameters()}


def _undamped(update: Tensor, gradient: Tensor, lr: float) -> float:
    """Median of |update| / lr where there is a gradient: |g| / (|g| + epsilon) in Adam's first step."""
    sizes = update.abs()[(gradient != 0) & gradient.isfinite().all()]
    return float(sizes.median()) / lr if len(sizes) and lr else math.nan


@torch.no_grad()
def _responses(model: nn.Module, run: Run, tables: Sequence[str]) -> tuple[dict[str, float], float]:
    """By table the change of logits when rows of tokens that are not shown change by N(0, 1); RMS attention logits."""
    half, generator = run.model.vocab // 2, torch.Generator().manual_seed(0)
    tokens = torch.randint(half, (PROMPTS, run.model.context), generator=generator)
    named, found = dict(model.named_parameters()), {}
    model.eval()
    with _Attention() as seen:
        before = model(tokens)[..., half:]
    for name in tables:
        rows = named[name].narrow(named[name].shape.index(run.model.vocab), half, run.model.vocab - half)
        saved = rows.clone()
        rows.add_(torch.randn(rows.shape, generator=generator))
        found[name] = rms(model(tokens)[..., half:] - before)
        rows.copy_(saved)
    model.train()
    return found, math.sqrt(sum(seen.squares) / len(seen.squares)) if seen.squares else math.nan


class _Attention(TorchFunctionMode):
    """Collects the mean squares of attention logits, from fused attention and from softmaxes over [.., T, T]."""

    def __init__(self) -> None:
        super().__init__()
        self.squares: list[float] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            query = args[0] if args else kwargs["query"]
            key = args[1] if len(args) > 1 else kwargs["key"]
            scale = kwargs.get("scale") or query.shape[-1] ** -0.5
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
            self._see(query @ key.mT * scale)
        elif getattr(func, "__name__", "") in ("softmax", "_softmax"):
            self._see(args[0] if args else kwargs["input"])
        return func(*args, **kwargs)

    def _see(self, logits: Tensor) -> None:
        if logits.ndim == 4 and logits.shape[-1] == logits.shape[-2]:
            square = float(logits[logits > MASKED].double().square().mean())
            if square > 0:
                self.squares.append(square)
