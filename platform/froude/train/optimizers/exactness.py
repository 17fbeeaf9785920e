"""What an optimizer must pass before an exact run may use it: short runs on made-up gradients, to the last bit."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from froude.config import Optimizer
from froude.optimizers.section import Rest
from froude.train.optimizers.composed import begun, make

STEPS = 12
#: Rows that are no multiple of any vector's length, so that what a kernel does at their end shows, in a whole of one of
#: 4, with which CUDA's kernels take another path than with rows; a size from which on libraries keep a state in blocks,
#: as they do not in small parts of it; and a vector.
SHAPES = ((252, 37), (256, 256), (1000,))
#: What one matrix is cut into: FSDP2's parts for these numbers of workers, and single rows.
WORKERS = (2, 3, 5, 32)
#: Of gradients, one after the other: an epsilon or a threshold shows at one of them.
SCALES = (1.0, 1e-6)
#: An owner's matrix, and steps between two refreshes of what is computed rarely, so that several are seen.
OWNED, EVERY = (48, 32), 4


def works_by_rows(settings: Optimizer | Rest, implementation: str, device: str) -> bool:
    """Whether whole tensors and parts of their rows get the same bits, whatever the global generator's state."""
    return _works_by_rows(_key(settings), implementation, device)


def repeats(settings: Optimizer, device: str) -> bool:
    """Whether a matrix gets the same bits twice, whatever the global generator's state."""
    return _repeats(_key(settings), device)


def _key(settings: Optimizer | Rest) -> str:
    """What the answer depends on; rates are none of it."""
    if isinstance(settings, Rest):
        return Optimizer(name=settings.spec.name).model_dump_json()
    return Optimizer(name=settings.name, options=dict(settings.options)).model_dump_json()


@functools.cache
def _works_by_rows(key: str, implementation: str, device: str) -> bool:
    settings = Optimizer.model_validate_json(key)
    for shape in SHAPES:
        tensors = _drawn(shape, device)
        whole = _trained(settings, implementation, tensors, [slice(None)])
        cuts = [list(_cuts(shape[0], -(-shape[0] // workers))) for workers in WORKERS]
        if shape == SHAPES[0]:
            cuts.append(list(_cuts(shape[0], 1)))
        for number, parts in enumerate(cuts):
            if not _same(whole, _trained(settings, implementation, tensors, parts, seed=number)):
                return False
    return True


@functools.cache
def _repeats(key: str, device: str) -> bool:
    settings = Optimizer.model_validate_json(key)
    if "every" in settings.spec.options:
        settings = settings.model_copy(update={"options": {**settings.options, "every": EVERY}})
    tensors = _drawn(OWNED, device)
    first, second = (_trained(settings, "auto", tensors, [slice(None)], seed=seed) for seed in (0, 1))
    return _same(first, second)


def _drawn(shape: Sequence[int], device: str) -> list[Tensor]:
    """A start, and gradients."""
    generator = torch.Generator().manual_seed(0)
    start, *gradients = (torch.randn(*shape, generator=generator) for _ in range(STEPS + 1))
    scaled = [g * SCALES[i % len(SCALES)] for i, g in enumerate(gradients)]
    return [tensor.to(device) for tensor in (start, *scaled)]


def _cuts(rows: int, each: int) -> Iterator[slice]:
    for start in range(0, rows, each):
        yield slice(start, min(start + each, rows))


def _trained(
    settings: Optimizer, implementation: str, tensors: Sequence[Tensor], cuts: Sequence[slice], seed: int = 0
) -> Tensor:
    """The weights after STEPS steps, each part by itself; and the average that would be evaluated, if there is one."""
    start, *gradients = tensors
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        parts = [nn.Parameter(start[cut].clone()) for cut in cuts]
        group = {"params": parts, "lr": 1e-2, "weight_decay": 0.1}
        optimizer = make(settings, implementation, [group])
        for part in parts:
            begun(settings, optimizer, part)
        for gradient in gradients:
            for part, cut in zip(parts, cuts, strict=True):
                part.grad = gradient[cut].clone()
                if settings.spec.curvature:
                    optimizer.state[part]["hessian"].lerp_(gradient[cut].square(), 0.1)
            optimizer.step()
    ends = [part.detach() for part in parts]
    if average := settings.average:
        states = [begun(settings, optimizer, part) for part in parts]
        ends += [torch.lerp(w, s[average.key], average.weight) for w, s in zip(ends, states, strict=True)]
    return torch.cat(ends)


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))
