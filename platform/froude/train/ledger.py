"""Which tokens entered the weights: one row a slot, its digest taken from the tensor that is handed to forward."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from froude.config import Run
from froude.train.data.order import Batches


def row(run: Run, attempt: int, step: int, slot: int, first_sample: int, windows: Tensor) -> dict[str, Any]:
    """The ledger row of one slot of the step that leads to `step`; windows [n, context + 1]."""
    return {
        "run": run.name,
        "attempt": attempt,
        "step": step,
        "slot": slot,
        "first_sample": first_sample,
        "samples": len(windows),
        "tokens": len(windows) * run.model.context,
        "digest": Batches.digest(windows[:, :-1].cpu()),
        "disposition": "trained",
    }
