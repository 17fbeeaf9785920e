"""Where the time of a run's steps goes, by phase, and a trace of them to look at."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from froude.config import ConfigError, Run
from froude.durable import temporary
from froude.train import parallel
from froude.train.loop import Loop
from froude.train.parallel import World
from froude.train.speed.collector import between_steps
from froude.train.speed.peak import peak_flops
from froude.train.speed.phases import PHASES, Clock, running
from froude.train.trainer import only_trainer
from froude.train.trial import InMemory
from froude.train.worker import own_observers

#: Of Kineto's messages, above all of them: it prints the profiler's start and stop between a caller's lines.
QUIET = "6"
WARM = 3  # steps before any is timed: allocators fill, kernels are chosen


@dataclass(frozen=True)
class Profile:
    """Mean seconds a step: by phase; of the whole step by another clock (`step`); what a step takes of a checkpoint's
    copy and of an evaluation, which come every so many steps. `spread` is the least and the largest step.
    """

    run: str
    device: str
    steps: int
    phases: Mapping[str, float]
    step: float
    spread: tuple[float, float]
    checkpoint: float
    evaluation: float
    tokens_per_second: float
    mfu: float | None
    trace: str

    @property
    def covered(self) -> float:
        """The phases' sum over the step's time."""
        return sum(self.phases.values()) / self.step

    def lines(self) -> list[str]:
        """A table for people."""
        rows = {**self.phases, "checkpoint copy": self.checkpoint, "evaluation": self.evaluation}
        speed = f"{self.tokens_per_second:,.0f} tokens/s"
        if self.mfu is not None:
            speed += f", MFU {self.mfu:.1%}"
        low, high = (1e3 * each for each in self.spread)
        return [
            f"{self.run}: {self.steps} steps on one {self.device}, {1e3 * self.step:.2f} ms each ({low:.2f} to "
            f"{high:.2f}), {speed}",
            f"{'phase':<18}{'ms a step':>11}{'of a step':>11}",
            *(f"{name:<18}{1e3 * took:>11.3f}{took / self.step:>11.1%}" for name, took in rows.items()),
            f"phases add up to {self.covered:.1%} of the step by the clock on the wall; a checkpoint's copy and an",
            "evaluation are shared out over the steps between two of them",
            f"trace of {self.steps} more steps: {self.trace} (open it in Perfetto or chrome://tracing)",
        ]


def measure(
    run: Run, trace: Path, *, steps: int = 10, device: str = "auto", progress: Callable[[float, str], None]
) -> Profile:
    """Train the run's first steps in memory, on this process alone: some that are timed, then as many traced ones.

    Nothing of the run is kept but the trace, Chrome's JSON. A run of fewer steps is made longer.
    """
    world = World(device=parallel.resolve_device(device))
    run = _long_enough(run, WARM + 2 * steps)
    trainer = only_trainer(run, world)
    loop = Loop(run, trainer, InMemory(), own_observers())
    with between_steps():
        for number in range(WARM):
            progress(number / (2 * steps + WARM), "warming up")
            loop.advance()
        clocks, times = [], []
        for number in range(steps):
            progress((WARM + number) / (2 * steps + WARM), "timed")
            clocks.append(Clock(world.device))
            wait(world)
            began = time.perf_counter()
            with running(clocks[-1]):
                loop.advance()
            wait(world)
            times.append(time.perf_counter() - began)
        os.environ.setdefault("KINETO_LOG_LEVEL", QUIET)
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (world.device.type == "cuda")
        with profile(activities=activities) as traced:
            for number in range(steps):
                progress((WARM + steps + number) / (2 * steps + WARM), "traced")
                with running(Clock(world.device, traced=True)):
                    loop.advance()
            wait(world)
    write(traced, trace)
    found = [clock.seconds() for clock in clocks]
    step = statistics.fmean(times)
    peak = peak_flops(world.device, run.precision)
    speed = run.phases.batch_at(WARM) / step
    return Profile(
        run=run.name,
        device=world.device.type,
        steps=steps,
        phases={phase: statistics.fmean(each.get(phase, 0.0) for each in found) for phase in PHASES},
        step=step,
        spread=(min(times), max(times)),
        checkpoint=_took(loop.commit, world) / run.checkpoint_every,
        evaluation=_took(loop.evaluate, world) / (run.eval_every or run.steps),
        tokens_per_second=speed,
        mfu=None if peak is None else speed * trainer.flops_per_token / peak,
        trace=str(trace),
    )


def check_writable(trace: Path) -> None:
    """ConfigError unless a file can be written beside the trace, whose folder is made; what is there stays."""
    try:
        with temporary(trace, b"{}"):
            pass
    except OSError as error:
        raise ConfigError(
            f"a trace must be a file that can be written, but {trace} can't be: {error.strerror or error}; name another"
        ) from None


def write(traced: profile, trace: Path) -> None:
    """Put the trace in its place once it is whole: torch says nothing where it could not write all of it."""
    with temporary(trace) as whole:
        traced.export_chrome_trace(str(whole))
        if not whole.is_file() or not whole.read_bytes()[-16:].rstrip().endswith(b"}"):
            raise OSError(
                f"a trace must be written whole, but torch could not write that of {trace}; make room there, or name "
                "another file"
            )
        whole.replace(trace)


def _long_enough(run: Run, steps: int) -> Run:
    """The run on one worker, with so many steps at least."""
    more = max(0, steps - run.steps) * run.phases.last
    return run.pinned().replace(
        {"name": run.name, "workers": 1, "slots": run.slots, "tokens": run.tokens + more}
    )


def _took(action: Callable[[], object], world: World) -> float:
    wait(world)
    began = time.perf_counter()
    action()
    wait(world)
    return time.perf_counter() - began


def wait(world: World) -> None:
    """Until the device has done what it was given."""
    if world.device.type == "cuda":
        torch.cuda.synchronize()
