"""Where a step's time goes: the code says which phase begins, a clock, if there is one, takes the times.

On a GPU a phase's time is that of the device, between two events in its stream. They are read when the device has
passed them, so that nothing waits for a clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

#: In the order of a step. Reduce has the norm too, and waits for both; optimizer clips and updates; other is what the
#: policy against spikes and observers do. Where gradients are sharded, most of their sum is in the backward pass.
PHASES = ("data", "forward", "backward", "reduce", "optimizer", "other")


class Clock:
    """Takes the times of the phases that begin while it runs; with `traced` a profiler's trace shows them as spans."""

    def __init__(self, device: torch.device | None = None, *, traced: bool = False) -> None:
        self.cuda, self.traced = device is not None and device.type == "cuda", traced
        self.marks: list[tuple[str, float | torch.cuda.Event]] = []
        self._span: torch.autograd.profiler.record_function | None = None

    def mark(self, phase: str) -> None:
        """That phase begins; "" is none."""
        if self._span is not None:
            self._span.__exit__(None, None, None)
            self._span = None
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append((phase, event))
        else:
            self.marks.append((phase, time.perf_counter()))
        if self.traced and phase:
            self._span = torch.autograd.profiler.record_function(phase)
            self._span.__enter__()

    def seconds(self) -> dict[str, float]:
        """Seconds by phase; waits until the device has come to the last mark."""
        found: dict[str, float] = {}
        if self.cuda and self.marks:
            torch.cuda.synchronize()
        for (phase, began), (_, ended) in zip(self.marks, self.marks[1:], strict=False):
            if phase:
                took = (
                    ended - began
                    if isinstance(ended, float) and isinstance(began, float)
                    else began.elapsed_time(ended) / 1000  # type: ignore[union-attr, arg-type]
                )
                found[phase] = found.get(phase, 0.0) + took
        return found


_clocks: list[Clock] = []


def begin(phase: str) -> None:
    """From here on what this thread's step does is that phase; costs nothing while no clock runs."""
    for clock in _clocks:
        clock.mark(phase)


@contextmanager
def running(clock: Clock) -> Iterator[None]:
    """The clock runs inside."""
    _clocks.append(clock)
    clock.mark("other")
    try:
        yield
    finally:
        clock.mark("")
        _clocks.remove(clock)
