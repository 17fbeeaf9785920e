"""torch.compile, block by block: an ahead-of-time look at whether the model can be compiled, and to which bits.

Only the passes of training are compiled; an evaluation runs as without, so that its shapes cost no compilation. Blocks
are compiled before they are sharded, and their hooks stay outside, where observers find them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from froude.config import ConfigError, Run
from froude.train import api
from froude.train.data.order import validation_windows
from froude.train.objective import minimised
from froude.train.parallel import World

#: What compiles; tests put in one that needs no C++ compiler.
BACKEND = "inductor"
#: Passes of each size whose losses and gradients are compared, each of other windows.
COMPARED = 3


def compile_blocks(run: Run, model: nn.Module, blocks: Sequence[nn.Module], world: World) -> None:
    """Have the model's blocks compiled as `compute.compile` says; the model is not sharded yet.

    ConfigError where it can't be: on a device without CUDA graphs; in an exact run, if the model can't be compiled as a
    whole, or has other losses or gradients than without. A fast run then warns and goes on without. Where the model has
    no weights yet, a block is tried when it first trains.
    """
    how = run.compute.compile
    if how == "none":
        return
    run.compute.check_device(world.device.type, world.size)
    if any(parameter.is_meta for parameter in model.parameters()):
        _set(blocks, [_tried_in_training(block, run) for block in blocks])
        return
    model.to(world.device)
    plain = [block.forward for block in blocks]
    windows = _windows(run, world)
    expected = _passes(model, windows, run) if run.reduction == "exact" else []
    why = _graph_break(blocks, model, windows[0], run)
    _set(blocks, plain)
    if not why:
        mode = "reduce-overhead" if how == "graphs" else None
        why = _compiled(blocks, mode, model, windows, run, expected)
    for parameter in model.parameters():
        parameter.grad = None
    if not why:
        return
    _set(blocks, plain)
    if run.reduction == "exact":
        raise ConfigError(
            f"an exact run's blocks may be compiled where that changes no bit, but {why}; leave `compute.compile` out, "
            'or use reduction "fast"'
        )
    _warn(why)


def _warn(why: str) -> None:
    warnings.warn(f"blocks are not compiled, and the run goes on without: {why}", stacklevel=3)


@contextmanager
def _forgotten() -> Iterator[None]:
    """Afterwards Dynamo knows nothing of what it traced, which would count against its limit."""
    try:
        yield
    finally:
        torch.compiler.reset()


def _tried_in_training(block: nn.Module, run: Run) -> Callable[..., Any]:
    """A forward pass that is compiled when it is first trained; if it can't be, it goes on without."""
    plain, tried = block.forward, False
    # Another graph for each size or number that a block knows: past torch's limit it goes on without, as it must.
    fast = torch.compile(plain, backend=BACKEND, dynamic=False)

    def forward(*args: Any, **kwargs: Any) -> Any:
        from torch._dynamo.exc import TorchDynamoException

        nonlocal tried
        if not block.training:
            return plain(*args, **kwargs)
        try:
            if tried:
                return fast(*args, **kwargs)
            tried = True
            with _forgotten():
                return torch.compile(plain, backend="eager", fullgraph=True)(*args, **kwargs)
        except TorchDynamoException as error:
            _set([block], [plain])
            _warn(f"a block of {run.model.factory}: {_line(error)}")
        return plain(*args, **kwargs)

    return forward


def _set(blocks: Sequence[nn.Module], forwards: Sequence[Callable[..., Any]]) -> None:
    for block, forward in zip(blocks, forwards, strict=True):
        block.forward = forward


def _graph_break(blocks: Sequence[nn.Module], model: nn.Module, windows: Tensor, run: Run) -> str:
    """Where Dynamo can't go on in one of the blocks, in a line; empty if it can."""
    try:
        traced = [torch.compile(block.forward, backend="eager", fullgraph=True) for block in blocks]
        _set(blocks, traced)
        with _forgotten(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's about its own ways
            minimised(model, windows[:1], run)
    except Exception as error:  # noqa: BLE001  a user's model, traced: whatever it raises is the answer
        return f"the graph of {run.model.factory} breaks: {_line(error)}"
    return ""


def _compiled(
    blocks: Sequence[nn.Module],
    mode: str | None,
    model: nn.Module,
    windows: Sequence[Tensor],
    run: Run,
    expected: Sequence[Tensor],
) -> str:
    """Compile; why that can't be used, in a line. An exact run `expected` these losses and gradients."""
    try:
        for block in blocks:
            fast = torch.compile(block.forward, backend=BACKEND, dynamic=False, mode=mode)
            block.forward = _while_training(block, block.forward, fast)
        got = _passes(model, windows, run)
    except Exception as error:  # noqa: BLE001  of the compiler, or of the C++ compiler that it calls
        return f"{BACKEND} can't compile {run.model.factory}: {_line(error)}"
    differ = sum(not torch.equal(one, other) for one, other in zip(expected, got, strict=False))
    return f"{differ} of {len(expected)} losses and gradients get other bits" if differ else ""


def _while_training(
    block: nn.Module, plain: Callable[..., Any], fast: Callable[..., Any]
) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        return (fast if block.training else plain)(*args, **kwargs)

    return forward


def _passes(model: nn.Module, windows: Sequence[Tensor], run: Run) -> list[Tensor]:
    """Loss and gradients of each pass, one after another."""
    found: list[Tensor] = []
    for each in windows:
        torch.compiler.cudagraph_mark_step_begin()
        for parameter in model.parameters():
            parameter.grad = None
        sought, _ = minimised(model, each, run)
        sought.backward()
        found.append(sought.detach().clone())
        found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return found


def _windows(run: Run, world: World) -> list[Tensor]:
    """Windows of as many passes as are compared, of each size that training has: a ramp of the batch has several."""
    slots = 1 if run.reduction == "exact" else -(-run.slots // world.size)
    sizes = set[int]()
    for phase in run.phases:
        most = slots * run.windows_per_slot * phase.factor
        size = min(run.micro_batch // run.model.context or most, most)
        sizes |= {size, most % size} - {0}
    passes = [size for size in sorted(sizes) for _ in range(COMPARED)]
    source = api.build_source(run, "validation")
    found = api.as_int64(validation_windows(source, sum(passes), documented=run.model.documents))
    found = torch.cat([found] * -(-sum(passes) // len(found)))[: sum(passes)]
    return list(found.to(world.device).split(passes))


def _line(error: Exception) -> str:
    """What an error says, in a line: of Dynamo's pages the cause, and the user's own line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = next((line for line in lines if not line.endswith(":")), type(error).__name__)
    at = next((i for i in reversed(range(len(lines))) if lines[i].startswith('File "')), None)
    if at is None or at + 1 >= len(lines):
        return first
    file, number = (
        lines[at].split('"')[1].rpartition("/")[2],
        lines[at].partition("line ")[2].partition(",")[0],
    )
    return f"{first} at {file}:{number}, {lines[at + 1]}"
