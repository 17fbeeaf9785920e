"""The factor on the loss of an fp16 run, by which small gradients stay above what fp16 loses.

A gradient that is not finite has overflowed: the same batch is tried again at half the scale, so that no token is left
out and no step is lost. After GROWTH steps without one the scale doubles (Micikevicius et al. 1710.03740, section 3.2;
the numbers are those of torch's GradScaler). A loss that is not finite is none of that: the forward pass has overflowed
by itself, which no scale helps, and the run's spike policy decides. So it does where no scale down to FLOOR helps: the
scale is then what it was before the batch, which may be left out as in any other precision.

The scale is a power of two, so a gradient's bits do not depend on it unless fp16 loses some; it follows from numbers
that all ranks share, and is in checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn

from froude.config import Run
from froude.train import parallel
from froude.train.exact.reduce import Reduction, Totals
from froude.train.objective import Objective, minimised

INITIAL, GROWTH = 2.0**16, 2000
FLOOR = 2.0**-10  # far below what any finite gradient needs: fp16 reaches to 65504


@dataclass
class LossScale:
    """The scale now, and how many steps it has been good for; `why` no scale helped the last batch, else empty."""

    scale: float = field(default_factory=lambda: INITIAL)
    good: int = 0
    why: str = field(default="", compare=False)

    @classmethod
    def of(cls, run: Run) -> Self | None:
        return cls() if run.precision == "fp16" else None

    def state(self) -> dict[str, Any]:
        return {"scale": self.scale, "good": self.good}

    def rewind(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state; {} is the run's start."""
        self.scale, self.good = float(state.get("scale", INITIAL)), int(state.get("good", 0))

    def backward(
        self, model: nn.Module, reduction: Reduction, windows: Tensor, batch: int, noise: bool
    ) -> Totals:
        """As `reduction.backward`: the gradient at a scale at which it is finite, without the scale.

        Not finite where the loss is not, or no scale was found.
        """
        before, self.why = (self.scale, self.good), ""
        while True:
            found = reduction.backward(windows, batch=batch, noise=noise, objective=self._scaled(minimised))
            if math.isfinite(found.norm) or not math.isfinite(found.loss):
                break
            self.scale, self.good = self.scale / 2, 0
            for parameter in model.parameters():
                parameter.grad = None
            if self.scale < FLOOR:
                self.scale, self.good = before
                self.why = (
                    f"the loss scale fell below its floor of {FLOOR:g}, and gradients still overflow fp16 (or are no "
                    'numbers); use precision "bf16"'
                )
                return found
        scale = self.scale
        if math.isfinite(found.norm):
            torch._foreach_mul_(parallel.local_gradients(model), 1 / scale)
            self.good += 1
            if self.good == GROWTH:
                self.scale, self.good = 2 * scale, 0
        square = found.slot_square
        return Totals(
            found.loss,
            found.norm / scale,
            None if square is None else square / scale**2,
            {name: norm / scale for name, norm in found.norms.items()},
        )

    def _scaled(self, objective: Objective) -> Objective:
        def scaled(model: nn.Module, windows: Tensor, run: Run) -> tuple[Tensor, Tensor]:
            sought, loss = objective(model, windows, run)
            return sought * self.scale, loss

        return scaled
