"""When a run counts as diverged: a function of its losses alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

#: Nats per token that a loss may be above its least, or by noise above its start, at most; as the spike ladder's CLIMB.
MARGIN = 0.5
#: Steps whose mean tells the least loss (a quarter of a short run); twice as many tell the noise between batches.
STEPS = 10
#: Standard deviations of a batch's loss, and the least of it in nats per token, that are no rise.
DEVIATIONS, LEAST = 4.0, 0.01


def why_diverged(
    losses: Sequence[float], final: float, *, vocab: int, validation: Sequence[float] = ()
) -> str:
    """Why a run has diverged, in one line; empty if it has not.

    `losses` are its training losses from before the first update on, one a step, `final` its last validation loss (NaN
    if it was stopped), `validation` the earlier ones, all in nats per token. A run has diverged if a loss or gradient is
    not finite; if it ends above its start by more than the noise between batches; or if it ends above a uniform guess,
    ln `vocab`, and more than half a nat above its least loss. docs/decisions/0011 says why.
    """
    if not math.isfinite(final) or not all(map(math.isfinite, losses)):
        return f"the loss or its gradient was not finite at step {len(losses)}"
    if losses and final > losses[0] + (allowed := tolerance(losses)):
        return f"it ended at {final:.3f}, above its start at {losses[0]:.3f} (by more than {allowed:.2g})"
    least = min([*means(losses), *validation], default=math.inf)
    if final > max(math.log(vocab), least + MARGIN):
        return (
            f"it ended at {final:.3f}, above a uniform guess ({math.log(vocab):.3f}) and by more than {MARGIN} above "
            f"its least loss ({least:.3f})"
        )
    return ""


def tolerance(losses: Sequence[float]) -> float:
    """By how much a run may end above its first loss without having risen, in nats per token.

    The first is the loss of one batch. How far batches scatter is told by the second differences of the first losses,
    which a steady fall leaves alone: their variance is 6 times that of one.
    """
    first = losses[: 2 * STEPS]
    bends = [(b - a) - (c - b) for (a, b), (_, c) in pairwise(pairwise(first))]
    if len(bends) < 3:  # which tell nothing
        return MARGIN
    noise = math.sqrt(sum(bend**2 for bend in bends) / len(bends) / 6)
    return min(MARGIN, max(LEAST, DEVIATIONS * noise))


def means(losses: Sequence[float]) -> list[float]:
    """Running means over a quarter of the run, at most `STEPS` steps."""
    span = min(STEPS, max(1, len(losses) // 4))
    return [sum(losses[i : i + span]) / span for i in range(len(losses) - span + 1)]
