"""AdamW with moments of 8 bits: a code for each element, and a scale for each block of at most 256 in a row.

The update is AdamW's, decay included, with the moments of the step as they are before they are rounded. The idea is
that of Dettmers et al. 2110.02861: a block is scaled by its largest magnitude, so what an outlier does to others ends
with its block. Their blocks run on over the whole tensor; ours end with the row, so any way of sharding by rows gives
the same bits. A row of up to 256 numbers is one block, and the last block of a longer row may be shorter.

A code c stands for scale * sign(c) (c / 127)^2 in the first moment, where it has a sign, and for scale * (c / 255)^4
in the second: codes are densest near zero, and the root by which Adam divides has as fine a scale as the first moment.
c is 127 sqrt(|m| / scale) or 255 (v / scale)^(1/4), rounded to the nearest; by square roots alone, which all processors
round alike. A mean below 1.5e-5 of its block's largest is thus forgotten. Only a zero has code 0 in the second moment,
so no mean is left with nothing to be divided by. On the gradients of 50 steps of a model of width 128, weights move as
AdamW moves them but for 1.8%; with the codes of the paper but for 2.7%.

Vectors, and what else has rows of one number, keep moments in the parameter's own precision. A matrix whose columns are
a multiple of 256 takes 2.03 bytes an element.

At a beta2 of 0.99 or more a step lowers a second moment by less than half the distance of two codes, so it falls only
with its block's scale. On gradients of pure noise, which fell to a tenth for half of each row, weights had moved
otherwise than AdamW moves them by 31% after 1,000 more steps at 0.99, and by 14% at 0.95.
"""

from __future__ import annotations

import math

from froude.optimizers.spec import Held, Settings, Shape, Spec

BLOCK = 256


def state(settings: Settings | None, shape: Shape) -> dict[str, Held]:
    """Codes and scales of a parameter; no setting matters."""
    columns = math.prod(shape[1:])
    if columns == 1:
        return {"step": Held(()), "exp_avg": Held(shape), "exp_avg_sq": Held(shape)}
    scales = Held((shape[0], -(-columns // BLOCK)))
    return {
        "step": Held(()),
        "exp_avg": Held(shape, dtype="int8"),
        "exp_avg_scale": scales,
        "exp_avg_sq": Held(shape, dtype="uint8"),
        "exp_avg_sq_scale": scales,
    }


ADAMW8BIT = Spec(
    name="adamw8bit",
    factory="froude.train.optimizers.own.eight_bit:AdamW8bit",
    arguments=lambda settings: {"betas": (settings.beta1, settings.beta2)},
    family="Adam",
    state=state,
    corrected={"exp_avg_sq": "step", "exp_avg_sq_scale": "step"},
)
