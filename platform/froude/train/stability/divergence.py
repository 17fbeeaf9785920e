"""When a run counts as diverged: a function of its losses alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

#: Nats per token above its least loss that a run may end; as the spike policy's CLIMB.
MARGIN = 0.5
#: Steps whose mean gives the least loss (a quarter of a short run); twice as many give the noise between batches.
STEPS = 10
#: Standard deviations of a batch's loss that are no rise; at least in nats per token, at most as a share of the start.
DEVIATIONS, LEAST, MOST = 5.0, 0.01, 0.1
#: Times its start that a run has exploded at. One whose weights died of it guesses uniformly, as it did at its start.
EXPLODED = 2.0


def why_diverged(
    losses: Sequence[float], final: float, *, vocab: int, validation: Sequence[float] = ()
) -> str:
    """Why a run has diverged, in one line; empty if it has not.

    `losses` are its training losses from before the first update on, one a step, `final` its last validation loss (NaN
    if it was stopped), `validation` the earlier ones, all in nats per token. A run has diverged if a loss or gradient
    is not finite; if it ends above its start by more than the noise between batches, or not below it after it had
    exploded; or if it ends above a uniform guess, ln `vocab`, and by more than half a nat, and than that noise,
    above its least loss. docs/decisions/0011 says why.
    """
    if not losses or not math.isfinite(final) or not all(map(math.isfinite, losses)):
        return f"the loss or its gradient was not finite at step {len(losses)}"
    start, noise = losses[0], tolerance(losses)
    course = means(losses)
    peak = max(course)
    if final > start + noise:
        return f"it ended at {final:.3f}, more than {noise:.2g} nats above its start ({start:.3f})"
    if peak > EXPLODED * start and final > start - LEAST:
        return f"it ended at {final:.3f}, not below its start ({start:.3f}), after it had risen to {peak:.4g}"
    guess, least, margin = math.log(vocab), min([*course, *validation]), max(MARGIN, noise)
    if final > max(guess, least + margin):
        return (
            f"it ended at {final:.3f}, above a uniform guess ({guess:.3f}) and more than {margin:.2g} nats above its "
            f"least loss ({least:.3f})"
        )
    return ""


def tolerance(losses: Sequence[float]) -> float:
    """The most that a run may end above its first loss without counting as risen, in nats per token.

    The first is the loss of one batch. How far batches scatter is seen from the second differences of the first losses,
    which a steady fall leaves alone: their variance is 6 times that of one. Fewer than three tell nothing.
    """
    first = losses[: 2 * STEPS]
    bends = [(b - a) - (c - b) for (a, b), (_, c) in pairwise(pairwise(first))]
    most = max(LEAST, MOST * losses[0])
    if len(bends) < 3:
        return most
    noise = math.sqrt(sum(bend**2 for bend in bends) / len(bends) / 6)
    return min(most, max(LEAST, DEVIATIONS * noise))


def means(losses: Sequence[float]) -> list[float]:
    """Running means over a quarter of the run, at most `STEPS` steps."""
    span = min(STEPS, max(1, len(losses) // 4))
    return [sum(losses[i : i + span]) / span for i in range(len(losses) - span + 1)]
