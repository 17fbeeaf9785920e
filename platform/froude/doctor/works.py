"""What is done in a process of its own; each takes the world of ranks that do it, and returns figures as JSON."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from froude.config import Run
from froude.doctor.live_bytes import LiveBytes
from froude.train.parallel import World
from froude.train.speed.peak import peak_flops
from froude.train.speed.profile import wait
from froude.train.trainer import Trainer, only_trainer

Figures = dict[str, Any]
#: Of a matrix product whose error is measured.
SIDE = 512
COPIED, REDUCED = 2**28, {"cpu": 2**24, "cuda": 2**28}  # bytes
REPEATS = 5
TIMED_STEPS, WARM_STEPS = 5, 2
#: As many slots as any of up to 24 workers can share.
EXACT = Run(
    tokens=24 * 64 * 3,
    batch=24 * 64,
    slots=24,
    reduction="exact",
    seed=1,
    eval_windows=64,
    model={"width": 64, "context": 64},
)
_LARGE = {"head_dim": 64, "context": 1024, "vocab": 50304, "tied": True, "mlp_ratio": 2.75}
#: What steps are timed of, by device: GPT-2's small and medium shapes, and the quickstart's proxies.
TIMED: dict[str, dict[str, Run]] = {
    "cuda": {
        name: Run(
            tokens=2**15 * (WARM_STEPS + TIMED_STEPS),
            batch=2**15,
            micro_batch=2**13,
            precision="bf16",
            eval_windows=1,
            schedule={"warmup_tokens": 0},
            model={**_LARGE, **shape},
        )
        for name, shape in {"124M": {"width": 768, "depth": 12}, "350M": {"width": 1024, "depth": 24}}.items()
    },
    "cpu": {
        "small": Run(
            tokens=2**10 * (WARM_STEPS + TIMED_STEPS),
            batch=2**10,
            eval_windows=1,
            schedule={"warmup_tokens": 0},
            model={"width": 128, "depth": 4},
        )
    },
}


def devices(world: World) -> list[Figures]:
    """Every GPU that torch sees; [] where there is none."""
    found = []
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        about = torch.cuda.get_device_properties(number)
        free, total = torch.cuda.mem_get_info(number)
        found.append(
            {
                "name": about.name,
                "total_bytes": total,
                "free_bytes": free,
                "capability": f"{about.major}.{about.minor}",
                "processors": about.multi_processor_count,
                "bf16": torch.cuda.is_bf16_supported(including_emulation=False),
            }
        )
    return found


def matmul(world: World) -> Figures:
    """Relative Frobenius error against fp64 of a product of seeded normal matrices, by precision."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(SIDE, SIDE, generator=generator, dtype=torch.float64) for _ in range(2))
    exact = a @ b
    before, found = torch.get_float32_matmul_precision(), {}
    forms = {
        "fp32": ("highest", torch.float32),
        "medium": ("medium", torch.float32),
        "bf16": ("highest", torch.bfloat16),
    }
    if world.device.type == "cuda":
        forms["tf32"] = "high", torch.float32
    for name, (setting, dtype) in forms.items():
        torch.set_float32_matmul_precision(setting)
        product = (a.to(world.device, dtype) @ b.to(world.device, dtype)).double().cpu()
        found[name] = float((product - exact).norm() / exact.norm())
    torch.set_float32_matmul_precision(before)
    return found


def links(world: World) -> Figures:
    """GB/s: between host and first GPU, both ways; of a sum over all ranks, bytes that a rank sends over time."""
    found: Figures = {}
    if world.device.type == "cuda" and world.rank == 0:
        here = torch.empty(COPIED, dtype=torch.uint8, pin_memory=True)
        there = torch.empty_like(here, device=world.device)
        found["to_device"] = COPIED / 1e9 / _seconds(lambda: there.copy_(here, non_blocking=True), world)
        found["from_device"] = COPIED / 1e9 / _seconds(lambda: here.copy_(there, non_blocking=True), world)
        found["peers"] = [
            torch.cuda.can_device_access_peer(0, other) for other in range(1, torch.cuda.device_count())
        ]
    if world.size > 1:
        number = REDUCED[world.device.type] // 4
        values = torch.ones(number, device=world.device)
        dist.barrier()
        sent = 2 * (world.size - 1) / world.size * 4 * number
        found["all_reduce"] = sent / 1e9 / _seconds(lambda: dist.all_reduce(values), world)
    return found


def exact(world: World) -> Figures:
    """The hash of an exact run's losses, weights and optimizer state: the same at any number of ranks."""
    return {"digest": _digest(EXACT, world)}


def again(world: World) -> Figures:
    """The same as `exact`, a second time in this process."""
    return exact(world)


def step(name: str, world: World) -> Figures:
    """A step's median seconds, tokens a second, share of the device's peak; the most bytes that tensors held."""
    run = TIMED[world.device.type][name]
    trainer = only_trainer(run, world)
    if world.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = []
    for number in range(run.steps):
        began = time.perf_counter()
        trainer.step(run, number)
        wait(world)
        times.append(time.perf_counter() - began)
    seconds = statistics.median(times[WARM_STEPS:])
    peak = peak_flops(world.device, run.precision)
    speed = run.batch / seconds
    return {
        "seconds": seconds,
        "spread": [min(times[WARM_STEPS:]), max(times[WARM_STEPS:])],
        "tokens_per_second": speed,
        "flops_per_token": trainer.flops_per_token,
        "mfu": None if peak is None else speed * trainer.flops_per_token / peak,
        "peak_bytes": _peak_bytes(trainer, world),
        "params": trainer.counts.params_with_embeddings,
    }


WORKS: Mapping[str, Callable[[World], Any]] = {
    **{each.__name__: each for each in (devices, matmul, links, exact, again)},
    **{f"step {name}": partial(step, name) for runs in TIMED.values() for name in runs},
}


def _seconds(action: Callable[[], object], world: World) -> float:
    """Median seconds of an action, the device's work included."""
    times = []
    for number in range(REPEATS + 1):
        wait(world)
        began = time.perf_counter()
        action()
        wait(world)
        if number:
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def _digest(run: Run, world: World) -> str:
    trainer = Trainer(run, world)
    losses = [trainer.step(run, number).loss for number in range(run.steps)]
    found = hashlib.sha256(repr([*losses, trainer.evaluate()]).encode())
    for name, tensor in sorted(trainer.state().items()):
        whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        found.update(
            name.encode() + whole.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )
    return found.hexdigest()


def _peak_bytes(trainer: Trainer, world: World) -> int:
    """Of tensors: so far on a GPU; on a CPU in two more steps, in whose first the optimizer's state is first seen.

    The process's size would tell little: most of it is libraries.
    """
    if world.device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    seen = LiveBytes()
    with seen:
        for _ in range(2):
            trainer.step(trainer.run, trainer.run.steps - 1)
    return seen.peak
