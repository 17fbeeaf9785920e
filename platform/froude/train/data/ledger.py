"""Which tokens entered the weights: one row a slot, its digest taken from the tensor that is handed to forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from torch import Tensor

from froude.config import Run
from froude.train.data.documents import inputs
from froude.train.data.order import Batches


class Drawn(NamedTuple):
    """A rank's part of a step: its slots, the number of each one's first sample, all windows [n, context + 1].

    `mixed` is, of a mixture, how many windows of each slot are of which part.
    """

    slots: Sequence[int]
    first_samples: Sequence[int]
    windows: Tensor
    mixed: Sequence[Mapping[str, int] | None]


Disposition = Literal["trained", "skipped_by_policy"]
#: What becomes of a batch by what is decided about its gradient; a run that goes back was never there.
DISPOSITIONS: dict[str, Disposition] = {"update": "trained", "skip": "skipped_by_policy"}


def rows(run: Run, attempt: int, step: int, drawn: Drawn, disposition: Disposition) -> list[dict[str, Any]]:
    """Rows of a rank's slots of what was drawn: trained in the step that leads to `step`, or left out before it."""
    shares = drawn.windows.tensor_split(len(drawn.slots))
    return [
        {
            "run": run.name,
            "attempt": attempt,
            "step": step,
            "slot": slot,
            "first_sample": first_sample,
            "samples": len(windows),
            "tokens": len(windows) * run.model.context,
            "digest": Batches.digest(inputs(windows)[0].cpu()),
            "disposition": disposition,
            "parts": mixed and [{"part": name, "samples": count} for name, count in mixed.items()],
        }
        for slot, first_sample, windows, mixed in zip(
            drawn.slots, drawn.first_samples, shares, drawn.mixed, strict=True
        )
    ]
