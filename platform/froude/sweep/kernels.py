"""What fast kernels would buy a study on this machine, and whether they are exact enough here: a second's timing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from froude.config import Run
from froude.train.speed.timing import AFFORDABLE, as_timed, clock, step_flops

if TYPE_CHECKING:
    from froude.train.trainer import Trainer

SECONDS = 0.8  # of timing, of both sides together
PAIRS = 2  # at least


@dataclass(frozen=True)
class Offer:
    """Relative error of a matrix product, its bound (None: nothing is made less exact), time of a step over the plain.

    NaN where fast kernels are refused.
    """

    run: Run
    error: float | None
    bound: float
    ratio: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "run": self.run.name,
            "kernels": self.run.compute.kernels,
            "matmul_error": self.error,
            "bound": self.bound,
            "time_ratio": self.ratio,
        }

    def line(self) -> str:
        """A sentence for people."""
        own = self.run.compute.kernels == "fast"
        about = "" if self.error is None else f"; relative error of a matrix product {self.error:.0e}"
        what = '`compute.kernels` "fast"'
        if self.error is not None and self.error > self.bound:
            return f"{what} is refused here{about}, and at most {self.bound:.0e} is allowed"
        verb = "takes" if own else "would take"
        of = f"width {self.run.model.width}, {self.run.precision}"
        return f"{what} {verb} {self.ratio:.2f} of the time of a step here ({of}{about})"


def offer(runs: Sequence[Run]) -> Offer | None:
    """Steps of the largest of these runs that is quick to time, with both kernels in turn, on its threads of the CPU.

    None where there is none of the package's own model on a CPU.
    """
    import torch

    from froude.train import kernels

    on_cpu = [run for run in runs if run.device == "cpu" or not torch.cuda.is_available()]
    own = [
        run
        for run in on_cpu
        if not run.trainer.command and run.model.factory.startswith("froude.train.model:")
    ]
    if not (cheap := [run for run in own if step_flops(run) <= AFFORDABLE]):
        return None
    run = as_timed(max(cheap, key=step_flops))
    fast = run.replace({"compute.kernels": "fast"})
    error = kernels.matmul_error() if kernels.matmuls_are_fast(fast) else None
    refused = error is not None and error > kernels.BOUND
    return Offer(run, error, kernels.BOUND, float("nan") if refused else _ratio(run, fast))


def _ratio(run: Run, fast: Run) -> float:
    """The least CPU seconds of a step with fast kernels over those with plain ones; they alternate."""
    from froude.train.trainer import Trainer

    with clock(run) as now:
        plain = run.replace({"compute.kernels": "plain"})
        sides = [Trainer(each.replace({"eval_windows": 1})) for each in (plain, fast)]
        for trainer in sides:
            trainer.step(trainer.run, 0)
        times: list[tuple[float, ...]] = []
        while len(times) < PAIRS or sum(map(sum, times)) < SECONDS:
            times.append(tuple(_seconds(trainer, len(times) + 1, now) for trainer in sides))
    slow, quick = (min(side) for side in zip(*times, strict=True))
    return float(quick / slow)


def _seconds(trainer: Trainer, step: int, now: Callable[[], float]) -> float:
    before = now()
    trainer.step(trainer.run, step)
    return now() - before
